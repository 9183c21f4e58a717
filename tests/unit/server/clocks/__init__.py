"""Unit tests of batchyard.server.clocks."""
