"""The machine's clocks; the only module that reads them."""

import asyncio
import time
from functools import partial

from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.controller import Ticket, Work


def wall_clock() -> Instant:
    """Return the current instant of the machine's clock."""
    return time.time_ns() // 1000


def ticks() -> float:
    """Return seconds since an arbitrary point, to measure durations."""
    return time.perf_counter()


def own_cpu() -> float:
    """Return the CPU seconds of the calling thread since an arbitrary point."""
    return time.thread_time()


# --- timers ---
#
# Real-time timers, independent of the platform's time: for leases, retry backoff and rate limits.


class LoopTimers:
    """A kernel that runs its work by the monotonic clock of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._offset = wall_clock() - int(loop.time() * SECOND)
        self._waiting: dict[Ticket, asyncio.TimerHandle] = {}
        self._tickets = 0

    def now(self) -> Instant:
        """Return the current instant."""
        return self._offset + int(self._loop.time() * SECOND)

    def call_at(self, when: Instant, work: Work) -> Ticket:
        """Run the work at an instant."""
        self._tickets += 1
        delay = max(0, when - self.now()) / SECOND
        self._waiting[self._tickets] = self._loop.call_later(delay, partial(self._do, self._tickets, work))
        return self._tickets

    def cancel(self, ticket: Ticket) -> None:
        """Cancel the work."""
        handle = self._waiting.pop(ticket, None)
        if handle is not None:
            handle.cancel()

    def call_soon(self, work: Work) -> None:
        """Run the work in the next loop iteration."""
        self._loop.call_soon(work)

    def stop(self) -> None:
        """Cancel all scheduled work."""
        for handle in self._waiting.values():
            handle.cancel()
        self._waiting.clear()

    def _do(self, ticket: Ticket, work: Work) -> None:
        del self._waiting[ticket]
        work()


async def sleep_for(duration: Duration) -> None:
    """Wait for a duration."""
    loop = asyncio.get_running_loop()
    passed = asyncio.Event()
    handle = loop.call_later(duration / SECOND, passed.set)
    try:
        await passed.wait()
    finally:
        handle.cancel()
