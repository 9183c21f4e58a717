"""Malformed requests, generated from a seed, so that each is reproducible."""
