"""Tuning of Python's cyclic garbage collector.

Reference counting frees nearly all objects here. Cycles are very rare, while millions of objects stay alive, and each
collection traverses them.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_THRESHOLDS: Final = (200_000, 50, 100)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Run the cyclic garbage collector rarely within the block."""
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable automatic cyclic garbage collection within the block."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect() -> None:
    """Run a full cyclic garbage collection."""
    gc.collect()
