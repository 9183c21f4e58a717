"""The machine's wall clock, monotonic clock and CPU clock, and real-time timers."""

import asyncio
import time
from functools import partial

from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.controller import Ticket, Work


def wall_clock() -> Instant:
    """Return the current instant of the machine's clock."""
    return time.time_ns() // 1000


def monotonic_seconds() -> float:
    """Return the reading of a monotonic clock in seconds, which is only useful to measure durations."""
    return time.perf_counter()


def boot_seconds() -> float:
    """Return the seconds since the machine started, including suspensions; no change of the wall clock affects them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def thread_cpu_seconds() -> float:
    """Return the CPU time used by the calling thread in seconds, which is only useful to measure differences."""
    return time.thread_time()


# Real-time timers, independent of the platform's time: for leases, retry backoff and rate limits.


class LoopTimers:
    """Timers in real time, by the monotonic clock of an asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._offset = wall_clock() - int(loop.time() * SECOND)
        self._timers: dict[Ticket, asyncio.TimerHandle] = {}
        self._last_ticket = 0

    def now(self) -> Instant:
        """Return the current instant in real time."""
        return self._offset + int(self._loop.time() * SECOND)

    def call_at(self, due_time: Instant, work: Work) -> Ticket:
        """Schedule a callback for an instant, and return a ticket with which `cancel` can cancel it."""
        self._last_ticket += 1
        delay = max(0, due_time - self.now()) / SECOND
        self._timers[self._last_ticket] = self._loop.call_later(delay, partial(self._run, self._last_ticket, work))
        return self._last_ticket

    def cancel(self, ticket: Ticket) -> None:
        """Cancel the callback that this ticket identifies; do nothing if it has run."""
        timer_handle = self._timers.pop(ticket, None)
        if timer_handle is not None:
            timer_handle.cancel()

    def call_soon(self, work: Work) -> None:
        """Schedule a callback for the next iteration of the asyncio loop."""
        self._loop.call_soon(work)

    def stop(self) -> None:
        """Cancel the pending callbacks of `call_at`."""
        for handle in self._timers.values():
            handle.cancel()
        self._timers.clear()

    def _run(self, ticket: Ticket, work: Work) -> None:
        del self._timers[ticket]
        work()


async def sleep_for(duration: Duration) -> None:
    """Wait for this duration of real time without blocking the asyncio loop."""
    loop = asyncio.get_running_loop()
    sleep_end = asyncio.Event()
    timer_handle = loop.call_later(duration / SECOND, sleep_end.set)
    try:
        await sleep_end.wait()
    finally:
        timer_handle.cancel()
