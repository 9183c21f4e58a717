"""Comparison of two platform configurations, simulated under the same load, as tables, a document and a page."""
