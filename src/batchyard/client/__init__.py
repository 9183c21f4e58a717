"""Readers and writers of objects: in process here, over HTTP later."""
