"""Unit tests of batchyard.metrics."""
