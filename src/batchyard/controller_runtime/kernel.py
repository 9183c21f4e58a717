"""Virtual event loop, which runs work in order of (instant, arrival) as fast as possible, and pacing of controllers.

Later work is in a heap, work of the present instant in a FIFO queue. When the queue is empty, the clock moves to the
first instant of the heap, and all work of that instant moves to the queue. Work added for the present instant goes to
the end of the queue. Cancelled work stays in the heap until its instant, or until most of the heap is cancelled. Each
piece of work runs to completion and may add more work. Work never runs inside the call that adds it.

If work keeps adding work for the same instant, the clock would never advance. So the loop counts the work of each
instant, and raises EndlessInstant beyond a limit.
"""

import sys
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Final, NoReturn, Protocol

from batchyard.base import invariant
from batchyard.base.instant import Instant
from batchyard.base.memory import rare_garbage_collection
from batchyard.interfaces.controller import Kernel, ReconcileThrottle, Ticket, Work

WORK_PER_INSTANT_MAX: Final = 10_000_000
_CANCELLED_MAX: Final = 1_000  # the heap may hold this much cancelled work, plus as much as live work


class EndlessInstant(Exception):  # noqa: N818 - the name is the condition
    """More work ran in one instant than the limit: work keeps adding work, and the clock does not advance."""


class VirtualEventLoop:
    """A discrete-event loop, whose clock jumps from one piece of work to the next."""

    __slots__ = (
        "_arrivals",
        "_due_work",
        "_heap",
        "_is_running",
        "_now",
        "_scheduled_work",
        "_steps_limit",
        "_work_per_instant_max",
        "steps",
    )

    def __init__(self, start: Instant = 0, *, work_per_instant_max: int = WORK_PER_INSTANT_MAX) -> None:
        self._now = start
        self._heap: list[tuple[Instant, Ticket]] = []  # the first entry is not cancelled
        self._scheduled_work: dict[Ticket, Work] = {}  # the work in the heap that is not cancelled
        self._due_work: deque[Work] = deque()
        self._arrivals = 0
        self._work_per_instant_max = work_per_instant_max
        self._steps_limit = work_per_instant_max  # the limit of `steps` until the clock moves
        self._is_running = False
        self.steps = 0

    def now(self) -> Instant:
        """Return the present instant."""
        return self._now

    def call_at(self, instant: Instant, work: Work) -> Ticket:
        """Schedule work for an instant (now if it is past). Work of the same instant runs in order of arrival."""
        self._arrivals += 1
        if instant <= self._now:
            self._due_work.append(work)
        else:
            heappush(self._heap, (instant, self._arrivals))
            self._scheduled_work[self._arrivals] = work
        return self._arrivals

    def cancel(self, ticket: Ticket) -> None:
        """Cancel scheduled work, unless its instant has come; the clock does not advance for cancelled work."""
        if self._scheduled_work.pop(ticket, None) is None:
            return
        if len(self._heap) > 2 * len(self._scheduled_work) + _CANCELLED_MAX:
            self._heap = [entry for entry in self._heap if entry[1] in self._scheduled_work]
            heapify(self._heap)
        self._drop_cancelled()

    def call_soon(self, work: Work) -> None:
        """Schedule work for the present instant, after all other work that is due now."""
        self._due_work.append(work)

    def skip_to(self, instant: Instant) -> None:
        """Move the clock forward to an instant; all work scheduled until then becomes due now, in order."""
        if instant <= self._now:
            return
        self._now = instant
        self._steps_limit = self.steps + self._work_per_instant_max
        heap = self._heap
        while heap and heap[0][0] <= instant:
            work = self._scheduled_work.pop(heappop(heap)[1], None)
            if work is not None:
                self._due_work.append(work)
        self._drop_cancelled()

    def pending_count(self) -> int:
        """Return the number of pieces of work that are scheduled and not cancelled."""
        return len(self._scheduled_work) + len(self._due_work)

    def next_instant(self) -> Instant | None:
        """Return the instant of the next scheduled work, or None."""
        if self._due_work:
            return self._now
        return self.next_later()

    def next_later(self) -> Instant | None:
        """Return the instant of the next work that is not due now, or None."""
        return self._heap[0][0] if self._heap else None

    def step(self, end_time: Instant | None = None) -> bool:
        """Run the next piece of work, moving the clock to it. Return False if none is scheduled up to `end_time`."""
        return self._run_exclusively(end_time, 1) == 1

    def run(self, end_time: Instant | None = None, *, steps_max: int | None = None) -> int:
        """Run all work due up to and including `end_time`, at most `steps_max` pieces; return how many ran.

        The clock stays at the last work that ran; it does not move to `end_time`.
        """
        with rare_garbage_collection():
            return self._run_exclusively(end_time, steps_max)

    def validate(self) -> None:
        """Check the invariants of the event loop between two pieces of work. Raises InvariantError."""
        invariant(all(entry[0] > self._now for entry in self._heap), "all work in the heap is later than now")
        invariant(not self._heap or self._heap[0][1] in self._scheduled_work, "the first in the heap is not cancelled")
        invariant(self.steps <= self._steps_limit, "the work of one instant does not exceed the limit")

    def _run_exclusively(self, end_time: Instant | None, steps_max: int | None) -> int:
        """Run due work like `run`. Raises InvariantError if called from within work."""
        invariant(not self._is_running, "the event loop is not run from within its own work")
        self._is_running = True
        try:
            return self._run_due_work(end_time, steps_max)
        finally:
            self._is_running = False

    def _run_due_work(self, end_time: Instant | None, steps_max: int | None) -> int:
        """Run due work up to `end_time`, at most `steps_max` pieces; return the number of pieces."""
        due_work, first_step = self._due_work, self.steps
        last_step = first_step + steps_max if steps_max is not None else sys.maxsize
        horizon = end_time if end_time is not None else sys.maxsize
        if self._now > horizon:
            return 0
        while self.steps < last_step and (due_work or self._advance(horizon)):
            steps_stop = min(last_step, self._steps_limit)
            while due_work and self.steps < steps_stop:
                self.steps += 1
                due_work.popleft()()
            if due_work and self.steps < last_step:
                self._raise_endless()
        return self.steps - first_step

    def _advance(self, horizon: Instant) -> bool:
        """Move the clock to the next instant up to the horizon, and its work to the queue. Return False without one."""
        if not self._heap or self._heap[0][0] > horizon:
            return False
        self.skip_to(self._heap[0][0])
        return True

    def _drop_cancelled(self) -> None:
        """Remove cancelled work from the front of the heap."""
        heap, scheduled_work = self._heap, self._scheduled_work
        while heap and heap[0][1] not in scheduled_work:
            heappop(heap)

    def _raise_endless(self) -> NoReturn:
        """Raise EndlessInstant with the present instant and the next work."""
        raise EndlessInstant(
            f"more than {self._work_per_instant_max:,} pieces of work ran at instant {self._now}, so the clock "
            f"does not advance; the next work is {self._due_work[0]!r}"
        )


