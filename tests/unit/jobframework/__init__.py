"""Unit tests of batchyard.jobframework."""
