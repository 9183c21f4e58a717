"""Real-time kernel: runs the virtual kernel on the asyncio event loop, in real or accelerated time.

External work (a request, the exit of a process) runs at the instant of its arrival, after all work due by then. The
order is therefore that of virtual time, and the arrivals alone determine a run. Under overload, external work waits
only for the work that is due next, not for all overdue work.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from batchyard.base.instant import SECOND, Instant
from batchyard.base.memory import rare_collections
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.controller import Ticket, Work

#: How long work runs before the event loop polls its sockets again.
BUSY_WITHIN: Final = 0.02  # seconds
#: How often held work is checked for release.
HELD_FOR: Final = 0.002  # seconds


class LiveKernel:
    """A kernel whose time begins at `start` and runs `speed` times as fast as the event loop's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start: Instant, speed: float = 1.0) -> None:
        self._loop = loop
        self._began = loop.time()
        self._start = start
        self._speed = speed
        self._inner = VirtualEventLoop(start)
        self._timer: asyncio.TimerHandle | None = None
        self._is_pumping_soon = False
        self._posted_at: Instant = 0
        self.is_stopped = False
        #: The instant at which time stops; None if it runs freely.
        self.stops_at: Instant | None = None
        #: Whether work must pause, because the journal is behind.
        self.is_held: Callable[[], bool] = _never

    def now(self) -> Instant:
        """Return the instant of the current or the last work."""
        return self._inner.now()

    def clock(self) -> Instant:
        """Return the current instant by the clock."""
        instant = self._start + int((self._loop.time() - self._began) * self._speed * SECOND)
        return instant if self.stops_at is None else min(instant, self.stops_at)

    def run_until(self, instant: Instant | None) -> None:
        """Let time run until an instant, at least until now, and stop there. None lets it run freely."""
        now = self.clock()
        self._start, self._began = now, self._loop.time()
        self.stops_at = None if instant is None else max(instant, now)
        self._pump_soon()

    def has_stopped(self) -> bool:
        """Whether time has stopped and all work due by then is done."""
        if self.stops_at is None or self.clock() < self.stops_at:
            return False
        following = self._inner.next_instant()
        return following is None or following > self.stops_at

    def call_at(self, when: Instant, work: Work) -> Ticket:
        """Run the work at an instant. Work of the same instant runs in order of registration."""
        ticket = self._inner.call_at(when, work)
        self._pump_soon()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Cancel the work, unless its instant has come."""
        self._inner.cancel(ticket)

    def call_soon(self, work: Work) -> None:
        """Run the work at the current instant, after all work that is due now."""
        self._inner.call_soon(work)
        self._pump_soon()

    def post(self, work: Work) -> None:
        """Run external work now, after all external work that arrived before."""
        now, due = self.clock(), self._inner.next_later()
        self._posted_at = max(self._posted_at, now if due is None else min(due, now))
        self._inner.call_at(self._posted_at, work)
        self._pump_soon()

    @property
    def is_unused(self) -> bool:
        """Whether no work was scheduled yet."""
        return not self._inner.steps and not self._inner.pending()

    def set_clock(self, instant: Instant, speed: float) -> None:
        """Set the clock and its speed.

        `now` does not go back, because completed work is not undone. Work that was due in skipped time runs once, now.
        """
        if self.is_unused:
            self._inner = VirtualEventLoop(instant)
        else:
            self._inner.skip_to(instant)
        self._start, self._began, self._speed = instant, self._loop.time(), speed
        self._posted_at = 0
        self._pump_soon()

    def stop(self) -> None:
        """Stop running work."""
        self.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _pump_soon(self) -> None:
        if not self._is_pumping_soon and not self.is_stopped:
            self._is_pumping_soon = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Run a slice of the due work, and schedule the next slice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_stopped:
            return
        try:
            self._work()
        finally:
            self._come_back()  # also after an exception: the loop logs it, and the platform continues

    def _work(self) -> None:
        """Run due work until the event loop must poll its sockets."""
        inner, end = self._inner, self._loop.time() + BUSY_WITHIN
        until = max(self.clock(), inner.now())
        with rare_collections():
            while not self.is_held() and inner.step(until) and self._loop.time() < end:
                pass

    def _come_back(self) -> None:
        """Schedule the next slice for the next due work."""
        self._is_pumping_soon = False
        following = self._inner.next_instant()
        if following is None or (self.stops_at is not None and following > self.stops_at):
            return
        wait = (following - self.clock()) / SECOND / self._speed
        if self.is_held():
            wait = max(wait, HELD_FOR)
        if wait <= 0:
            self._pump_soon()
        else:
            self._timer = self._loop.call_later(wait, self._pump_soon)


def _never() -> bool:
    return False
