"""Unit tests of batchyard.jobs.pod."""
