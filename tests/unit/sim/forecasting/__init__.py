"""Unit tests of batchyard.sim.forecasting."""
