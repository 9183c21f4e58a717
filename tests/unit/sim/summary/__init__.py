"""Unit tests of batchyard.sim.summary."""
