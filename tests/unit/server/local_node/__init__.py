"""Unit tests of batchyard.server.local_node."""
