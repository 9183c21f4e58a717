"""Invariants of the platform: observers of a simulation that report violations, with the objects and the time."""
