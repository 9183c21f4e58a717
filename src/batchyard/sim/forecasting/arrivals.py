"""Expected arrivals in a forecast: new Workloads resemble the latest ones, which are drawn at random in blocks.

Blocks preserve bursts and quiet hours, so that forks differ in the amount of new work. The run time of each arrival is
drawn as for existing Workloads.
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
from batchyard.base.primitives import draw_integer
from batchyard.sim.forecasting.quota_only_state import QueueTrees, standalone_workload
from batchyard.sim.scenario import ScenarioStep
from batchyard.sim.state import State

# Resampling of a history in contiguous blocks instead of single items, because neighboring items are correlated.
#
# Runs of the same day resemble each other, and so do arrivals of the same hour. If items were drawn one by one, their
# errors would cancel out within a fork, and all forks would agree. In reality these errors add up. The mean length of a
# block is the square root of the history's length. Sources: D. N. Politis and J. P. Romano, The Stationary Bootstrap,
# 1994; D. B. Rubin, The Bayesian Bootstrap, 1981.


_FRACTION_STEPS: Final = 1 << 52


def random_fraction(seed: int, *names: str) -> float:
    """Return a reproducible random number between 0 and 1 (both excluded), which depends on a seed and some names."""
    return (draw_integer(seed, *names) + 0.5) / _FRACTION_STEPS


class BlockBootstrap:
    """A random walk through a history that is resampled in blocks: usually the next index, sometimes a random one."""

    __slots__ = ("_count", "_draw_count", "_names", "_position", "_seed")

    def __init__(self, count: int, seed: int, *names: str) -> None:
        """Start a walk through a history of `count` (at least 1) entries; the seed and names determine its steps."""
        self._count, self._seed, self._names = count, seed, names
        self._position = self._draw_count = 0

    def next_index(self) -> int:
        """Advance the random walk; return its next index, from 0 to the length of the history minus 1."""
        draw_number = str(self._draw_count)
        if (
            not self._draw_count
            or draw_integer(self._seed, *self._names, "ends", draw_number) % isqrt(self._count) == 0
        ):
            self._position = draw_integer(self._seed, *self._names, "begins", draw_number) % self._count
        else:
            self._position = (self._position + 1) % self._count
        self._draw_count += 1
        return self._position


def random_weights(count: int, seed: int, *names: str) -> list[float]:
    """Return a random weight, 1 on average, for each of the `count` past arrivals from which a forecast samples.

    Consecutive arrivals in blocks of about sqrt(count) have equal weights. Each simulation of a forecast uses other
    weights and thereby its own version of the past.
    """
    block_length = isqrt(count) or 1
    weights = [-log(random_fraction(seed, *names, "weight", str(index))) for index in range(-(-count // block_length))]
    return [weights[position // block_length] for position in range(count)]


#: The number of latest arrivals that a fork draws from.
RECENT_MAX: Final = 400
#: The minimum number of arrivals for a prediction.
ARRIVALS_MIN: Final = 5
#: The maximum number of arrivals in a fork.
ARRIVALS_MAX: Final = 1000
ARRIVAL_NAME: Final = "expected"


class ArrivalModel:
    """The latest Workloads of some cohort trees, from which forecasts draw future Workloads."""

    def __init__(self, state: State, queues: QueueTrees, trees: Sequence[str | None]) -> None:
        """Collect the latest Workloads whose ClusterQueue is in one of the cohort trees `trees`."""
        arrivals = [obj for obj in state.of_kind(scheme.WORKLOAD) if queues.tree_of(workload_view(obj).queue) in trees]
        self._recent_workloads = nlargest(
            RECENT_MAX, arrivals, lambda obj: (workload_view(obj).created, workload_view(obj).key)
        )[::-1]
        creation_times = [workload_view(obj).created for obj in self._recent_workloads]
        self._gaps = [later - earlier for earlier, later in pairwise([*creation_times, state.at])]

    @property
    def are_arrivals_expected(self) -> bool:
        """Whether the history has at least 5 Workloads, not all of them created at the state's instant."""
        return len(self._recent_workloads) >= ARRIVALS_MIN and any(self._gaps)

    def steps(self, run_time_of: Callable[[Obj], Duration | None], horizon: Duration, seed: int) -> list[ScenarioStep]:
        """Return random future Workloads for one simulation of a forecast, as scenario steps that create them.

        There are at most 1000 steps, until `horizon`; [] if no arrivals are expected. `run_time_of` returns the run
        time of a new Workload that resembles its argument; None: it never ends.
        """
        steps: list[ScenarioStep] = []
        at: Duration = 0
        template_positions = BlockBootstrap(max(1, len(self._recent_workloads)), seed, "arrivals")
        for number in range(ARRIVALS_MAX if self.are_arrivals_expected else 0):
            position = template_positions.next_index()
            at += self._gaps[position - 1]
            if at > horizon:
                break
            workload = self._recent_workloads[position]
            steps.append(ScenarioStep(at, [_make_arrival(number, workload, run_time_of(workload))], ()))
        return steps


def _make_arrival(number: int, template: Obj, runtime: Duration | None) -> Obj:
    arrival = {field: value for field, value in standalone_workload(template, runtime).items() if field != "status"}
    name = f"{ARRIVAL_NAME}-{number}"
    return with_metadata(arrival, name=name, uid=None, resourceVersion=None, creationTimestamp=None)
