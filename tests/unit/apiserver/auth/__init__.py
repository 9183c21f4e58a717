"""Unit tests of batchyard.apiserver.auth."""
