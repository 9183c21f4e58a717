"""Real time, or time that runs faster: the virtual kernel, kept up with the clock by an event loop.

Work that comes from outside (a request, the end of a process) is done at the instant it arrived; all that is due by
then is done before. So the order is that of virtual time, and a run follows from what arrived when. Where more is due
than can be done in time, what comes from outside does not wait for all of it, but for what is due next.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from batchyard.base.gc_tuning import rare_collections
from batchyard.base.instant import SECOND, Instant
from batchyard.controller_runtime.kernel import VirtualKernel
from batchyard.interfaces.controller import Ticket, Work

#: For how long work is done before the event loop may look at its sockets again.
BUSY_WITHIN: Final = 0.02  # seconds
#: After how long it is looked again whether work may go on that was held.
HELD_FOR: Final = 0.002  # seconds


class LiveKernel:
    """See the module. Time begins at `start` and runs `speed` times as fast as the clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start: Instant, speed: float = 1.0) -> None:
        self._loop = loop
        self._began = loop.time()
        self._start = start
        self._speed = speed
        self._inner = VirtualKernel(start)
        self._timer: asyncio.TimerHandle | None = None
        self._is_pumping_soon = False
        self._posted_at: Instant = 0
        self.is_stopped = False
        #: Where time stops; None if it runs on.
        self.stops_at: Instant | None = None
        #: Whether nothing more is to be done for the moment, since others do not keep up.
        self.is_held: Callable[[], bool] = _never

    def now(self) -> Instant:
        """The instant of the work that is done now, or was done last."""
        return self._inner.now()

    def clock(self) -> Instant:
        """What time it is."""
        instant = self._start + int((self._loop.time() - self._began) * self._speed * SECOND)
        return instant if self.stops_at is None else min(instant, self.stops_at)

    def run_until(self, instant: Instant | None) -> None:
        """Let time run from now on, and stop at an instant, or now if that is past; None: let it run on."""
        now = self.clock()
        self._start, self._began = now, self._loop.time()
        self.stops_at = None if instant is None else max(instant, now)
        self._pump_soon()

    def has_stopped(self) -> bool:
        """Whether time has stopped, and all that was due by then is done."""
        if self.stops_at is None or self.clock() < self.stops_at:
            return False
        following = self._inner.next_instant()
        return following is None or following > self.stops_at

    def call_at(self, when: Instant, work: Work) -> Ticket:
        """Do the work at an instant; equal instants in order of arrival."""
        ticket = self._inner.call_at(when, work)
        self._pump_soon()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Do that work no more, unless its instant has come."""
        self._inner.cancel(ticket)

    def call_soon(self, work: Work) -> None:
        """Do the work at the present instant, after all that is due now."""
        self._inner.call_soon(work)
        self._pump_soon()

    def post(self, work: Work) -> None:
        """Do work that came from outside, now, and after all that came before it."""
        now, due = self.clock(), self._inner.next_later()
        self._posted_at = max(self._posted_at, now if due is None else min(due, now))
        self._inner.call_at(self._posted_at, work)
        self._pump_soon()

    @property
    def is_unused(self) -> bool:
        """Whether no work was asked for yet."""
        return not self._inner.steps and not self._inner.pending()

    def set_clock(self, instant: Instant, speed: float) -> None:
        """Let it be that time by the clock from now on.

        What was done is not undone: `now` does not go back. Nor is time that was skipped lived through: what was due
        in it is done once, now.
        """
        if self.is_unused:
            self._inner = VirtualKernel(instant)
        else:
            self._inner.skip_to(instant)
        self._start, self._began, self._speed = instant, self._loop.time(), speed
        self._posted_at = 0
        self._pump_soon()

    def stop(self) -> None:
        """Do no more work."""
        self.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _pump_soon(self) -> None:
        if not self._is_pumping_soon and not self.is_stopped:
            self._is_pumping_soon = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Do what is due, a part of it at a time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_stopped:
            return
        try:
            self._work()
        finally:
            self._come_back()  # after a defect, too: the loop tells of it, and the platform goes on

    def _work(self) -> None:
        """Do what is due, until it is time to look at the sockets."""
        inner, end = self._inner, self._loop.time() + BUSY_WITHIN
        until = max(self.clock(), inner.now())
        with rare_collections():
            while not self.is_held() and inner.step(until) and self._loop.time() < end:
                pass

    def _come_back(self) -> None:
        """Come back for what is left when that is due."""
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
