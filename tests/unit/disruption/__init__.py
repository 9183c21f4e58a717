"""Unit tests of batchyard.disruption."""
