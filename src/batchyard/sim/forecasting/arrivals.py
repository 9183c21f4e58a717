"""Who will come: as those came lately, in stretches of the last that came, each with the gap after it.

So bursts come as they did, quiet hours too, and forks differ in how much comes. How long each runs is drawn as for
those that are there.
"""

from collections.abc import Callable, Sequence
from heapq import nlargest
from itertools import pairwise
from math import isqrt, log
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Duration
from batchyard.base.seeded_draws import draw
from batchyard.sim.forecasting.quota_only_state import Queues, alone
from batchyard.sim.scenario import Step
from batchyard.sim.state import State

# --- stretches ---
#
# Drawing from a history whose neighbours are alike: in stretches, not one by one.
#
# Runs of one day resemble each other, and so do those who come in one hour. Drawn one by one their errors would cancel
# out within a fork, and all forks would tell the same; in reality they add up. A stretch is as long, on average, as the
# root of the history. Sources: D. N. Politis and J. P. Romano, The Stationary Bootstrap, 1994; D. B. Rubin, The
# Bayesian
# Bootstrap, 1981.


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


#: From so many that came last it is drawn.
RECENT: Final = 400
#: Fewer say nothing of who will come.
_RECENT_MIN: Final = 5
#: So many come at most.
MOST: Final = 1000
NAME: Final = "expected"


class Arrivals:
    """See the module."""

    def __init__(self, state: State, queues: Queues, trees: Sequence[str | None]) -> None:
        """Of those that queue in one of these trees."""
        found = [obj for obj in state.of_kind(scheme.WORKLOAD) if queues.tree_of(workload_view(obj).queue) in trees]
        self._recent = nlargest(RECENT, found, lambda obj: (workload_view(obj).created, workload_view(obj).key))[::-1]
        born = [workload_view(obj).created for obj in self._recent]
        self._gaps = [after - before for before, after in pairwise([*born, state.at])]

    @property
    def are_expected(self) -> bool:
        """Whether enough came to tell who will."""
        return len(self._recent) >= _RECENT_MIN and any(self._gaps)

    def steps(self, length_of: Callable[[Obj], Duration | None], until: Duration, seed: int) -> list[Step]:
        """Who comes in a run of this seed."""
        steps: list[Step] = []
        at: Duration = 0
        places = Stretches(max(1, len(self._recent)), seed, "arrivals")
        for number in range(MOST if self.are_expected else 0):
            place = places.next()
            at += self._gaps[place - 1]
            if at > until:
                break
            steps.append(Step(at, [_made(number, self._recent[place], length_of(self._recent[place]))], ()))
        return steps


def _made(number: int, like: Obj, runtime: Duration | None) -> Obj:
    new = {field: value for field, value in alone(like, runtime).items() if field != "status"}
    return with_metadata(new, name=f"{NAME}-{number}", uid=None, resourceVersion=None, creationTimestamp=None)
