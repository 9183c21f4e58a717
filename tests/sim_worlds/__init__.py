"""Whole clusters, from our examples and from external manifests."""
