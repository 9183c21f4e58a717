"""Unit tests of batchyard.jobs.stand_ins."""
