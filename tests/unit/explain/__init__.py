"""Unit tests of batchyard.explain."""