class ReconcileTimer(Protocol):
    """Measures the duration of reconciles."""

    def begin(self) -> float:
        """Start to measure a reconcile; return the start time to pass to `end`."""

    def end(self, controller: str, began_at: float) -> None:
        """Record the duration of a controller's reconcile that began at `began_at`."""


class Pacer:
    """Delays the reconciles of controllers above the lowest rank as their throttle requires."""

    def __init__(self, kernel: Kernel, throttle: ReconcileThrottle | None) -> None:
        self._kernel = kernel
        self._throttle = throttle
        self._is_wake_up_scheduled = False

    @property
    def is_wake_up_scheduled(self) -> bool:
        """Whether a wake-up for the next allowed reconcile is scheduled in the event loop."""
        return self._is_wake_up_scheduled

    def may_reconcile(self, now: Instant, retry: Work) -> bool:
        """Report whether a reconcile may run now; if not, schedule a call of `retry` for when it may."""
        next_turn_at = now if self._throttle is None else self._throttle.next_turn()
        if next_turn_at <= now:
            return True
        if not self._is_wake_up_scheduled:
            self._is_wake_up_scheduled = True
            self._kernel.call_at(next_turn_at, lambda: self._wake(retry))
        return False

    def take(self, reconcile: Work) -> None:
        """Run a reconcile, and let the throttle measure it."""
        if self._throttle is None:
            reconcile()
        else:
            self._throttle.run_reconcile(reconcile)

    def _wake(self, retry: Work) -> None:
        self._is_wake_up_scheduled = False
        retry()
