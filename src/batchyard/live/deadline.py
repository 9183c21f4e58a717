"""One thing at a time that has to come within a time."""

import asyncio
from collections.abc import Callable


class Deadline:
    """What is awaited, and what happens if it does not come."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._awaited: tuple[str, int] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, awaited: tuple[str, int], within: float, late: Callable[[], None]) -> None:
        """Await something, the so-manieth of its kind; it has no more time because it is awaited again."""
        if awaited != self._awaited:
            self.stop()
            self._awaited = awaited
            self._timer = self._loop.call_later(within, late)

    def stop(self) -> None:
        """Await nothing."""
        self._awaited = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
