"""Unit tests of batchyard.sim.random_worlds."""
