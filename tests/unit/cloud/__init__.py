"""Unit tests of batchyard.cloud."""
