"""Unit tests of batchyard.kubelet."""
