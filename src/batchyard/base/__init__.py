"""Basics used by all layers: instants, ids, random draws, caches, invariants."""

import hashlib
from math import isqrt
from typing import Final

from batchyard.base.instant import Duration

# --- invariants ---
#
# Invariants: assertions that stay enabled.


class InvariantError(AssertionError):
    """A violated invariant: a defect of batchyard, never of its input."""


def invariant(holds: bool, law: str) -> None:
    """Raise InvariantError with this text unless it holds."""
    if not holds:
        raise InvariantError(law)


# --- ids ---
#
# Uids and hashes derived from a seed, so that equal runs create equal ones.


def uid_for(seed: int, *parts: str) -> str:
    """Return a version-4-shaped UUID derived from the seed and the parts."""
    digest = hashlib.blake2b("\0".join((str(seed), *parts)).encode(), digest_size=16).hexdigest()
    variant = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-{variant}{digest[17:20]}-{digest[20:]}"


def fnv1a_64(text: str) -> int:
    """Return the 64-bit FNV-1a hash of a text's UTF-8 bytes."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


# --- seeded draws ---
#
# Random draws without a generator state: a draw depends only on a seed and names.
#
# So a simulation with one more machine differs in that machine only, and a draw can be repeated after a restart. All
# arithmetic uses integers, so that the result is the same on every machine.


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
