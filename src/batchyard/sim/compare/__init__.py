"""Comparison of two configurations: runs both under the same load, and reports the results side by side."""
