"""Unit tests of batchyard.jobs.jobset."""
