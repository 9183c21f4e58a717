"""Memory use: a bounded LRU cache, memoization for short strings, and settings of Python's garbage collector."""

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, Final, Generic, TypeVar, cast

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
