"""Topology-aware scheduling: nodes in topology domains, their free capacity, and the placement of pods on them."""
