"""Unit tests of batchyard.kubelet.local."""
