"""What the models of the page are made from: the objects, what the scheduler knows, and what happened so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from batchyard.accounting.accounts import Statement
from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import Instant
from batchyard.dashboard.history import History
from batchyard.dashboard.workload_list_cache import Roster
from batchyard.interfaces.client import Reader
from batchyard.scheduling.cluster_queue import Readiness
from batchyard.scheduling.snapshot import Snapshot

Model: TypeAlias = dict[str, Any]
"""A document of JSON values: what a view shows, in the words and numbers in which it shows it."""

Query: TypeAlias = Mapping[str, str]
"""What is asked of a view, as the query of its address has it."""


class Standing(Protocol):
    """What the scheduler knows: who waits where and in which order, who holds what."""

    @property
    def snapshot(self) -> Snapshot:
        """Queues, Cohorts and their quota."""

    def first_pending(self, cluster_queue: str, count: int) -> Sequence[WorkloadView]:
        """The first of those that wait in a ClusterQueue, in the order of their turn."""

    def count_pending(self, cluster_queue: str) -> int:
        """How many wait in a ClusterQueue."""

    def place_of(self, cluster_queue: str, workload: str) -> int | None:
        """How many have their turn before a Workload; None if it does not wait there."""

    def cluster_queue_of(self, namespace: str, local_queue: str) -> str | None:
        """The ClusterQueue of a LocalQueue; None if there is no such queue."""

    def readiness(self, name: str) -> Readiness:
        """Whether a ClusterQueue can admit, and why not."""


@dataclass(frozen=True, slots=True)
class Source:
    """See the module."""

    reader: Reader
    standing: Standing
    history: History
    roster: Roster
    #: What time it is for the platform.
    now: Instant
    #: What machines cost in a run that is over; None where CostRecords tell it.
    costs: Statement | None = None
    #: Whether lists are to be whole, however long they are.
    whole: bool = False
