"""All views by name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from batchyard.accounting.accounts import Statement
from batchyard.api.meta import Obj
from batchyard.api.times import format_time
from batchyard.base.instant import SECOND, Instant
from batchyard.dashboard.access import NamespaceAccess, ViewerAccess
from batchyard.dashboard.data_source import Model, Query, QueueSource, ViewInputs
from batchyard.dashboard.history import PlatformHistory
from batchyard.dashboard.models.costs import costs
from batchyard.dashboard.models.nodes import node, nodes
from batchyard.dashboard.models.overview import cohorts, overview
from batchyard.dashboard.models.queues import queue
from batchyard.dashboard.models.timeline import timeline
from batchyard.dashboard.models.workload import workload, workloads
from batchyard.dashboard.workload_list_cache import WorkloadListCache
from batchyard.interfaces.client import Reader

View: TypeAlias = Callable[[ViewInputs, NamespaceAccess, Query], Model | None]

VIEWS: Final[Mapping[str, View]] = {
    "overview": overview,
    "cohorts": cohorts,
    "queue": queue,
    "workloads": workloads,
    "workload": workload,
    "timeline": timeline,
    "nodes": nodes,
    "node": node,
    "costs": costs,
}


def no_costs() -> Statement | None:
    """Return None: CostRecords hold the machine costs, if any."""
    return None


class PlatformTime(NamedTuple):
    """The clock of the platform, and its speed relative to real time; 0 if it is stopped."""

    now: Callable[[], Instant]
    speed: float


class DashboardViews:
    """The views of a platform. With `whole`, lists are complete, as in a report."""

    def __init__(
        self,
        reader: Reader,
        standing: QueueSource,
        history: PlatformHistory,
        time: PlatformTime,
        costs: Callable[[], Statement | None] = no_costs,
        *,
        whole: bool = False,
    ) -> None:
        self._reader = reader
        self._standing = standing
        self._history = history
        self._time = time
        self._costs = costs
        self._whole = whole
        self._roster = WorkloadListCache()

    def objects(self, kind: str) -> Sequence[Obj]:
        """Return all objects of a kind."""
        return self._reader.list(kind)

    def model(self, view: str, query: Query, sight: ViewerAccess) -> Model | None:
        """Return the model of a view; None if the view or its subject does not exist or is hidden from the user."""
        make = VIEWS.get(view)
        if make is None:
            return None
        self._standing.snapshot.settle()
        source = ViewInputs(
            self._reader,
            self._standing,
            self._history,
            self._roster,
            self._time.now(),
            self._costs(),
            self._whole,
        )
        return make(source, NamespaceAccess(sight), query)

    def time(self) -> Model:
        """Return time and speed of the platform, from which the page computes ages."""
        return {"time": format_time(self._time.now() // SECOND * SECOND), "speed": self._time.speed}
