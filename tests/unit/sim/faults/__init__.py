"""Unit tests of batchyard.sim.faults."""
