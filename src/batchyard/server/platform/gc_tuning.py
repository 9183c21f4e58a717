"""Garbage collection of a long-running platform: rare full collections that take less than a thousandth of the time.

By default Python scans all recently created objects, which are the objects of the users, and stops everything
meanwhile. Under load that takes a tenth of the time, in pauses of seconds. No frequent operation here leaves reference
cycles, not even a closed connection.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from batchyard.base.gc_tuning import collect, no_collections

#: Seconds between collections; and the minimum interval, as a multiple of the duration of the last collection.
_EVERY: Final = 300.0
_TIMES: Final = 1000


class _CollectionTimer:
    """A timer that runs a full collection periodically until it is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer = loop.call_later(_EVERY, self._look)

    def stop(self) -> None:
        """Cancel the timer."""
        self._timer.cancel()

    def _look(self) -> None:
        began = self._loop.time()
        collect()
        took = self._loop.time() - began
        self._timer = self._loop.call_later(max(_EVERY, _TIMES * took), self._look)


@contextmanager
def rarely_collected(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Replace the automatic collections by rare ones, for the duration of the context."""
    with no_collections():
        looks = _CollectionTimer(loop)
        try:
            yield
        finally:
            looks.stop()
