"""Unit tests of batchyard.cli.completion."""
