"""Unit tests of batchyard.base."""
