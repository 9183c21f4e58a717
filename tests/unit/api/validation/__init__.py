"""Unit tests of batchyard.api.validation."""
