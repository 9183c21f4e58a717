"""Chance for fuzzing: the same throws for the same seed, wherever it runs."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Throws that follow from a seed and nothing else."""

    def __init__(self, *seed: object) -> None:
        self._numbers = _numbers(repr(seed).encode())

    def below(self, bound: int) -> int:
        """A number from 0 to before the bound."""
        return next(self._numbers) % bound

    def one_of(self, choices: Sequence[T]) -> T:
        """One of some."""
        return choices[self.below(len(choices))]

    def happens(self, percent: int) -> bool:
        """True in so many of a hundred throws."""
        return self.below(100) < percent

    def content(self, length: int) -> bytes:
        """So many bytes."""
        return bytes(self.below(256) for _ in range(length))


def _numbers(seed: bytes) -> Iterator[int]:
    for block in count():
        digest = hashlib.blake2b(seed + block.to_bytes(8, "big")).digest()
        for start in range(0, len(digest), 4):
            yield int.from_bytes(digest[start : start + 4], "big")
