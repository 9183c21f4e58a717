"""What a shadow found out: how often two schedulers agreed, and where they parted. A platform of ours has none."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from batchyard.base.instant import Instant

#: How many partings are remembered.
PARTED_MAX: Final = 500


class Parted(NamedTuple):
    """One parting."""

    at: Instant
    #: When the other did it, or from when on ours would have.
    since: Instant
    kind: str
    #: The Workload's key.
    workload: str
    message: str
    #: What stood against it by our reckoning, if the message does not say so.
    why: str
    look: Sequence[str]


class Comparison:
    """See the module."""

    def __init__(self, agreed: Callable[[], int], parted: Callable[[], int]) -> None:
        """How often both agreed and parted so far."""
        self.agreed = agreed
        self.parted = parted
        #: The last first.
        self.partings: deque[Parted] = deque(maxlen=PARTED_MAX)
