"""Unit tests of batchyard.apiserver.policies."""
