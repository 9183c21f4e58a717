"""Unit tests of batchyard.nodes."""
