"""Unit tests of batchyard.scheduling.workload."""
