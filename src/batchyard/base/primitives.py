"""Shared primitives: invariants, seed-derived UUIDs, FNV-1a hashes, random draws, caches and garbage collection."""

import gc
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from math import isqrt
from typing import Any, Final, Generic, TypeVar, cast

from batchyard.base.instant import Duration

# Assertions that stay enabled when Python runs with -O.


class InvariantError(Exception):
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


# Memory use: a bounded LRU cache, memoization for short strings, and settings of the garbage collector.


LRU_CACHE_ENTRIES_MAX: Final = 4096
_K = TypeVar("_K")
_V = TypeVar("_V")


class LruCache(Generic[_K, _V]):
    """A mapping of at most `entries_max` entries (None: 4096); a full one removes the least recently used entry."""

    def __init__(self, entries_max: int | None = None) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[_K, _V] = OrderedDict()

    def get(self, key: _K) -> _V | None:
        """Return the value of a key and mark the key as recently used; None if the key is not cached."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def put(self, key: _K, value: _V) -> None:
        """Store the value of a key; remove the least recently used entry if the cache is full."""
        entries = self._entries
        size_before = len(entries)
        entries[key] = value
        if len(entries) == size_before:
            entries.move_to_end(key)
        elif size_before == (self._entries_max or LRU_CACHE_ENTRIES_MAX):
            entries.popitem(last=False)


# Only short strings are cached: caching long strings sent by clients would hold much memory permanently.


#: The maximum length of a cached argument, in characters or bytes, unless the function has another limit.
CACHED_TEXT_LENGTH_MAX: Final = 512
_FunctionT = TypeVar("_FunctionT", bound=Callable[..., Any])


def memoized_if_short(maxsize: int, length_max: int = CACHED_TEXT_LENGTH_MAX) -> Callable[[_FunctionT], _FunctionT]:
    """Return a decorator that caches up to `maxsize` results, for first arguments no longer than `length_max`."""

    def decorate(function: _FunctionT) -> _FunctionT:
        cached_function = lru_cache(maxsize=maxsize)(function)

        def call_cached(text: str | bytes, *args: Any) -> Any:
            return cached_function(text, *args) if len(text) <= length_max else function(text, *args)

        return cast("_FunctionT", wraps(function)(call_cached))

    return decorate


# Tuning of Python's cyclic garbage collector.
#
# Reference counting frees nearly all objects here. Cycles are very rare, while millions of objects stay alive, and each
# collection traverses them.


_RARE_GARBAGE_COLLECTION_THRESHOLDS: Final = (200_000, 50, 100)


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Raise the thresholds of Python's cyclic garbage collector within a `with` block, so that it runs rarely."""
    old_thresholds = gc.get_threshold()
    gc.set_threshold(*_RARE_GARBAGE_COLLECTION_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*old_thresholds)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Disable Python's automatic cyclic garbage collection within a `with` block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect_garbage() -> None:
    """Run a full collection of Python's cyclic garbage collector."""
    gc.collect()
