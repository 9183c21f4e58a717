"""Unit tests of batchyard.cli.submit."""
