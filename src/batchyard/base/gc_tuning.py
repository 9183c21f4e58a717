"""How often Python looks for garbage in cycles.

Reference counting frees nearly all that is dropped here; cycles are next to none, while the objects that live on are
millions, and each look goes over them again.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_THRESHOLDS: Final = (200_000, 50, 100)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cyclic garbage rarely meanwhile."""
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def no_collections() -> Iterator[None]:
    """Look for cyclic garbage only where that is asked for meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def collect() -> None:
    """Look for cyclic garbage now, through all there is."""
    gc.collect()
