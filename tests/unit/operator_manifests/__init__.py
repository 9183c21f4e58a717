"""Unit tests of batchyard.operator_manifests."""
