"""Unit tests of batchyard.store."""
