"""Virtual event loop, which runs scheduled callbacks in order of (instant, arrival), and pacing of reconciles.

Later callbacks are in a heap, callbacks of the present instant in a FIFO queue. When the queue is empty, the clock
moves to the first instant of the heap, and all callbacks of that instant move to the queue. A callback added for the
present instant goes to the end of the queue. A canceled callback stays in the heap until its instant, or until most of
the heap is canceled. Each callback runs to completion and may add others. None runs inside the call that adds it.

If callbacks keep adding callbacks for the same instant, the clock would never advance. So the loop counts the callbacks
of each instant, and raises EndlessInstant beyond a limit.
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
_CANCELED_WORK_MAX: Final = 1_000  # the heap may hold this much canceled work, plus as much as live work


class EndlessInstant(Exception):  # noqa: N818 - the name is the condition
    """Raised if too many callbacks run at one instant: they keep adding callbacks, and the clock does not advance."""


class VirtualEventLoop:
    """Discrete-event loop whose virtual clock jumps from one scheduled callback to the next."""

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

    def __init__(self, start_time: Instant = 0, *, work_per_instant_max: int = WORK_PER_INSTANT_MAX) -> None:
        self._now = start_time
        self._heap: list[tuple[Instant, Ticket]] = []  # the first entry is not canceled
        self._scheduled_work: dict[Ticket, Work] = {}  # the work in the heap that is not canceled
        self._due_work: deque[Work] = deque()
        self._arrivals = 0
        self._work_per_instant_max = work_per_instant_max
        self._steps_limit = work_per_instant_max  # the limit of `steps` until the clock moves
        self._is_running = False
        self.steps = 0

    def now(self) -> Instant:
        """Return the present time of the virtual clock."""
        return self._now

    def call_at(self, instant: Instant, work: Work) -> Ticket:
        """Schedule a callback for an instant (now if past); return a ticket with which it can be canceled."""
        self._arrivals += 1
        if instant <= self._now:
            self._due_work.append(work)
        else:
            heappush(self._heap, (instant, self._arrivals))
            self._scheduled_work[self._arrivals] = work
        return self._arrivals

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a callback that is not due yet, so that the clock does not advance for it; otherwise do nothing."""
        if self._scheduled_work.pop(ticket, None) is None:
            return
        if len(self._heap) > 2 * len(self._scheduled_work) + _CANCELED_WORK_MAX:
            self._heap = [entry for entry in self._heap if entry[1] in self._scheduled_work]
            heapify(self._heap)
        self._drop_canceled_work()

    def call_soon(self, work: Work) -> None:
        """Schedule a callback for the present instant, after all callbacks that are due now."""
        self._due_work.append(work)

    def skip_to(self, instant: Instant) -> None:
        """Move the clock forward; all callbacks scheduled until this instant become due now, in order."""
        if instant <= self._now:
            return
        self._now = instant
        self._steps_limit = self.steps + self._work_per_instant_max
        work_heap = self._heap
        while work_heap and work_heap[0][0] <= instant:
            work = self._scheduled_work.pop(heappop(work_heap)[1], None)
            if work is not None:
                self._due_work.append(work)
        self._drop_canceled_work()

    def pending_count(self) -> int:
        """Return the number of callbacks that are scheduled and not canceled."""
        return len(self._scheduled_work) + len(self._due_work)

    def next_instant(self) -> Instant | None:
        """Return the instant of the next scheduled callback; None if none is scheduled."""
        if self._due_work:
            return self._now
        return self.next_later()

    def next_later(self) -> Instant | None:
        """Return the instant of the next callback that is not due yet; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def step(self, end_time: Instant | None = None) -> bool:
        """Move the clock to the next callback and run it; return False if none is due up to `end_time`."""
        return self._run_exclusively(end_time, 1) == 1

    def run(self, end_time: Instant | None = None, *, steps_max: int | None = None) -> int:
        """Run the callbacks due up to and including `end_time`, at most `steps_max`; return how many ran.

        The clock stays at the instant of the last callback; it does not move to `end_time`.
        """
        with rare_garbage_collection():
            return self._run_exclusively(end_time, steps_max)

    def validate(self) -> None:
        """Check the invariants of the event loop between two callbacks; raise InvariantError if one is violated."""
        invariant(all(entry[0] > self._now for entry in self._heap), "all work in the heap is later than now")
        invariant(not self._heap or self._heap[0][1] in self._scheduled_work, "the first in the heap is not canceled")
        invariant(self.steps <= self._steps_limit, "the work of one instant does not exceed the limit")

    def _run_exclusively(self, end_time: Instant | None, steps_max: int | None) -> int:
        invariant(not self._is_running, "the event loop is not run from within its own work")
        self._is_running = True
        try:
            return self._run_due_work(end_time, steps_max)
        finally:
            self._is_running = False

    def _run_due_work(self, end_time: Instant | None, steps_max: int | None) -> int:
        due_work, first_step_number = self._due_work, self.steps
        last_step_number = first_step_number + steps_max if steps_max is not None else sys.maxsize
        end_instant = end_time if end_time is not None else sys.maxsize
        if self._now > end_instant:
            return 0
        while self.steps < last_step_number and (due_work or self._advance_clock(end_instant)):
            stop_step_number = min(last_step_number, self._steps_limit)
            while due_work and self.steps < stop_step_number:
                self.steps += 1
                due_work.popleft()()
            if due_work and self.steps < last_step_number:
                self._raise_endless_instant()
        return self.steps - first_step_number

    def _advance_clock(self, end_instant: Instant) -> bool:
        if not self._heap or self._heap[0][0] > end_instant:
            return False
        self.skip_to(self._heap[0][0])
        return True

    def _drop_canceled_work(self) -> None:
        work_heap, scheduled_work = self._heap, self._scheduled_work
        while work_heap and work_heap[0][1] not in scheduled_work:
            heappop(work_heap)

    def _raise_endless_instant(self) -> NoReturn:
        next_work = self._due_work[0]
        name = getattr(getattr(next_work, "func", next_work), "__qualname__", type(next_work).__name__)
        raise EndlessInstant(
            f"the clock does not advance: more than {self._work_per_instant_max:,} callbacks ran at one time, "
            f"and the next is {name}; this is a bug in batchyard: report it with the input"
        )


class ReconcileTimer(Protocol):
    """Interface of a meter that measures how long reconciles take."""

    def begin(self) -> float:
        """Return the start time of a reconcile, to be passed to `end`."""

    def end(self, controller: str, began_at: float) -> None:
        """Record the duration of a controller's reconcile that started at `began_at`."""


