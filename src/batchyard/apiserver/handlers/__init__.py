"""Handlers of requests for stored objects: reads, lists, watches and writes."""
