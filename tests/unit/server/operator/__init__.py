"""Unit tests of batchyard.server.operator."""
