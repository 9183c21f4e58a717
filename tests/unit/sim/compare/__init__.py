"""Unit tests of batchyard.sim.compare."""
