"""Logs, traces, and the decision ledger of a running process."""
