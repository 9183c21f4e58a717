"""Reproducible random numbers."""

import hashlib


class SeededDraws:
    """A source of reproducible random numbers, which depend on a seed alone."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._draw_count = 0

    def draw_below(self, stop: int) -> int:
        """Return a random integer from 0 to `stop` - 1."""
        self._draw_count += 1
        digest = hashlib.blake2b(f"{self._seed}/{self._draw_count}".encode(), digest_size=8).digest()
        return int.from_bytes(digest) % stop
