"""Unit tests of batchyard.apiserver.handlers."""
