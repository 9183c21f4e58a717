"""Unit tests of batchyard.placement."""
