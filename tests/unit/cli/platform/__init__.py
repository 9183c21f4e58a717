"""Unit tests of batchyard.cli.platform."""
