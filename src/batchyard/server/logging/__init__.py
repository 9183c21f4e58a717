"""Logs and ledgers that a server writes."""
