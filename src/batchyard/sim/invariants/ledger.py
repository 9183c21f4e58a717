"""The state by the objects alone: queues, Cohorts and flavors, and the quota that Workloads hold by their status.

It is maintained from watch events and independent of the scheduler.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj
from batchyard.api.views.ownership import namespace_labels
from batchyard.api.views.queues import (
    ClusterQueueView,
    CohortView,
    FlavorView,
    LocalQueueView,
    cluster_queue_view,
    cohort_view,
    flavor_view,
    local_queue_view,
)
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.invariants.definition import Amounts, Pair, QuotaDefinition


class ObjectLedger:
    """Queues, Cohorts, flavors and Workloads by name, and the quota forest computed from them."""

    def __init__(self) -> None:
        self.queues: dict[str, ClusterQueueView] = {}
        self.cohorts: dict[str, CohortView] = {}
        self.local_queues: dict[str, LocalQueueView] = {}
        self.flavors: dict[str, FlavorView] = {}
        #: Labels by namespace.
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.workloads: dict[str, WorkloadView] = {}
        #: ClusterQueues that are being deleted.
        self.terminating: dict[str, None] = {}
        self._quota: QuotaDefinition | None = None
        self._tables: dict[str, tuple[dict[str, Any], Callable[[Obj], object]]] = {
            scheme.CLUSTER_QUEUE: (self.queues, cluster_queue_view),
            scheme.COHORT: (self.cohorts, cohort_view),
            scheme.LOCAL_QUEUE: (self.local_queues, local_queue_view),
            scheme.RESOURCE_FLAVOR: (self.flavors, flavor_view),
            scheme.NAMESPACE: (self.namespaces, namespace_labels),
            scheme.WORKLOAD: (self.workloads, workload_view),
        }

    def record(self, event: WatchEvent) -> None:
        """Apply a watch event."""
        key = str(event.key)
        found = self._tables.get(event.key.kind)
        if found is None:
            return
        table, view = found
        if event.type is EventType.DELETED:
            table.pop(key, None)
        else:
            table[key] = view(event.obj)
        if event.key.kind == scheme.CLUSTER_QUEUE:
            self.terminating.pop(key, None)
            if event.type is not EventType.DELETED and "deletionTimestamp" in event.obj["metadata"]:
                self.terminating[key] = None
        if event.key.kind == scheme.WORKLOAD:
            self._hold(key)
        elif changes_quota(event):
            self._quota = None

    @property
    def quota(self) -> QuotaDefinition:
        """Return the quota forest with all holders."""
        if self._quota is None:
            self._quota = QuotaDefinition(list(self.queues.values()), list(self.cohorts.values()))
            for key in self.workloads:
                self._hold(key)
        return self._quota

    def queue_of(self, workload: WorkloadView) -> ClusterQueueView | None:
        """Return the ClusterQueue behind a Workload's LocalQueue."""
        local = self.local_queues.get(workload.queue)
        return self.queues.get(local.cluster_queue) if local is not None else None

    def _hold(self, key: str) -> None:
        """Replace the amounts that a Workload holds in the quota forest."""
        if self._quota is None:
            return
        for holders in self._quota.holders.values():
            holders.pop(key, None)
        view = self.workloads.get(key)
        if view is not None and holds_quota(view):
            self._quota.holders.setdefault(f"queue/{view.cluster_queue}", {})[key] = amounts_of(view)


def holds_quota(view: WorkloadView) -> bool:
    """Whether a Workload holds quota by its status; finished and deactivated ones hold none."""
    return view.quota_reserved and view.active and not view.finished


def amounts_of(view: WorkloadView) -> Amounts:
    """Return the amounts that a Workload holds by its status."""
    total: dict[Pair, int] = {}
    for holding in view.holdings:
        for resource, amount in holding.usage:
            pair = holding.flavors[resource], resource
            total[pair] = total.get(pair, 0) + amount
    return total


def changes_quota(event: WatchEvent) -> bool:
    """Whether a change affects the quota forest itself."""
    if event.key.kind not in _FOREST:
        return False
    return event.type is EventType.DELETED or event.old is None or event.old.get("spec") != event.obj.get("spec")


def is_reserved_by(event: WatchEvent) -> bool:
    """Whether a change reserves quota for a Workload."""
    before = workload_view(event.old) if event.old is not None else None
    return workload_view(event.obj).quota_reserved and not (before is not None and before.quota_reserved)


def is_preempted_by(event: WatchEvent) -> bool:
    """Whether a change preempts a Workload that holds quota."""
    if event.key.kind != scheme.WORKLOAD or event.old is None:
        return False
    before, after = find_condition(event.old, "Evicted"), find_condition(event.obj, "Evicted")
    if after is None or after["status"] != "True" or after["reason"] != "Preempted":
        return False
    is_new = before is None or before["status"] != "True"
    return is_new and workload_view(event.obj).quota_reserved


_FOREST: Final = (scheme.CLUSTER_QUEUE, scheme.COHORT)
