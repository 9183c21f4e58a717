"""Who will come: as those came lately, in stretches of the last that came, each with the gap after it.

So bursts come as they did, quiet hours too, and forks differ in how much comes. How long each runs is drawn as for
those that are there.
"""

from collections.abc import Callable, Sequence
from heapq import nlargest
from itertools import pairwise
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Duration
from batchyard.sim.lean import Queues, alone
from batchyard.sim.scenario import Step
from batchyard.sim.state import State
from batchyard.sim.stretches import Stretches

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
