"""Admission plugins of the API server: functions that change or reject objects before they are stored."""
