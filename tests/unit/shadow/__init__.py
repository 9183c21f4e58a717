"""Unit tests of batchyard.shadow."""
