"""Virtual event loop: runs work in order of (instant, arrival), as fast as possible.

Later work is in a heap, work of the present instant in a FIFO queue. When the queue is empty, the clock moves to the
first instant of the heap, and all work of that instant moves to the queue. Work added for now goes to the end of the
queue. Only this and `skip_to` move the clock. Cancelled work stays in the heap until its instant, or until most of the
heap is cancelled. Each piece of work runs to completion and may add more. Work never runs inside a call that adds it.

An instant in which work adds work forever would never end. The loop counts the work of each instant and raises
EndlessInstant beyond a limit, naming the instant and the next work.
"""

import sys
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Final, NoReturn, Protocol

from batchyard.base import invariant
from batchyard.base.instant import Instant
from batchyard.base.memory import rare_collections
from batchyard.interfaces.controller import (
    Kernel,
    ReconcileThrottle,
    Ticket,
    Work,
)

WORK_PER_INSTANT_MAX: Final = 10_000_000
_UNWANTED_MAX: Final = 1_000  # the heap may hold this much cancelled work, plus as much as live work


class EndlessInstant(Exception):  # noqa: N818 - the name is the condition
    """More work in one instant than the limit: work keeps adding work, and the clock does not move."""


class VirtualEventLoop:
    """A discrete-event loop, whose clock jumps from one piece of work to the next."""

    __slots__ = ("_arrivals", "_heap", "_later", "_line", "_now", "_steps_bound", "_work_max", "_working", "steps")

    def __init__(self, start: Instant = 0, *, work_per_instant_max: int = WORK_PER_INSTANT_MAX) -> None:
        self._now = start
        self._heap: list[tuple[Instant, Ticket]] = []  # the first entry is not cancelled
        self._later: dict[Ticket, Work] = {}  # the work in the heap that is not cancelled
        self._line: deque[Work] = deque()
        self._arrivals = 0
        self._work_max = work_per_instant_max
        self._steps_bound = work_per_instant_max  # the limit of `steps` until the clock moves
        self._working = False
        self.steps = 0

    def now(self) -> Instant:
        """Return the present instant."""
        return self._now

    def call_at(self, when: Instant, work: Work) -> Ticket:
        """Run the work at an instant (now if that is past); equal instants in order of arrival."""
        self._arrivals += 1
        if when <= self._now:
            self._line.append(work)
        else:
            heappush(self._heap, (when, self._arrivals))
            self._later[self._arrivals] = work
        return self._arrivals

    def cancel(self, ticket: Ticket) -> None:
        """Cancel the work, unless its instant has come; the clock does not move for cancelled work."""
        if self._later.pop(ticket, None) is None:
            return
        if len(self._heap) > 2 * len(self._later) + _UNWANTED_MAX:
            self._heap = [entry for entry in self._heap if entry[1] in self._later]
            heapify(self._heap)
        self._drop_unwanted()

    def call_soon(self, work: Work) -> None:
        """Run the work at the present instant, after all that is due now."""
        self._line.append(work)

    def skip_to(self, instant: Instant) -> None:
        """Move the clock to an instant, unless that is past; all work due up to it becomes due now, in order."""
        if instant <= self._now:
            return
        self._now = instant
        self._steps_bound = self.steps + self._work_max
        heap = self._heap
        while heap and heap[0][0] <= instant:
            work = self._later.pop(heappop(heap)[1], None)
            if work is not None:
                self._line.append(work)
        self._drop_unwanted()

    def pending(self) -> int:
        """Return the number of pending pieces of work."""
        return len(self._later) + len(self._line)

    def next_instant(self) -> Instant | None:
        """Return the instant of the next work, or None."""
        if self._line:
            return self._now
        return self.next_later()

    def next_later(self) -> Instant | None:
        """Return the instant of the next work that is not due now, or None."""
        return self._heap[0][0] if self._heap else None

    def step(self, until: Instant | None = None) -> bool:
        """Run the next piece of work, moving the clock to it; False if there is none up to and including `until`."""
        return self._work_alone(until, 1) == 1

    def run(self, until: Instant | None = None, *, steps_max: int | None = None) -> int:
        """Run all work due up to and including `until`, at most `steps_max` pieces; return how many ran.

        The clock stays at the last work that ran; it does not move to `until`.
        """
        with rare_collections():
            return self._work_alone(until, steps_max)

    def validate(self) -> None:
        """Check the invariants between two pieces of work."""
        invariant(all(entry[0] > self._now for entry in self._heap), "what the heap holds is for later")
        invariant(not self._heap or self._heap[0][1] in self._later, "what the heap holds first is wanted")
        invariant(self.steps <= self._steps_bound, "the work of an instant is bounded")

    def _work_alone(self, until: Instant | None, steps_max: int | None) -> int:
        """Run the work like `run`; fail if called from within work."""
        invariant(not self._working, "work does not run its own event loop")
        self._working = True
        try:
            return self._work(until, steps_max)
        finally:
            self._working = False

    def _work(self, until: Instant | None, steps_max: int | None) -> int:
        """Run the work like `run`."""
        line, first = self._line, self.steps
        last = first + steps_max if steps_max is not None else sys.maxsize
        horizon = until if until is not None else sys.maxsize
        if self._now > horizon:
            return 0
        while self.steps < last and (line or self._advance(horizon)):
            stop = min(last, self._steps_bound)
            while line and self.steps < stop:
                self.steps += 1
                line.popleft()()
            if line and self.steps < last:
                self._refuse()
        return self.steps - first

    def _advance(self, horizon: Instant) -> bool:
        """Move the clock to the next instant up to the horizon, and its work to the queue; False if there is none."""
        if not self._heap or self._heap[0][0] > horizon:
            return False
        self.skip_to(self._heap[0][0])
        return True

    def _drop_unwanted(self) -> None:
        """Remove cancelled work from the front of the heap."""
        heap, later = self._heap, self._later
        while heap and heap[0][1] not in later:
            heappop(heap)

    def _refuse(self) -> NoReturn:
        """Raise EndlessInstant."""
        raise EndlessInstant(
            f"more than {self._work_max:,} pieces of work at instant {self._now}: time stands still; "
            f"next is {self._line[0]!r}"
        )


class ReconcileTimer(Protocol):
    """Measures the duration of reconciles."""

    def begin(self) -> float:
        """Start a measurement; return its start mark."""

    def end(self, controller: str, began: float) -> None:
        """End a measurement."""


class Pacer:
    """The pace of controllers above the lowest rank, and whether a later turn is scheduled."""

    def __init__(self, kernel: Kernel, pace: ReconcileThrottle | None) -> None:
        self._kernel = kernel
        self._pace = pace
        self._is_awaited = False

    @property
    def is_awaited(self) -> bool:
        """Whether the next turn is scheduled in the event loop."""
        return self._is_awaited

    def has_come(self, now: Instant, then: Work) -> bool:
        """Report whether the turn has come; if not, schedule `then`, which asks again, for that time."""
        turn = now if self._pace is None else self._pace.next_turn()
        if turn <= now:
            return True
        if not self._is_awaited:
            self._is_awaited = True
            self._kernel.call_at(turn, lambda: self._come(then))
        return False

    def take(self, look: Work) -> None:
        """Use the turn: run the reconcile."""
        if self._pace is None:
            look()
        else:
            self._pace.take(look)

    def _come(self, then: Work) -> None:
        self._is_awaited = False
        then()
