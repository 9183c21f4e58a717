"""Unit tests of batchyard.lint."""
