"""Recorded decisions of upstream Kueue."""
