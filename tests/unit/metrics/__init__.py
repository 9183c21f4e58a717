"""Figures of platforms, and their text."""
