"""Unit tests of batchyard.controller_runtime."""
