"""Unit tests of batchyard.scheduling."""
