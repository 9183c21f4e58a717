"""Unit tests of batchyard.kubelet.simulated."""
