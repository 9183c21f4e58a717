"""Unit tests of batchyard.webhooks."""
