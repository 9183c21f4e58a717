"""Unit tests of batchyard.scheduling.preemption."""
