"""Unit tests of batchyard.sim.invariants."""
