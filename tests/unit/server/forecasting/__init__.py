"""Unit tests of batchyard.server.forecasting."""
