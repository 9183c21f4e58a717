"""Unit tests of batchyard.housekeeping."""
