"""Topology-aware scheduling: trees, counts, placement and assignment."""
