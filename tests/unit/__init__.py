"""Unit tests of batchyard."""
