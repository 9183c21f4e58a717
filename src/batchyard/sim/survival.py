"""How long work lasts, estimated from work that has ended and work that still goes on: Kaplan and Meier's estimate.

What still goes on counts for as long as it has: it is known to last longer. Beyond what anybody has seen to end, work
that has lasted t lasts to k times t with probability 1/k, as is true of work of which no more is known than its age.
Source: E. L. Kaplan and P. Meier, Nonparametric Estimation from Incomplete Observations, 1958.
"""

from bisect import bisect_right
from collections.abc import Iterable

from batchyard.base.instant import Duration


class Survival:
    """See the module."""

    __slots__ = ("_ends", "_left", "ended")

    def __init__(self, ended: Iterable[Duration], going_on: Iterable[Duration] = ()) -> None:
        """From the durations of what has ended, and the ages of what goes on."""
        deaths: dict[Duration, int] = {}
        for duration in ended:
            deaths[duration] = deaths.get(duration, 0) + 1
        ages = sorted(going_on)
        #: How many ends were seen.
        self.ended = sum(deaths.values())
        self._ends = sorted(deaths)
        self._left: list[float] = []  # the share that lasts longer than each of the ends
        at_risk, left, gone = self.ended + len(ages), 1.0, 0
        for end in self._ends:
            younger = bisect_right(ages, end - 1)
            left *= 1 - deaths[end] / (at_risk - gone - younger)
            gone += deaths[end]
            self._left.append(left)

    def left_after(self, age: Duration) -> float:
        """The share that lasts longer than so long."""
        place = bisect_right(self._ends, age)
        return self._left[place - 1] if place else 1.0

    def draw(self, chance: float, age: Duration = 0) -> Duration:
        """How long something lasts that has lasted so long: longer than that with the share `chance` of all, 0 < c < 1.

        The whole duration, its age included.
        """
        known = self.left_after(age)
        wanted = known * chance
        first = bisect_right(self._ends, age)
        for place in range(first, len(self._ends)):
            if self._left[place] <= wanted:
                return self._ends[place]
        oldest = max(age, self._ends[-1] if self._ends else 0, 1)
        least = self._left[-1] if first < len(self._ends) else known
        share = 1.0 if not least else min(1.0, wanted / least)
        return round(oldest / (share if least else chance))
