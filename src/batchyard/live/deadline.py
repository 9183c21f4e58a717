"""One thing at a time that has to come within a time.

What is awaited changes several times with each request, so the timer is let run: when it rings it is looked whether
anything is late, and otherwise it is set again.
"""

import asyncio
from collections.abc import Callable


class Deadline:
    """What is awaited, and what happens if it does not come."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._awaited: tuple[str, int] | None = None
        self._late: Callable[[], object] = _nothing
        #: By the loop's clock: when what is awaited is late, and when the timer rings.
        self._due = 0.0
        self._rings = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, awaited: tuple[str, int], within: float, late: Callable[[], object]) -> None:
        """Await something, the so-manieth of its kind; it has no more time because it is awaited again."""
        if awaited == self._awaited:
            return
        self._awaited, self._late = awaited, late
        self._due = self._loop.time() + within
        if self._timer is None or self._rings > self._due:
            self._set()

    def stop(self) -> None:
        """Await nothing."""
        self._awaited = None

    def end(self) -> None:
        """Await nothing any more."""
        self._awaited, self._late = None, _nothing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = self._due
        self._timer = self._loop.call_at(self._due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._awaited is None:
            return
        if self._due > self._rings:
            self._set()
        else:
            self._late()


def _nothing() -> None:
    pass
