"""Unit tests of batchyard.apiserver.subresources."""
