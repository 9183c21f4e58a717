"""Unit tests of batchyard.autoscaler."""
