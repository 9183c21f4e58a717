"""Random numbers for fuzzing: the same for the same seed on each machine."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TypeVar

T = TypeVar("T")


class SeededRandom:
    """Random numbers that follow only from a seed."""

    def __init__(self, *seed: object) -> None:
        self._numbers = _numbers(repr(seed).encode())

    def below(self, bound: int) -> int:
        """Return a number from 0 to below the bound."""
        return next(self._numbers) % bound

    def one_of(self, choices: Sequence[T]) -> T:
        """Return one of the choices."""
        return choices[self.below(len(choices))]

    def happens(self, percent: int) -> bool:
        """Return true with this probability in percent."""
        return self.below(100) < percent

    def content(self, length: int) -> bytes:
        """Return this number of bytes."""
        return bytes(self.below(256) for _ in range(length))


def _numbers(seed: bytes) -> Iterator[int]:
    for block in count():
        digest = hashlib.blake2b(seed + block.to_bytes(8, "big")).digest()
        for start in range(0, len(digest), 4):
            yield int.from_bytes(digest[start : start + 4], "big")
