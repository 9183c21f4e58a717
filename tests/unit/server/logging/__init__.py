"""Unit tests of batchyard.server.logging."""
