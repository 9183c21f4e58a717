"""Whom to preempt: candidates, and the search for a small set of them that makes room."""
