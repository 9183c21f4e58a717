"""Simulation: virtual time, scenarios, event log, invariants."""
