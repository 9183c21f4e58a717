"""What a shadow has compared, and what came of it."""

from collections.abc import Callable, Iterator
from typing import Final

from batchyard.controllers.shadow.findings import Counts, Parting
from batchyard.metrics.families import text_of
from batchyard.metrics.names import metric

#: What is compared.
DECISIONS: Final = ("admission", "preemption", "eviction")


class ShadowFigures:
    """Read when somebody asks."""

    def __init__(self, counts: Callable[[], Counts], waiting: Callable[[], int], reordered: Callable[[], int]) -> None:
        self._counts = counts
        self._waiting = waiting
        self._reordered = reordered

    def texts(self) -> Iterator[str]:
        """All families."""
        counts = self._counts()
        agreed = [((each,), counts.agreed.get(each, 0)) for each in DECISIONS]
        parted = [((each.value,), counts.parted.get(each.value, 0)) for each in Parting if each is not Parting.LATE]
        yield text_of(metric("batchyard_shadow_decisions_total"), agreed)
        yield text_of(metric("batchyard_shadow_divergences_total"), parted)
        yield text_of(metric("batchyard_shadow_late_total"), [((), counts.late)])
        yield text_of(metric("batchyard_shadow_alike_total"), [((), counts.alike)])
        yield text_of(metric("batchyard_shadow_reordered_total"), [((), self._reordered())])
        yield text_of(metric("batchyard_shadow_unseen_total"), [((), counts.unseen)])
        yield text_of(metric("batchyard_shadow_waiting"), [((), self._waiting())])
