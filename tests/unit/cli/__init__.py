"""Unit tests of batchyard.cli."""
