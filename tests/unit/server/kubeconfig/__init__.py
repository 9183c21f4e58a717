"""Unit tests of batchyard.server.kubeconfig."""
