"""Basics used by all layers: instants, ids, random draws, caches, invariants."""
