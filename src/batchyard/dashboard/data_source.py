"""The data sources of the view models: objects, scheduler state, history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from batchyard.accounting.accounts import Statement
from batchyard.api import scheme
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


# --- access ---
#
# Access control of the dashboard: a model contains only objects that its user may list through the API.


class ViewerAccess(Protocol):
    """The list permissions of a user."""

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Report whether the user may list a kind in a namespace, or in all namespaces for ''."""


class FullAccess:
    """Permission for everything, for the readers of a report."""

    def may_list(self, kind: str, namespace: str = "") -> bool:
        """Return True."""
        return True


class NamespaceAccess:
    """The permissions of one user while one model is computed, each checked once."""

    def __init__(self, sight: ViewerAccess) -> None:
        self._sight = sight
        self._known: dict[tuple[str, str], bool] = {}

    def all_of(self, kind: str) -> bool:
        """Report whether the user may list a kind in all namespaces."""
        return self._asked(kind, "")

    def sees(self, kind: str, namespace: str) -> bool:
        """Report whether the user may list a kind in a namespace."""
        return self._asked(kind, "") or self._asked(kind, namespace)

    def namespaces(self, kind: str, reader: Reader) -> list[str] | None:
        """Return the namespaces in which the user may list a kind; None for all namespaces."""
        if self.all_of(kind):
            return None
        names = [str(obj["metadata"]["name"]) for obj in reader.list(scheme.NAMESPACE)]
        return [name for name in names if self._asked(kind, name)]

    def _asked(self, kind: str, namespace: str) -> bool:
        known = self._known.get((kind, namespace))
        if known is None:
            known = self._known[kind, namespace] = self._sight.may_list(kind, namespace)
        return known


# --- pagination ---
#
# Pagination of long lists, with a bounded page size.


LIMIT: Final = 100
LIMIT_MAX: Final = 500
#: Beyond the length of any list.
ALL: Final = 1_000_000


class PageWindow(NamedTuple):
    """A page: offset and maximum number of lines."""

    offset: int
    limit: int


def window_of(source: ViewInputs, query: Query) -> PageWindow:
    """Return the requested page; invalid numbers mean the defaults."""
    if source.whole:
        return PageWindow(0, ALL)
    limit = _whole(query.get("limit", "")) or LIMIT
    return PageWindow(_whole(query.get("offset", "")), min(limit, LIMIT_MAX))


def _whole(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
