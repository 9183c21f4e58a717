"""Chance without a generator: a draw is fixed by a seed and names, whatever else was drawn before it.

So a world with one machine more differs in that machine only, and a draw can be made again after a restart. All of it
is whole numbers, so that every machine draws alike.
"""

import hashlib
from math import isqrt
from typing import Final

from batchyard.base.instant import Duration

_BITS: Final = 52
_WHOLE: Final = 1 << _BITS


def draw(seed: int, *names: str) -> int:
    """A number from 0 to 2**52 - 1, each as likely as any other."""
    digest = hashlib.blake2b("\0".join((str(seed), *names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 64 - _BITS


def triangular(low: Duration, typical: Duration, high: Duration, seed: int, *names: str) -> Duration:
    """A duration from `low` to `high`, most likely close to the typical one.

    The triangular distribution says what three figures can say, and no more.
    """
    width, left, right = high - low, typical - low, high - typical
    if width <= 0:
        return low
    drawn = draw(seed, *names)
    if drawn * width < left << _BITS:
        return low + isqrt(drawn * width * left >> _BITS)
    return high - isqrt((_WHOLE - drawn) * width * right >> _BITS)
