"""When a platform that runs for months looks for garbage in cycles: seldom, and no thousandth of its time.

Python would look through whatever was made since it last did, which is the objects of the users, and stop everything
meanwhile: a tenth of the time under load, and for seconds. Nothing that comes often leaves cycles here, a connection
that ends neither.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from batchyard.base.gc_tuning import collect, no_collections

#: Seconds from one look to the next, and how many times as long as the look took.
_EVERY: Final = 300.0
_TIMES: Final = 1000


class _Looks:
    """Looks again and again, until it is told to stop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer = loop.call_later(_EVERY, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        began = self._loop.time()
        collect()
        took = self._loop.time() - began
        self._timer = self._loop.call_later(max(_EVERY, _TIMES * took), self._look)


@contextmanager
def seldom_collected(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Look for garbage as the module says meanwhile."""
    with no_collections():
        looks = _Looks(loop)
        try:
            yield
        finally:
            looks.stop()
