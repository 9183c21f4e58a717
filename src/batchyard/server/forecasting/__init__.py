"""Forecasts of a live platform, worked out in forks."""
