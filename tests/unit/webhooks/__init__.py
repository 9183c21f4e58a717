"""Answers of webhooks."""
