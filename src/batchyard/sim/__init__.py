"""Simulation of batchyard in virtual time: scenarios, event log, and checks of invariants."""
