"""The data sources of the view models: objects, scheduler state, history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from batchyard.accounting.accounts import Statement
from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import Instant
from batchyard.dashboard.history import PlatformHistory
from batchyard.dashboard.workload_list_cache import WorkloadListCache
from batchyard.interfaces.client import Reader
from batchyard.scheduling.cluster_queue import QueueActiveStatus
from batchyard.scheduling.snapshot import Snapshot

Model: TypeAlias = dict[str, Any]
"""A JSON document: what a view shows, with formatted values."""

Query: TypeAlias = Mapping[str, str]
"""The query parameters of a view."""


class QueueSource(Protocol):
    """The state of the scheduler: pending and admitted Workloads by queue."""

    @property
    def snapshot(self) -> Snapshot:
        """The queues, Cohorts and their quota."""

    def first_pending(self, cluster_queue: str, count: int) -> Sequence[WorkloadView]:
        """Return the first pending Workloads of a ClusterQueue in scheduling order."""

    def count_pending(self, cluster_queue: str) -> int:
        """Return the number of pending Workloads in a ClusterQueue."""

    def place_of(self, cluster_queue: str, workload: str) -> int | None:
        """Return the number of Workloads ahead of a pending one; None if it is not pending there."""

    def cluster_queue_of(self, namespace: str, local_queue: str) -> str | None:
        """Return the ClusterQueue of a LocalQueue; None if the LocalQueue does not exist."""

    def readiness(self, name: str) -> QueueActiveStatus:
        """Return whether a ClusterQueue can admit, and why not."""


@dataclass(frozen=True, slots=True)
class ViewInputs:
    """All inputs of one view model."""

    reader: Reader
    standing: QueueSource
    history: PlatformHistory
    workload_list: WorkloadListCache
    #: The current time of the platform.
    now: Instant
    #: The machine costs of a finished run; None if CostRecords hold them.
    costs: Statement | None = None
    #: Whether lists are complete, regardless of their length.
    whole: bool = False
