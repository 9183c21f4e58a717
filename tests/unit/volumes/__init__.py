"""Tests of batchyard.volumes."""