class ReconcilePacer:
    """Delays the reconciles of low-priority controllers (rank above the lowest) until a throttle allows them."""

    def __init__(self, kernel: Kernel, throttle: ReconcileThrottle | None) -> None:
        self._kernel = kernel
        self._throttle = throttle
        self._is_wake_up_scheduled = False

    @property
    def is_wake_up_scheduled(self) -> bool:
        """Whether the event loop will retry a delayed reconcile when the throttle allows it."""
        return self._is_wake_up_scheduled

    def may_reconcile(self, now: Instant, retry: Work) -> bool:
        """Return whether a reconcile may run now. If not, schedule `retry`, unless a retry is scheduled already."""
        next_turn_at = now if self._throttle is None else self._throttle.next_turn()
        if next_turn_at <= now:
            return True
        if not self._is_wake_up_scheduled:
            self._is_wake_up_scheduled = True
            self._kernel.call_at(next_turn_at, lambda: self._wake_up(retry))
        return False

    def run_reconcile(self, reconcile: Work) -> None:
        """Run a reconcile, through the throttle if there is one, which measures the duration."""
        if self._throttle is None:
            reconcile()
        else:
            self._throttle.run_reconcile(reconcile)

    def _wake_up(self, retry: Work) -> None:
        self._is_wake_up_scheduled = False
        retry()
