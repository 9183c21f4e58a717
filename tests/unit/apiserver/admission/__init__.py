"""Tests of admission by webhooks."""
