"""Random draws without a generator state: a draw depends only on a seed and names.

So a simulation with one more machine differs in that machine only, and a draw can be repeated after a restart. All
arithmetic uses integers, so that the result is the same on every machine.
"""

import hashlib
from math import isqrt
from typing import Final

from batchyard.base.instant import Duration

_BITS: Final = 52
_WHOLE: Final = 1 << _BITS


def draw(seed: int, *names: str) -> int:
    """Return a uniformly distributed number from 0 to 2**52 - 1."""
    digest = hashlib.blake2b("\0".join((str(seed), *names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 64 - _BITS


def triangular(low: Duration, typical: Duration, high: Duration, seed: int, *names: str) -> Duration:
    """Return a duration from `low` to `high` in a triangular distribution with its mode at `typical`.

    The triangular distribution needs only these three values.
    """
    width, left, right = high - low, typical - low, high - typical
    if width <= 0:
        return low
    drawn = draw(seed, *names)
    if drawn * width < left << _BITS:
        return low + isqrt(drawn * width * left >> _BITS)
    return high - isqrt((_WHOLE - drawn) * width * right >> _BITS)
