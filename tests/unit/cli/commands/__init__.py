"""Unit tests of batchyard.cli.commands."""
