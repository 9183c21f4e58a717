"""Tests of batchyard.podautoscaler."""
