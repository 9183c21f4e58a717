"""Forecasts of when Workloads will start, computed in forked child processes of the running platform."""
