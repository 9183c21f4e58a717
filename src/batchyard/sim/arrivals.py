"""Who will come: as those came lately, each gap and each Workload drawn from the last that came.

So bursts come as they did, and queues, shapes and priorities in the proportion in which they did. How long each runs is
drawn as for those that are there.
"""

from collections.abc import Sequence
from heapq import nlargest
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.views.workload import workload_view
from batchyard.base.chance import draw
from batchyard.base.instant import Duration
from batchyard.sim.lean import Queues, alone
from batchyard.sim.runtimes import Runtimes, chance
from batchyard.sim.scenario import Step
from batchyard.sim.state import State

#: From so many that came last it is drawn.
RECENT: Final = 100
#: Fewer say nothing of who will come.
_RECENT_MIN: Final = 5
#: So many come at most.
MOST: Final = 300
NAME: Final = "expected"


class Arrivals:
    """See the module."""

    def __init__(self, state: State, queues: Queues, trees: Sequence[str | None]) -> None:
        """Of those that queue in one of these trees."""
        found = [obj for obj in state.of_kind(scheme.WORKLOAD) if queues.tree_of(workload_view(obj).queue) in trees]
        self._recent = nlargest(RECENT, found, lambda obj: (workload_view(obj).created, workload_view(obj).key))[::-1]
        born = [workload_view(obj).created for obj in self._recent]
        self._gaps = [after - before for before, after in zip(born, [*born[1:], state.at], strict=True)]

    @property
    def are_expected(self) -> bool:
        """Whether enough came to tell who will."""
        return len(self._recent) >= _RECENT_MIN and any(self._gaps)

    def steps(self, runtimes: Runtimes, until: Duration, seed: int) -> list[Step]:
        """Who comes in a run of this seed."""
        steps: list[Step] = []
        at: Duration = 0
        for number in range(MOST if self.are_expected else 0):
            at += self._gaps[draw(seed, "gap", str(number)) % len(self._gaps)]
            if at > until:
                break
            steps.append(Step(at, [self._made(number, runtimes, seed)], ()))
        return steps

    def _made(self, number: int, runtimes: Runtimes, seed: int) -> Obj:
        like = self._recent[draw(seed, "arrival", str(number)) % len(self._recent)]
        runtime = runtimes.estimate(like).draw(chance(seed, "runtime of arrival", str(number)), 0)
        new = {field: value for field, value in alone(like, runtime).items() if field != "status"}
        return with_metadata(new, name=f"{NAME}-{number}", uid=None, resourceVersion=None, creationTimestamp=None)
