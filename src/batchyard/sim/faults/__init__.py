"""Faults of a simulation: what is injected, and when."""
