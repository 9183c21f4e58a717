"""Kaplan-Meier estimate of durations, from work that has ended and work that is still running.

Running work is censored at its age: its duration is known to be longer. Beyond the last observed end, work of age t
reaches k times t with probability 1/k, as for work of which only the age is known. The exponent of 1/k may differ,
according to the work that ran past all observed ends (`power`).

Source: E. L. Kaplan and P. Meier, Nonparametric Estimation from Incomplete Observations, 1958.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate, repeat
from math import exp, log
from typing import Final

from batchyard.base.instant import HOUR, Duration

#: Longer than any forecast.
_LONGEST: Final = 10 * 365 * 24 * HOUR
_LOG_MAX: Final = 40.0
_POWER_MIN: Final = 0.01


class SurvivalFunction:
    """The survival function of durations, as its steps at the observed ends."""

    __slots__ = ("_beyond", "_ends", "_left", "ended")

    def __init__(
        self,
        ended: Iterable[Duration],
        going_on: Iterable[Duration] = (),
        weights: tuple[Iterable[float], Iterable[float]] | None = None,
    ) -> None:
        """Estimate from the durations of ended work, the ages of running work, and the weights of both."""
        deaths: dict[Duration, float] = {}
        of_ended, of_going_on = (repeat(1.0), repeat(1.0)) if weights is None else weights
        #: The number of observed ends.
        self.ended = 0
        for duration, weight in zip(ended, of_ended, strict=False):
            deaths[duration] = deaths.get(duration, 0.0) + weight
            self.ended += 1
        censored = sorted(zip(going_on, of_going_on, strict=False))
        ages, lost = [age for age, _ in censored], [0.0, *accumulate(weight for _, weight in censored)]
        self._ends = sorted(deaths)
        self._left: list[float] = []  #  the share that lasts longer than each of the ends
        at_risk, left = lost[-1] + sum(deaths.values()), 1.0
        gone = 0.0
        for end in self._ends:
            still = at_risk - gone - lost[bisect_left(ages, end)]
            gone += deaths[end]
            # After the last end the share is exactly 0, regardless of rounding errors.
            left *= 1 - deaths[end] / still if still > deaths[end] * (1 + 1e-9) else 0.0
            self._left.append(left)
        last = max(1, self._ends[-1]) if self._ends else 1
        self._beyond = sum(weight * log(age / last) for age, weight in censored if age > last) if self._ends else 0.0

    def power(self, *chances: float) -> float:
        """Return the exponent of the tail in one fork, from random numbers between 0 and 1.

        No end in the tail was observed, so that the exponent is uncertain, and the same throughout a fork. It is drawn
        from the
        posterior of a gamma prior of mean one. The prior weighs as much as one end for each random number, and the
        posterior
        follows from the ages beyond the last end.
        """
        return max(-sum(map(log, chances)) / (len(chances) + self._beyond), _POWER_MIN)

    def left_after(self, age: Duration) -> float:
        """Return the share that lasts longer than `age`."""
        place = bisect_right(self._ends, age)
        return self._left[place - 1] if place else 1.0

    def longer_than(self, duration: Duration) -> tuple[float, float]:
        """Return the shares that last longer than `duration`, and at least `duration`."""
        place = bisect_left(self._ends, duration)
        return self.left_after(duration), self._left[place - 1] if place else 1.0

    def draw(self, chance: float, age: Duration = 0, power: float = 1.0) -> Duration:
        """Return the total duration that a share `chance` (0 < c < 1) of everything of age `age` exceeds.

        The duration includes the age.
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
