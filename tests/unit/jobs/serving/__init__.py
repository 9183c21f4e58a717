"""Unit tests of batchyard.jobs.serving."""
