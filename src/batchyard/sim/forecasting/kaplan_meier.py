"""How long work lasts, estimated from work that has ended and work that still goes on: Kaplan and Meier's estimate.

What still goes on counts for as long as it has: it is known to last longer. Beyond what anybody has seen to end, work
that has lasted t lasts to k times t with probability 1/k, as is true of work of which no more is known than its age; or
with 1/k to some power, where those that went on beyond all ends say that they last (`power`).
Source: E. L. Kaplan and P. Meier, Nonparametric Estimation from Incomplete Observations, 1958.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate, repeat
from math import exp, log
from typing import Final

from batchyard.base.instant import HOUR, Duration

#: Longer than anybody looks ahead.
_LONGEST: Final = 10 * 365 * 24 * HOUR
_LOG_MAX: Final = 40.0
_POWER_MIN: Final = 0.01


class Survival:
    """See the module."""

    __slots__ = ("_beyond", "_ends", "_left", "ended")

    def __init__(
        self,
        ended: Iterable[Duration],
        going_on: Iterable[Duration] = (),
        weights: tuple[Iterable[float], Iterable[float]] | None = None,
    ) -> None:
        """From the durations of what has ended, the ages of what goes on, and how much each of both counts."""
        deaths: dict[Duration, float] = {}
        of_ended, of_going_on = (repeat(1.0), repeat(1.0)) if weights is None else weights
        #: How many ends were seen.
        self.ended = 0
        for duration, weight in zip(ended, of_ended, strict=False):
            deaths[duration] = deaths.get(duration, 0.0) + weight
            self.ended += 1
        censored = sorted(zip(going_on, of_going_on, strict=False))
        ages, lost = [age for age, _ in censored], [0.0, *accumulate(weight for _, weight in censored)]
        self._ends = sorted(deaths)
        self._left: list[float] = []  # the share that lasts longer than each of the ends
        at_risk, left = lost[-1] + sum(deaths.values()), 1.0
        gone = 0.0
        for end in self._ends:
            still = at_risk - gone - lost[bisect_left(ages, end)]
            gone += deaths[end]
            # What is left after the last of all is nothing, however sums are rounded.
            left *= 1 - deaths[end] / still if still > deaths[end] * (1 + 1e-9) else 0.0
            self._left.append(left)
        last = max(1, self._ends[-1]) if self._ends else 1
        self._beyond = sum(weight * log(age / last) for age, weight in censored if age > last) if self._ends else 0.0

    def power(self, *chances: float) -> float:
        """How fast what is beyond all ends ends, in one fork, of chances between 0 and 1.

        Nobody has seen such an end, so that it is quite uncertain, and for all of one fork the same: drawn from what is
        left of a gamma prior of mean one, worth as many ends as there are chances, after all that went on for so long.
        """
        return max(-sum(map(log, chances)) / (len(chances) + self._beyond), _POWER_MIN)

    def left_after(self, age: Duration) -> float:
        """The share that lasts longer than so long."""
        place = bisect_right(self._ends, age)
        return self._left[place - 1] if place else 1.0

    def longer_than(self, duration: Duration) -> tuple[float, float]:
        """The shares that last longer than so long, and at least so long."""
        place = bisect_left(self._ends, duration)
        return self.left_after(duration), self._left[place - 1] if place else 1.0

    def draw(self, chance: float, age: Duration = 0, power: float = 1.0) -> Duration:
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
        share = min(1.0, wanted / least) if least else chance
        return round(min(oldest * exp(min(-log(share) / power, _LOG_MAX)), max(oldest, _LONGEST)))
