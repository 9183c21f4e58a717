"""Whole clusters, from examples and from manifests that others wrote."""
