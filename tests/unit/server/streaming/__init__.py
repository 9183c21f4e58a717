"""Unit tests of batchyard.server.streaming."""
