"""How well a flavor would do, as one number: the greater the better.

What counts first is how the flavor could be had, then from how little far up the cohort tree; a queue that prefers
preemption turns these two around among flavors that can be had at all. Source: Kueue's
pkg/scheduler/flavorassigner (granularMode, isPreferred, shouldTryNextFlavor).
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, TypeAlias

from batchyard.api.views.queues import Fungibility

#: A possibility, in steps far apart, less the height in the cohort tree that it borrows from.
Quality: TypeAlias = int
_STEP_BITS: Final = 24
_HEIGHT_MASK: Final = (1 << _STEP_BITS) - 1


class Possibility(IntEnum):
    """How a flavor could be had, worst to best."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


class Mode(IntEnum):
    """How well an assignment fits, worst to best."""

    NO_FIT = 0
    PREEMPT = 1
    #: Fits once the preemptions of this cycle are through.
    DEFERRED_FIT = 2
    FIT = 3


_POSSIBILITIES: Final = tuple(Possibility)
_MODES: Final = (Mode.NO_FIT, Mode.PREEMPT, Mode.PREEMPT, Mode.PREEMPT, Mode.FIT)


def quality(possibility: Possibility, height: int = 0) -> Quality:
    """That possibility, borrowing from that height; 0 is the ClusterQueue's own quota."""
    return (possibility << _STEP_BITS) - height


def possibility_of(of: Quality) -> Possibility:
    """How the flavor could be had."""
    return _POSSIBILITIES[(of + _HEIGHT_MASK) >> _STEP_BITS]


def mode_of(of: Quality) -> Mode:
    """How well an assignment to such a flavor fits."""
    return _MODES[(of + _HEIGHT_MASK) >> _STEP_BITS]


def height_of(of: Quality) -> int:
    """From how far up the tree it would borrow."""
    return -of & _HEIGHT_MASK


#: Each at its best; less a height, from further up the tree. What is no greater than HOPELESS cannot be had at all, not
#: even by preemption.
NO_FIT: Final = quality(Possibility.NO_FIT)
HOPELESS: Final = quality(Possibility.NO_CANDIDATES)
PREEMPT: Final = quality(Possibility.PREEMPT)
RECLAIM: Final = quality(Possibility.RECLAIM)
FIT: Final = quality(Possibility.FIT)


def is_better(a: Quality, b: Quality, fungibility: Fungibility) -> bool:
    """Whether a is better than b under the queue's preference."""
    if fungibility.prefer_preemption and a > HOPELESS and b > HOPELESS:
        return _preferring_preemption(a) > _preferring_preemption(b)
    return a > b


def _preferring_preemption(of: Quality) -> tuple[int, Quality]:
    return -height_of(of), of


def worst(qualities: Sequence[Quality], fungibility: Fungibility) -> Quality:
    """A flavor is as good as the worst of the resources that must come from it."""
    found = min(qualities)
    if fungibility.prefer_preemption and found > HOPELESS:
        return min(qualities, key=_preferring_preemption)
    return found


def should_go_on(of: Quality, fungibility: Fungibility) -> bool:
    """Whether to look at the next flavor too."""
    if of <= HOPELESS or (of <= RECLAIM and fungibility.try_next_when_preempting):
        return True
    return fungibility.try_next_when_borrowing and height_of(of) != 0
