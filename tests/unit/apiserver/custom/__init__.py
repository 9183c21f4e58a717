"""Kinds that users define."""
