"""Unit tests of batchyard.api.schema."""
