"""Expected arrivals: resampled from the latest arrivals in contiguous stretches, each Workload with the gap after it.

Bursts and quiet hours are therefore preserved, and forks differ in the amount of new work. The run time of each arrival
is drawn as for existing Workloads.
"""

from collections.abc import Callable, Sequence
from heapq import nlargest
from itertools import pairwise
from math import isqrt, log
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.views.workload import workload_view
from batchyard.base import draw
from batchyard.base.instant import Duration
from batchyard.sim.forecasting.quota_only_state import QueueTrees, standalone_workload
from batchyard.sim.scenario import ScenarioStep
from batchyard.sim.state import State

# --- block bootstrap ---
#
# Block resampling of a history with correlated neighbours: contiguous stretches instead of single items.
#
# Runs of the same day resemble each other, and so do arrivals of the same hour. If items were drawn one by one, their
# errors would cancel out within a fork, and all forks would agree. In reality they add up. The mean length of a stretch
# is the square root of the history's length. Sources: D. N. Politis and J. P. Romano, The Stationary Bootstrap, 1994;
# D.
# B. Rubin, The Bayesian Bootstrap, 1981.


_CHANCES: Final = 1 << 52


def chance(seed: int, *names: str) -> float:
    """Return a number between 0 and 1, both excluded."""
    return (draw(seed, *names) + 0.5) / _CHANCES


class BlockBootstrap:
    """A random sequence of places in a history of `count` items: mostly the next place, sometimes any other."""

    __slots__ = ("_count", "_drawn", "_names", "_place", "_seed")

    def __init__(self, count: int, seed: int, *names: str) -> None:
        """`count` is at least 1; the seed and the names determine the sequence."""
        self._count, self._seed, self._names = count, seed, names
        self._place = self._drawn = 0

    def next(self) -> int:
        """Return the next place, from 0 on."""
        number = str(self._drawn)
        if not self._drawn or draw(self._seed, *self._names, "ends", number) % isqrt(self._count) == 0:
            self._place = draw(self._seed, *self._names, "begins", number) % self._count
        else:
            self._place = (self._place + 1) % self._count
        self._drawn += 1
        return self._place


def weights(count: int, seed: int, *names: str) -> list[float]:
    """Return the weights of a history's items in one fork: one for each stretch, 1 on average.

    Each fork thereby has its own version of the history. The forks differ as much as the history is uncertain.
    """
    length = isqrt(count) or 1
    of_stretch = [-log(chance(seed, *names, "weight", str(number))) for number in range(-(-count // length))]
    return [of_stretch[place // length] for place in range(count)]


#: The number of latest arrivals to draw from.
RECENT: Final = 400
#: The minimum of arrivals for a prediction.
_RECENT_MIN: Final = 5
#: The maximum of arrivals in a fork.
MOST: Final = 1000
NAME: Final = "expected"


class ArrivalModel:
    """The latest arrivals of some trees, and the arrivals that forks draw from them."""

    def __init__(self, state: State, queues: QueueTrees, trees: Sequence[str | None]) -> None:
        """Collect the latest Workloads whose queue is in one of these trees."""
        found = [obj for obj in state.of_kind(scheme.WORKLOAD) if queues.tree_of(workload_view(obj).queue) in trees]
        self._recent = nlargest(RECENT, found, lambda obj: (workload_view(obj).created, workload_view(obj).key))[::-1]
        born = [workload_view(obj).created for obj in self._recent]
        self._gaps = [after - before for before, after in pairwise([*born, state.at])]

    @property
    def are_expected(self) -> bool:
        """Whether there were enough arrivals for a prediction."""
        return len(self._recent) >= _RECENT_MIN and any(self._gaps)

    def steps(self, length_of: Callable[[Obj], Duration | None], until: Duration, seed: int) -> list[ScenarioStep]:
        """Return the arrivals in a fork of this seed."""
        steps: list[ScenarioStep] = []
        at: Duration = 0
        places = BlockBootstrap(max(1, len(self._recent)), seed, "arrivals")
        for number in range(MOST if self.are_expected else 0):
            place = places.next()
            at += self._gaps[place - 1]
            if at > until:
                break
            steps.append(ScenarioStep(at, [_made(number, self._recent[place], length_of(self._recent[place]))], ()))
        return steps


def _made(number: int, like: Obj, runtime: Duration | None) -> Obj:
    new = {field: value for field, value in standalone_workload(like, runtime).items() if field != "status"}
    return with_metadata(new, name=f"{NAME}-{number}", uid=None, resourceVersion=None, creationTimestamp=None)
