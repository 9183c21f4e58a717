"""Unit tests of batchyard.api.printing."""
