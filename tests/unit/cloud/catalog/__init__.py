"""Unit tests of batchyard.cloud.catalog."""
