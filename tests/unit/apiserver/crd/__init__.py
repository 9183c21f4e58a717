"""Unit tests of batchyard.apiserver.crd."""
