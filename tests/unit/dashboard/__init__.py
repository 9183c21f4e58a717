"""Unit tests of batchyard.dashboard."""
