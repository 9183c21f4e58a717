"""Shared primitives: invariant checks, seed-derived UUIDs, FNV-1a hashes, and reproducible random draws."""

import hashlib
from math import isqrt
from typing import Final

from batchyard.base.instant import Duration

# Assertions that stay enabled when Python runs with -O.


class InvariantError(AssertionError):
    """Raised when an internal invariant is violated, which is a bug in batchyard and never caused by invalid input."""


def invariant(condition: bool, message: str) -> None:
    """Raise InvariantError with `message` if `condition` is false."""
    if not condition:
        raise InvariantError(message)


# Uids and hashes derived from a seed, so that equal runs create equal ones.


def uid_for(seed: int, *names: str) -> str:
    """Return a UUID in the format of version 4, derived from a seed and names: equal arguments give equal UUIDs."""
    digest = hashlib.blake2b("\0".join((str(seed), *names)).encode(), digest_size=16).hexdigest()
    variant_digit = "89ab"[int(digest[16], 16) & 3]
    return f"{digest[:8]}-{digest[8:12]}-4{digest[13:16]}-{variant_digit}{digest[17:20]}-{digest[20:]}"


def fnv1a_64(text: str) -> int:
    """Return the 64-bit FNV-1a hash of a text's UTF-8 bytes."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


# Random draws without a generator state: a draw depends only on a seed and names.
#
# Therefore a simulation with one more machine has the same draws for all other machines, and a restart repeats the
# same draws. All arithmetic uses integers, so that the result is the same on every machine.


_RANDOM_BITS: Final = 52
_RANDOM_RANGE: Final = 1 << _RANDOM_BITS


def draw_integer(seed: int, *names: str) -> int:
    """Return a pseudorandom integer, uniform from 0 to 2**52 - 1 and determined by the seed and the names."""
    digest = hashlib.blake2b("\0".join((str(seed), *names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 64 - _RANDOM_BITS


def draw_triangular(minimum: Duration, most_likely: Duration, maximum: Duration, seed: int, *names: str) -> Duration:
    """Return a pseudorandom duration from the triangular distribution of `minimum`, `most_likely` and `maximum`.

    Equal seeds and names give equal durations. Return `minimum` if `maximum` is not greater.
    """
    range_width, mode_distance, distance_above = maximum - minimum, most_likely - minimum, maximum - most_likely
    if range_width <= 0:
        return minimum
    random_value = draw_integer(seed, *names)
    if random_value * range_width < mode_distance << _RANDOM_BITS:
        return minimum + isqrt(random_value * range_width * mode_distance >> _RANDOM_BITS)
    return maximum - isqrt((_RANDOM_RANGE - random_value) * range_width * distance_above >> _RANDOM_BITS)
