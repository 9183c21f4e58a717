"""Unit tests of batchyard.provision."""
