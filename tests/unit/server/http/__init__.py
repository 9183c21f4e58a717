"""Unit tests of batchyard.server.http."""
