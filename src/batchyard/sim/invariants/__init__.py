"""Invariants of the platform: observers of a running world that report violations, with the objects and the time."""
