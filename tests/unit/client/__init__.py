"""Unit tests of batchyard.client."""
