"""Unit tests of batchyard.provision.steps."""
