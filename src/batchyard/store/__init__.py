"""Revisions and watches of objects, without knowledge of any kind."""
