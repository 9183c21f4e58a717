"""A thread that does what would hold the event loop up, one thing after the other.

`run_in_executor` does the same by way of two futures, a lock and a condition for each, which refer to each other until
garbage is looked for.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias, TypeVar

_T = TypeVar("_T")
_Job: TypeAlias = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class Writer:
    """See the module. It begins with the first thing to do."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: Thread | None = None

    def do(self, work: Callable[[], _T]) -> "asyncio.Future[_T]":
        """Do that; the future has what comes of it."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="writer", daemon=True)
            self._thread.start()
        done: asyncio.Future[_T] = self._loop.create_future()
        self._jobs.put((work, done))
        return done

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
                self._loop.call_soon_threadsafe(_fail, done, error)
            else:
                self._loop.call_soon_threadsafe(_tell, done, result)
            del job, work, done


def _tell(done: "asyncio.Future[_T]", result: _T) -> None:
    if not done.done():
        done.set_result(result)


def _fail(done: "asyncio.Future[Any]", error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
