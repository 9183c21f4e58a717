"""Granular mode: the quality of a flavor as one number; greater is better.

The possibility (fit, reclaim, preempt) counts first, then a smaller height in the cohort tree. If a queue prefers
preemption, the order of the two is reversed among usable flavors. Source: Kueue's pkg/scheduler/flavorassigner
(granularMode, isPreferred, shouldTryNextFlavor).
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, TypeAlias

from batchyard.api.views.queues import Fungibility

#: A possibility in wide steps, minus the height in the cohort tree that it borrows from.
GranularMode: TypeAlias = int
_STEP_BITS: Final = 24
_HEIGHT_MASK: Final = (1 << _STEP_BITS) - 1


class PreemptionPossibility(IntEnum):
    """How quota of a flavor could be obtained, worst to best."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


class FlavorAssignmentMode(IntEnum):
    """How well an assignment fits, worst to best."""

    NO_FIT = 0
    PREEMPT = 1
    #: Fits after the preemptions of this cycle complete.
    DEFERRED_FIT = 2
    FIT = 3


_POSSIBILITIES: Final = tuple(PreemptionPossibility)
_MODES: Final = (
    FlavorAssignmentMode.NO_FIT,
    FlavorAssignmentMode.PREEMPT,
    FlavorAssignmentMode.PREEMPT,
    FlavorAssignmentMode.PREEMPT,
    FlavorAssignmentMode.FIT,
)


def quality(possibility: PreemptionPossibility, height: int = 0) -> GranularMode:
    """Encode a possibility and the height that it borrows from; 0 is the ClusterQueue's own quota."""
    return (possibility << _STEP_BITS) - height


def possibility_of(of: GranularMode) -> PreemptionPossibility:
    """Return the possibility."""
    return _POSSIBILITIES[(of + _HEIGHT_MASK) >> _STEP_BITS]


def mode_of(of: GranularMode) -> FlavorAssignmentMode:
    """Return the mode of an assignment to such a flavor."""
    return _MODES[(of + _HEIGHT_MASK) >> _STEP_BITS]


def height_of(of: GranularMode) -> int:
    """Return the height in the tree that it would borrow from."""
    return -of & _HEIGHT_MASK


#: The best value of each possibility; a height is subtracted from it. A quality of HOPELESS or less is unusable, even
#: with preemption.
NO_FIT: Final = quality(PreemptionPossibility.NO_FIT)
HOPELESS: Final = quality(PreemptionPossibility.NO_CANDIDATES)
PREEMPT: Final = quality(PreemptionPossibility.PREEMPT)
RECLAIM: Final = quality(PreemptionPossibility.RECLAIM)
FIT: Final = quality(PreemptionPossibility.FIT)


def is_better(a: GranularMode, b: GranularMode, fungibility: Fungibility) -> bool:
    """Report whether a is better than b under the queue's preference."""
    if fungibility.prefer_preemption and a > HOPELESS and b > HOPELESS:
        return _preferring_preemption(a) > _preferring_preemption(b)
    return a > b


def _preferring_preemption(of: GranularMode) -> tuple[int, GranularMode]:
    return -height_of(of), of


def worst(qualities: Sequence[GranularMode], fungibility: Fungibility) -> GranularMode:
    """Return the worst quality of the resources that must come from one flavor; that is the flavor's quality."""
    found = min(qualities)
    if fungibility.prefer_preemption and found > HOPELESS:
        return min(qualities, key=_preferring_preemption)
    return found


def should_try_next_flavor(of: GranularMode, fungibility: Fungibility) -> bool:
    """Report whether to consider the next flavor too."""
    if of <= HOPELESS or (of <= RECLAIM and fungibility.try_next_when_preempting):
        return True
    return fungibility.try_next_when_borrowing and height_of(of) != 0
