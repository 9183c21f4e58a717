"""Real-time event loop: runs the controllers' virtual-time event loop on asyncio, in real or accelerated time.

External work (a request, the exit of a process) is scheduled at the instant of its arrival, after all work due by then.
Work therefore runs in the same order as in virtual time, and the arrivals alone determine the result. Under overload,
external work is scheduled at the due time of the next overdue work, so that it does not wait for all overdue work.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from batchyard.base.instant import SECOND, Instant
from batchyard.base.primitives import rare_garbage_collection
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.controller import Ticket, Work

#: How long work runs before asyncio polls its sockets again.
SLICE_SECONDS_MAX: Final = 0.02  # seconds
#: How often the paused event loop checks whether it may continue.
PAUSE_CHECK_INTERVAL: Final = 0.002  # seconds


class LiveKernel:
    """An event loop whose time begins at `start_instant` and runs `speed` times as fast as asyncio's clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, start_instant: Instant, speed: float = 1.0) -> None:
        self._loop = loop
        self._began_at = loop.time()
        self._start_instant = start_instant
        self._speed = speed
        self._virtual_loop = VirtualEventLoop(start_instant)
        self._timer: asyncio.TimerHandle | None = None
        self._is_slice_scheduled = False
        self._posted_at: Instant = 0
        self.is_stopped = False
        #: The instant at which time stops; None if it runs freely.
        self.stops_at: Instant | None = None
        #: Returns whether work must pause because the journal is behind.
        self.must_pause: Callable[[], bool] = _never_pauses

    def now(self) -> Instant:
        """Return the instant of the callback that runs now or ran last; before the first one, the start instant.

        `set_clock` to a later instant also changes the result.
        """
        return self._virtual_loop.now()

    def clock(self) -> Instant:
        """Return the time of the loop's clock, at most `stops_at`; it can be later than `now`."""
        instant = self._start_instant + int((self._loop.time() - self._began_at) * self._speed * SECOND)
        return instant if self.stops_at is None else min(instant, self.stops_at)

    def run_until(self, instant: Instant | None) -> None:
        """Let time run until an instant, and stop it there. A past instant stops time now; None lets it run forever."""
        now = self.clock()
        self._start_instant, self._began_at = now, self._loop.time()
        self.stops_at = None if instant is None else max(instant, now)
        self._schedule_slice()

    def has_stopped(self) -> bool:
        """Return whether time has stopped as requested by `run_until`, and all callbacks due by then have run."""
        if self.stops_at is None or self.clock() < self.stops_at:
            return False
        next_due_time = self._virtual_loop.next_instant()
        return next_due_time is None or next_due_time > self.stops_at

    def call_at(self, due_time: Instant, work: Work) -> Ticket:
        """Schedule a callback for an instant, and return a ticket with which `cancel` can cancel it.

        Callbacks of the same instant run in order of registration.
        """
        ticket = self._virtual_loop.call_at(due_time, work)
        self._schedule_slice()
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a callback that is not due yet; otherwise do nothing."""
        self._virtual_loop.cancel(ticket)

    def call_soon(self, work: Work) -> None:
        """Schedule a callback for the instant `now`, after the callbacks that are already due at it."""
        self._virtual_loop.call_soon(work)
        self._schedule_slice()

    def post(self, work: Work) -> None:
        """Schedule a callback for an external event, such as a request, in the order in which the events arrive."""
        now, next_due_time = self.clock(), self._virtual_loop.next_later()
        self._posted_at = max(self._posted_at, now if next_due_time is None else min(next_due_time, now))
        self._virtual_loop.call_at(self._posted_at, work)
        self._schedule_slice()

    @property
    def is_unused(self) -> bool:
        """Whether no callback has run on this loop, and none is scheduled."""
        return not self._virtual_loop.steps and not self._virtual_loop.pending_count()

    def set_clock(self, instant: Instant, speed: float) -> None:
        """Set the loop's clock to an instant, and its speed as a multiple of real time.

        Unless the loop is unused, `now` does not go back, because completed work is not undone. Callbacks that were due
        in skipped time run now.
        """
        if self.is_unused:
            self._virtual_loop = VirtualEventLoop(instant)
        else:
            self._virtual_loop.skip_to(instant)
        self._start_instant, self._began_at, self._speed = instant, self._loop.time(), speed
        self._posted_at = 0
        self._schedule_slice()

    def stop(self) -> None:
        """Stop the event loop: no further callbacks run. A callback that calls this still runs to its end."""
        self.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _schedule_slice(self) -> None:
        if not self._is_slice_scheduled and not self.is_stopped:
            self._is_slice_scheduled = True
            self._loop.call_soon(self._run_slice)

    def _run_slice(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.is_stopped:
            return
        try:
            self._run_due_work()
        finally:
            self._schedule_next_slice()  # also after an exception: asyncio logs it, and the platform continues

    def _run_due_work(self) -> None:
        slice_end = self._loop.time() + SLICE_SECONDS_MAX
        last_due_time = max(self.clock(), self._virtual_loop.now())
        with rare_garbage_collection():
            while self._may_run_work() and self._virtual_loop.step(last_due_time) and self._loop.time() < slice_end:
                pass

    def _may_run_work(self) -> bool:
        return not self.is_stopped and not self.must_pause()

    def _schedule_next_slice(self) -> None:
        self._is_slice_scheduled = False
        next_due = self._virtual_loop.next_instant()
        if self.is_stopped or next_due is None or (self.stops_at is not None and next_due > self.stops_at):
            return
        delay = (next_due - self.clock()) / SECOND / self._speed
        if self.must_pause():
            delay = max(delay, PAUSE_CHECK_INTERVAL)
        if delay <= 0:
            self._schedule_slice()
        else:
            self._timer = self._loop.call_later(delay, self._schedule_slice)


def _never_pauses() -> bool:
    return False
