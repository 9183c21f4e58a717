"""Unit tests of batchyard.jobs."""
