"""Unit tests of batchyard.quotas."""
