"""Unit tests of batchyard.api."""
