"""Unit tests of batchyard.accounting."""
