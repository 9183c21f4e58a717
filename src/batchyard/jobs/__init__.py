"""Kinds of jobs: what a controller decides for each, and its integration with queues."""
