"""Drawing from a history whose neighbours are alike: in stretches, not one by one.

Runs of one day resemble each other, and so do those who come in one hour. Drawn one by one their errors would cancel
out within a fork, and all forks would tell the same; in reality they add up. A stretch is as long, on average, as the
root of the history. Sources: D. N. Politis and J. P. Romano, The Stationary Bootstrap, 1994; D. B. Rubin, The Bayesian
Bootstrap, 1981.
"""

from math import isqrt, log
from typing import Final

from batchyard.base.chance import draw

_CHANCES: Final = 1 << 52


def chance(seed: int, *names: str) -> float:
    """A number between 0 and 1, neither included."""
    return (draw(seed, *names) + 0.5) / _CHANCES


class Stretches:
    """Places in a history of `count`, one after the other: mostly the next, now and then any other."""

    __slots__ = ("_count", "_drawn", "_names", "_place", "_seed")

    def __init__(self, count: int, seed: int, *names: str) -> None:
        """`count` is at least 1; a seed and names fix all that is drawn."""
        self._count, self._seed, self._names = count, seed, names
        self._place = self._drawn = 0

    def next(self) -> int:
        """The next place, from 0 on."""
        number = str(self._drawn)
        if not self._drawn or draw(self._seed, *self._names, "ends", number) % isqrt(self._count) == 0:
            self._place = draw(self._seed, *self._names, "begins", number) % self._count
        else:
            self._place = (self._place + 1) % self._count
        self._drawn += 1
        return self._place


def weights(count: int, seed: int, *names: str) -> list[float]:
    """How much each of a history counts in one fork: one weight for each stretch of it, 1 on average.

    So a fork has its own idea of what history tells, as far from that of others as history allows.
    """
    length = isqrt(count) or 1
    of_stretch = [-log(chance(seed, *names, "weight", str(number))) for number in range(-(-count // length))]
    return [of_stretch[place // length] for place in range(count)]
