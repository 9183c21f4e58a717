"""`batchyard monitoring`: Prometheus and Grafana of this machine for the platform of a data directory.

files.py       the configuration, rules, dashboards and credentials that they are given
processes.py   a program that is started, until it answers, and its end
command.py     the command
"""
