"""A thread that does what would hold the event loop up, one thing after the other.

`run_in_executor` does the same by way of two futures, a lock and a condition for each, which refer to each other until
garbage is looked for; and a future tells of its result a turn of the loop later.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias, TypeVar

_T = TypeVar("_T")
_Job: TypeAlias = tuple[Callable[[], Any], Callable[[Any], None]]


class Writer:
    """See the module. It begins with the first thing to do."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: Thread | None = None

    def do(self, work: Callable[[], _T], done: Callable[[_T | Exception], None]) -> None:
        """Do that; the loop is told what comes of it, or what went wrong."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="writer", daemon=True)
            self._thread.start()
        self._jobs.put((work, done))

    def end(self) -> None:
        """Do what waits, and no more."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                result = error
            self._loop.call_soon_threadsafe(done, result)
            del job, work, done, result
