"""Admission plugins of the API server, as functions that change or reject objects before they are stored."""
