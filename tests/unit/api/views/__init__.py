"""Unit tests of batchyard.api.views."""
