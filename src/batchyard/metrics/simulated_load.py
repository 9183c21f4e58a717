"""The load of simulated GPUs: a function of the pod, the GPU and the elapsed time.

A pod first loads its data and model. Then it works at a level of its own with occasional pauses, as training does for
evaluation and checkpoints. The values are drawn with `batchyard.base.seeded_draws` from the pod's uid and the GPU's
number, so that two scrapes of the same instant return the same values, also after a restart of the platform.
"""

from typing import Final, NamedTuple

from batchyard.base.instant import SECOND, Duration
from batchyard.base.seeded_draws import draw

#: How long a value is constant, and how long a pod loads. Both in the platform's time.
STEP: Final[Duration] = 15 * SECOND
LOADING: Final[Duration] = 30 * SECOND
_SEED: Final = 0
#: Utilization in percent, both bounds included: while loading, of a pod's level, and in a pause.
_LOADING_PERCENT: Final = (5, 29)
_LEVEL_PERCENT: Final = (70, 94)
_PAUSE_PERCENT: Final = (10, 39)
#: The deviation of a value from the pod's level, in percent.
_SPREAD: Final = (-6, 5)
#: The number of pauses in 100 steps.
_PAUSES: Final = 8
#: The share of the GPU's memory that a pod uses, in percent.
_MEMORY_PERCENT: Final = (60, 95)


class SimulatedLoad(NamedTuple):
    """The load of one GPU, in percent."""

    busy: int
    memory: int


IDLE: Final = SimulatedLoad(0, 0)


def simulated_load(uid: str, gpu: int, elapsed: Duration) -> SimulatedLoad:
    """Return the load of a GPU of a pod that has run for `elapsed`."""
    elapsed = max(0, elapsed)
    share = _between(_MEMORY_PERCENT, uid, "memory")
    of_step = (uid, str(gpu), str(elapsed // STEP))
    if elapsed < LOADING:
        return SimulatedLoad(_between(_LOADING_PERCENT, "loading", *of_step), share * elapsed // LOADING)
    if draw(_SEED, "pause", *of_step) % 100 < _PAUSES:
        return SimulatedLoad(_between(_PAUSE_PERCENT, "paused", *of_step), share)
    return SimulatedLoad(_between(_LEVEL_PERCENT, uid, "level") + _between(_SPREAD, "spread", *of_step), share)


def _between(bounds: tuple[int, int], *names: str) -> int:
    """Return an integer between two bounds, both included, with equal probability."""
    low, high = bounds
    return low + draw(_SEED, *names) % (high - low + 1)
