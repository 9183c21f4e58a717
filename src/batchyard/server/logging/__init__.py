"""Logs, traces, and the file of the controllers' decisions, of a running process."""
