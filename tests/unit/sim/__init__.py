"""Unit tests of batchyard.sim."""
