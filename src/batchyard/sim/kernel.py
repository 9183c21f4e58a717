"""Virtual time: a heap of work, done in order of (instant, arrival).

Two queues hold what is to be done. The heap holds what is due later; the line holds what was asked for at the present
instant. Whatever the heap holds for the present instant was asked for before the clock came here, so it is older than
anything in the line: the heap goes first, then the line, then the clock moves to the heap's next instant. Nothing
else moves it. Work is done one at a time, to its end, and may ask for more work; it is never done from within a call.

An instant in which work begets work for ever would never end. The kernel counts the work of each instant and raises
EndlessInstant beyond a bound, naming the instant and the next work.
"""

import sys
from collections import deque
from heapq import heappop, heappush
from typing import Final, NoReturn

from batchyard.base.check import invariant
from batchyard.base.instant import Instant
from batchyard.ports.kernel import Work

WORK_PER_INSTANT_MAX: Final = 10_000_000


class EndlessInstant(RuntimeError):  # noqa: N818 - says what happened
    """More work in one instant than the bound allows: work begets work and time stands still."""


class VirtualKernel:
    """A clock that jumps from one piece of work to the next."""

    __slots__ = ("_arrivals", "_heap", "_line", "_now", "_steps_bound", "_work_max", "steps")

    def __init__(self, start: Instant = 0, *, work_per_instant_max: int = WORK_PER_INSTANT_MAX) -> None:
        self._now = start
        self._heap: list[tuple[Instant, int, Work]] = []
        self._line: deque[Work] = deque()
        self._arrivals = 0
        self._work_max = work_per_instant_max
        self._steps_bound = work_per_instant_max  # `steps` may not pass it before the clock moves
        self.steps = 0

    def now(self) -> Instant:
        """The present instant."""
        return self._now

    def call_at(self, when: Instant, work: Work) -> None:
        """Do the work at an instant (now, if that is past); equal instants in order of arrival."""
        if when <= self._now:
            self._line.append(work)
            return
        self._arrivals += 1
        heappush(self._heap, (when, self._arrivals, work))

    def call_soon(self, work: Work) -> None:
        """Do the work at the present instant, after all that is due now."""
        self._line.append(work)

    def pending(self) -> int:
        """How much work waits."""
        return len(self._heap) + len(self._line)

    def next_instant(self) -> Instant | None:
        """When the next work is due, or None if there is none."""
        if self._line:
            return self._now
        return self._heap[0][0] if self._heap else None

    def step(self) -> bool:
        """Do the next piece of work, moving the clock to it; False if there is none."""
        return self.run(steps_max=1) == 1

    def run(self, until: Instant | None = None, *, steps_max: int | None = None) -> int:
        """Do all work due up to and including `until`, at most `steps_max` of it; how much was done.

        The clock stays at the last work done: it does not move on to `until`.
        """
        heap, line, first = self._heap, self._line, self.steps
        horizon = until if until is not None else sys.maxsize
        last = first + steps_max if steps_max is not None else None
        while self.steps != last:
            if line and not (heap and heap[0][0] <= self._now):
                if self._now > horizon:
                    break
                work = line.popleft()
            elif heap and heap[0][0] <= horizon:
                when, _, work = heappop(heap)
                if when != self._now:
                    self._now, self._steps_bound = when, self.steps + self._work_max
            else:
                break
            if self.steps == self._steps_bound:
                self._refuse(work)
            self.steps += 1
            work()
        return self.steps - first

    def validate(self) -> None:
        """Check what must hold between two pieces of work."""
        invariant(all(entry[0] >= self._now for entry in self._heap), "no work is due in the past")
        invariant(self.steps <= self._steps_bound, "the work of an instant is bounded")

    def _refuse(self, work: Work) -> NoReturn:
        """Put the work back and say that time stands still."""
        self._line.appendleft(work)
        raise EndlessInstant(
            f"more than {self._work_max:,} pieces of work at instant {self._now}: time stands still; next is {work!r}"
        )
