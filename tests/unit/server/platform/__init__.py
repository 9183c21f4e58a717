"""Unit tests of batchyard.server.platform."""
