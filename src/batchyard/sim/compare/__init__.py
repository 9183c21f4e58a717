"""Comparison of two platform configurations, simulated under one load, as tables, a JSON document and an HTML page."""
