"""Modules that need no other package of batchyard."""
