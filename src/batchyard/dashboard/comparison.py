"""The results of shadow mode: agreements and divergences between two schedulers. Live platforms have none."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from batchyard.base.instant import Instant

#: Maximum number of divergences kept.
DIVERGENCES_MAX: Final = 500


class SchedulerDivergence(NamedTuple):
    """One divergence between the two schedulers."""

    at: Instant
    #: When the other scheduler decided, or from when this one would have.
    since: Instant
    kind: str
    #: The Workload's key.
    workload: str
    message: str
    #: The reason against it as this scheduler computed it, if the message does not contain it.
    why: str
    look: Sequence[str]


class ShadowComparison:
    """The counters and the recent divergences of shadow mode."""

    def __init__(self, agreed: Callable[[], int], parted: Callable[[], int]) -> None:
        """The arguments return the number of agreements and divergences so far."""
        self.agreed = agreed
        self.parted = parted
        #: The latest first.
        self.partings: deque[SchedulerDivergence] = deque(maxlen=DIVERGENCES_MAX)
