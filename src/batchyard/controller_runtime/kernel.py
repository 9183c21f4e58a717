"""Virtual time: work in order of (instant, arrival), done as fast as it can be done.

Work for later lies in a heap, work for the present instant in a line. When the line is empty the clock moves to the
heap's first instant, and all work of that instant moves from the heap to the line; whatever is asked for now goes
behind it. Nothing else moves the clock, but who skips some time. What was cancelled stays in the heap until its turn
comes, or until most of the heap is such. Work is done one piece at a time, to its end, and may ask for more; it is
never done from within a call.

An instant in which work begets work for ever would never end. The kernel counts the work of each instant and raises
EndlessInstant beyond a bound, naming the instant and the next work.
"""

import sys
from collections import deque
from heapq import heapify, heappop, heappush
from typing import Final, NoReturn

from batchyard.base.gc_tuning import rare_collections
from batchyard.base.instant import Instant
from batchyard.base.invariants import invariant
from batchyard.interfaces.controller import Ticket, Work

WORK_PER_INSTANT_MAX: Final = 10_000_000
_UNWANTED_MAX: Final = 1_000  # so much of the heap, and as much as is wanted, may be cancelled work


class EndlessInstant(Exception):  # noqa: N818 - says what happened
    """More work in one instant than the bound allows: work begets work and time stands still."""


class VirtualKernel:
    """A clock that jumps from one piece of work to the next."""

    __slots__ = ("_arrivals", "_heap", "_later", "_line", "_now", "_steps_bound", "_work_max", "_working", "steps")

    def __init__(self, start: Instant = 0, *, work_per_instant_max: int = WORK_PER_INSTANT_MAX) -> None:
        self._now = start
        self._heap: list[tuple[Instant, Ticket]] = []  # whose first is wanted
        self._later: dict[Ticket, Work] = {}  # what is wanted of the heap
        self._line: deque[Work] = deque()
        self._arrivals = 0
        self._work_max = work_per_instant_max
        self._steps_bound = work_per_instant_max  # `steps` may not pass it before the clock moves
        self._working = False
        self.steps = 0

    def now(self) -> Instant:
        """The present instant."""
        return self._now

    def call_at(self, when: Instant, work: Work) -> Ticket:
        """Do the work at an instant (now, if that is past); equal instants in order of arrival."""
        self._arrivals += 1
        if when <= self._now:
            self._line.append(work)
        else:
            heappush(self._heap, (when, self._arrivals))
            self._later[self._arrivals] = work
        return self._arrivals

    def cancel(self, ticket: Ticket) -> None:
        """Do that work no more, unless its instant has come; no time passes for the sake of it."""
        if self._later.pop(ticket, None) is None:
            return
        if len(self._heap) > 2 * len(self._later) + _UNWANTED_MAX:
            self._heap = [entry for entry in self._heap if entry[1] in self._later]
            heapify(self._heap)
        self._drop_unwanted()

    def call_soon(self, work: Work) -> None:
        """Do the work at the present instant, after all that is due now."""
        self._line.append(work)

    def skip_to(self, instant: Instant) -> None:
        """Let it be that instant, if it is yet to come; all that was due before is due then, in its order."""
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
        """How much work waits."""
        return len(self._later) + len(self._line)

    def next_instant(self) -> Instant | None:
        """When the next work is due, or None if there is none."""
        if self._line:
            return self._now
        return self.next_later()

    def next_later(self) -> Instant | None:
        """When the next work is due that is not due now, or None if there is none."""
        return self._heap[0][0] if self._heap else None

    def step(self, until: Instant | None = None) -> bool:
        """Do the next piece of work, moving the clock to it; False if there is none up to and including `until`."""
        return self._work_alone(until, 1) == 1

    def run(self, until: Instant | None = None, *, steps_max: int | None = None) -> int:
        """Do all work due up to and including `until`, at most `steps_max` of it; how much was done.

        The clock stays at the last work done: it does not move on to `until`.
        """
        with rare_collections():
            return self._work_alone(until, steps_max)

    def validate(self) -> None:
        """Check what must hold between two pieces of work."""
        invariant(all(entry[0] > self._now for entry in self._heap), "what the heap holds is for later")
        invariant(not self._heap or self._heap[0][1] in self._later, "what the heap holds first is wanted")
        invariant(self.steps <= self._steps_bound, "the work of an instant is bounded")

    def _work_alone(self, until: Instant | None, steps_max: int | None) -> int:
        """Do the work, as `run` says, but never from within work."""
        invariant(not self._working, "work does not run the kernel that runs it")
        self._working = True
        try:
            return self._work(until, steps_max)
        finally:
            self._working = False

    def _work(self, until: Instant | None, steps_max: int | None) -> int:
        """Do the work, as `run` says."""
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
        """Move the clock to the next instant up to the horizon, and its work to the line; False if there is none."""
        if not self._heap or self._heap[0][0] > horizon:
            return False
        self.skip_to(self._heap[0][0])
        return True

    def _drop_unwanted(self) -> None:
        """Let the heap begin with what is wanted."""
        heap, later = self._heap, self._later
        while heap and heap[0][1] not in later:
            heappop(heap)

    def _refuse(self) -> NoReturn:
        """Say that time stands still."""
        raise EndlessInstant(
            f"more than {self._work_max:,} pieces of work at instant {self._now}: time stands still; "
            f"next is {self._line[0]!r}"
        )
