"""`batchyard monitoring`: runs the local Prometheus and Grafana for the platform of a data directory.

files.py       the generated configuration, rules, dashboards and credentials
processes.py   start, readiness check and end of a program
command.py     the command
"""
