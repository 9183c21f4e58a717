"""Unit tests of batchyard.server."""
