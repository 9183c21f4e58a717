"""A Workload as a row of a list."""

from typing import Any

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj
from batchyard.api.times import format_time
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import SECOND, Instant
from batchyard.dashboard.data_source import Model, ViewInputs
from batchyard.dashboard.formatting import owner_of, state_of


def row_of(source: ViewInputs, view: WorkloadView, obj: Obj) -> Model:
    """Return the row of a Workload."""
    state = state_of(view, obj)
    queue = view.cluster_queue or source.standing.cluster_queue_of(*view.queue.split("/", 1)) or ""
    reason, message = _why(obj, state)
    return {
        "namespace": view.namespace,
        "name": view.name,
        "owner": owner_of(obj),
        "queue": view.queue.partition("/")[2],
        "clusterQueue": queue,
        "state": state,
        "priority": view.priority,
        "pods": sum(pod_set.count for pod_set in view.pod_sets),
        "created": time_of(view.created),
        "since": _since(view, obj, state),
        "reason": reason,
        "why": message,
    }


class Reasons:
    """Pending reasons, shared between Workloads of equal shape in one namespace and ClusterQueue.

    The scheduler decides equal Workloads alike, and writes the reason to one of them only.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, str, str], tuple[str, str]] = {}

    def reported(self, view: WorkloadView, row: Model) -> Model:
        """Return the row of a pending Workload with its reason. Call it in scheduling order."""
        place = view.shape, view.namespace, row["clusterQueue"]
        if row["why"]:
            self._known.setdefault(place, (row["reason"], row["why"]))
            return row
        reason, why = self._known.get(place, ("", ""))
        return {**row, "reason": reason, "why": why}


def row_at(source: ViewInputs, key: str) -> Model | None:
    """Return the row of the Workload with a key; None if it is gone."""
    found = source.reader.get(Key(scheme.WORKLOAD, *key.split("/", 1)))
    return None if found is None else row_of(source, workload_view(found), found)


def time_of(instant: Instant) -> str:
    """Format an instant in whole seconds."""
    return format_time(instant // SECOND * SECOND)


def _since(view: WorkloadView, obj: Obj, state: str) -> str:
    """Return since when the Workload has its state."""
    kinds = {"Finished": "Finished", "Failed": "Finished", "Evicted": "Evicted", "Running": "PodsReady"}
    kinds |= {"Admitted": "Admitted", "QuotaReserved": "QuotaReserved"}
    condition = find_condition(obj, kinds[state]) if state in kinds else None
    found: Any = condition and condition.get("lastTransitionTime")
    return str(found) if found else time_of(view.waiting_since)


def _why(obj: Obj, state: str) -> tuple[str, str]:
    """Return reason and message of the condition that explains the state; empty for normal states."""
    kinds = {"Pending": "QuotaReserved", "Failed": "Finished", "Evicted": "Evicted", "Inactive": "Evicted"}
    condition = find_condition(obj, kinds[state]) if state in kinds else None
    if condition is None:
        return "", ""
    return condition.get("reason", ""), condition.get("message", "")
