"""Unit tests of batchyard.jobs.job."""
