"""Unit tests of batchyard.services."""
