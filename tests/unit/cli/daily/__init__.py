"""Unit tests of batchyard.cli.daily."""
