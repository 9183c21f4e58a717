"""The clock's own time, whatever the time of the platform is: for leases, for waits between tries, for rates."""

import asyncio
from functools import partial

from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.controller import Ticket, Work
from batchyard.server.clocks.wall import wall_clock


class RealTime:
    """A kernel that does its work when the event loop's clock says so. That clock never goes back."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._offset = wall_clock() - int(loop.time() * SECOND)
        self._waiting: dict[Ticket, asyncio.TimerHandle] = {}
        self._tickets = 0

    def now(self) -> Instant:
        """The present instant."""
        return self._offset + int(self._loop.time() * SECOND)

    def call_at(self, when: Instant, work: Work) -> Ticket:
        """Do the work at an instant."""
        self._tickets += 1
        delay = max(0, when - self.now()) / SECOND
        self._waiting[self._tickets] = self._loop.call_later(delay, partial(self._do, self._tickets, work))
        return self._tickets

    def cancel(self, ticket: Ticket) -> None:
        """Do that work no more."""
        handle = self._waiting.pop(ticket, None)
        if handle is not None:
            handle.cancel()

    def call_soon(self, work: Work) -> None:
        """Do the work as soon as what is under way is done."""
        self._loop.call_soon(work)

    def stop(self) -> None:
        """Do nothing of what waits."""
        for handle in self._waiting.values():
            handle.cancel()
        self._waiting.clear()

    def _do(self, ticket: Ticket, work: Work) -> None:
        del self._waiting[ticket]
        work()


async def passing(duration: Duration) -> None:
    """Let so much time pass."""
    loop = asyncio.get_running_loop()
    passed = asyncio.Event()
    handle = loop.call_later(duration / SECOND, passed.set)
    try:
        await passed.wait()
    finally:
        handle.cancel()
