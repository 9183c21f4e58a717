"""Forecasts of a running platform, computed in forks of its process."""
