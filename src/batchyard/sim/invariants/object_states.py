"""The queues, Cohorts, flavors and held quota that the stored objects describe, for invariants.

The states are maintained from watch events alone, independently of the scheduler.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Obj, find_condition
from batchyard.api.views import workload as workload_views
from batchyard.api.views.node import FlavorView, flavor_view, namespace_labels
from batchyard.interfaces.client import EventType, WatchEvent

# Quota of the cohort trees, computed slowly and directly from its definition.
#
# The computation shares no code with the scheduler, so that both results can be compared. Nodes are named `queue/NAME`
# and `cohort/NAME`. Source: the definition in Kueue's pkg/cache/scheduler/resource_node.go.


#: A flavor and a resource.
QuotaKey: TypeAlias = tuple[str, str]
Amounts: TypeAlias = Mapping[QuotaKey, int]


@dataclass(slots=True)
class QuotaDefinitionNode:
    """A ClusterQueue or Cohort as a node of a cohort tree, with its quotas."""

    name: str
    parent: str = ""
    children: list[str] = field(default_factory=list)
    quotas: dict[QuotaKey, workload_views.FlavorResourceQuota] = field(default_factory=dict)


class QuotaDefinition:
    """All cohort trees as the objects define them, with the Workloads that hold quota; computes available quota."""

    def __init__(
        self, queues: Iterable[workload_views.ClusterQueueView], cohorts: Iterable[workload_views.CohortView]
    ) -> None:
        self.nodes: dict[str, QuotaDefinitionNode] = {}
        #: By ClusterQueue node, the amounts that each Workload (`namespace/name`) holds.
        self.holders: dict[str, dict[str, Amounts]] = {}
        self._subtrees: dict[tuple[str, QuotaKey], int] = {}
        self._parents = {view.name: view.parent for view in cohorts}
        for view in cohorts:
            self._add_node(f"cohort/{view.name}", view.parent, view.groups)
        for queue in queues:
            self._add_node(f"queue/{queue.name}", queue.cohort, queue.groups)
        for node in self.nodes.values():
            if node.parent:
                self.nodes[node.parent].children.append(node.name)

    def _add_node(self, name: str, cohort: str, groups: Iterable[workload_views.ResourceGroup]) -> None:
        node = self.nodes[name] = QuotaDefinitionNode(name)
        node.quotas = {(quota.flavor, quota.resource): quota for group in groups for quota in group.quotas}
        is_in_cohort_cycle = name.startswith("cohort/") and self.is_in_cycle(name.partition("/")[2])
        if cohort and not is_in_cohort_cycle and not self.is_in_cycle(cohort):
            node.parent = f"cohort/{cohort}"
            if cohort not in self._parents:
                self.nodes.setdefault(node.parent, QuotaDefinitionNode(node.parent))

    def is_in_cycle(self, cohort: str) -> bool:
        """Return whether the chain of a Cohort's parents leads into a cycle."""
        visited_cohorts: list[str] = []
        while cohort and cohort not in visited_cohorts:
            visited_cohorts.append(cohort)
            cohort = self._parents.get(cohort, "")
        return bool(cohort)

    def quota_keys(self, node: str) -> list[QuotaKey]:
        """Return the (flavor, resource) pairs with quota or usage in the cohort tree of a ClusterQueue or Cohort."""
        root = self.path(node)[0]
        quota_keys: dict[QuotaKey, None] = {}
        for name in self.with_descendants(root):
            quota_keys.update(dict.fromkeys(self.nodes[name].quotas))
            for amounts in self.holders.get(name, {}).values():
                quota_keys.update(dict.fromkeys(amounts))
        return sorted(quota_keys)

    def path(self, node: str) -> list[str]:
        """Return the ClusterQueue and Cohort names from the root of the cohort tree down to `node`."""
        parent = self.nodes[node].parent
        return [*self.path(parent), node] if parent else [node]

    def with_descendants(self, node: str) -> Iterator[str]:
        """Yield the name of a ClusterQueue or Cohort, and of all its descendants in the cohort tree."""
        yield node
        for child in self.nodes[node].children:
            yield from self.with_descendants(child)

    def subtree_quota(self, node: str, key: QuotaKey) -> int:
        """Return the subtree quota of a ClusterQueue or Cohort: its nominal quota plus what its children lend."""
        amount = self._subtrees.get((node, key))
        if amount is not None:
            return amount
        quota = self.nodes[node].quotas.get(key)
        lent = sum(self.subtree_quota(child, key) - self.local_quota(child, key) for child in self.nodes[node].children)
        own = self._subtrees[node, key] = (quota.nominal if quota else 0) + lent
        return own

    def local_quota(self, node: str, key: QuotaKey) -> int:
        """Return the quota of a ClusterQueue or Cohort that its lending limit keeps from being lent; 0 without a limit.

        `node` is `queue/NAME` or `cohort/NAME`.
        """
        quota = self.nodes[node].quotas.get(key)
        if quota is None or quota.lending_limit is None:
            return 0
        return max(0, self.subtree_quota(node, key) - quota.lending_limit)

    def usage(self, node: str, key: QuotaKey) -> int:
        """Return the usage of a ClusterQueue or Cohort.

        It is the usage of its own Workloads, plus the usage of each child above the quota that the child does not lend.
        """
        own_usage = sum(amounts.get(key, 0) for amounts in self.holders.get(node, {}).values())
        children = self.nodes[node].children
        return own_usage + sum(max(0, self.usage(child, key) - self.local_quota(child, key)) for child in children)

    def available(self, node: str, key: QuotaKey) -> int:
        """Return what a ClusterQueue or Cohort may still use; negative if quota was cut below the usage."""
        parent, used = self.nodes[node].parent, self.usage(node, key)
        if not parent:
            return self.subtree_quota(node, key) - used
        local_amount, quota = self.local_quota(node, key), self.nodes[node].quotas.get(key)
        from_parent = self.available(parent, key)
        if quota is not None and quota.borrowing_limit is not None:
            lent_amount = self.subtree_quota(node, key) - local_amount
            from_parent = min(from_parent, lent_amount + quota.borrowing_limit - max(0, used - local_amount))
        return max(0, local_amount - used) + from_parent

    def potential_available(self, node: str, key: QuotaKey) -> int:
        """Return the amount that a ClusterQueue or Cohort could use if no Workload of its cohort tree held quota."""
        parent, quota = self.nodes[node].parent, self.nodes[node].quotas.get(key)
        if not parent:
            return self.subtree_quota(node, key)
        quota_maximum = self.local_quota(node, key) + self.potential_available(parent, key)
        if quota is not None and quota.borrowing_limit is not None:
            quota_maximum = min(quota_maximum, self.subtree_quota(node, key) + quota.borrowing_limit)
        return quota_maximum

    def is_borrowing(self, node: str, key: QuotaKey) -> bool:
        """Return whether a ClusterQueue or Cohort uses more than its subtree quota, so that it borrows."""
        return self.usage(node, key) > self.subtree_quota(node, key)


class ObjectStates:
    """The queues, Cohorts, flavors and Workloads as stored, by name, and the quota computed from them."""

    def __init__(self) -> None:
        self.queues: dict[str, workload_views.ClusterQueueView] = {}
        self.cohorts: dict[str, workload_views.CohortView] = {}
        self.local_queues: dict[str, workload_views.LocalQueueView] = {}
        self.flavors: dict[str, FlavorView] = {}
        #: Labels by namespace.
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.workloads: dict[str, workload_views.WorkloadView] = {}
        #: ClusterQueues that are being deleted.
        self.terminating_queues: dict[str, None] = {}
        self._quota: QuotaDefinition | None = None
        self._tables: dict[str, tuple[dict[str, Any], Callable[[Obj], object]]] = {
            scheme.CLUSTER_QUEUE: (self.queues, workload_views.cluster_queue_view),
            scheme.COHORT: (self.cohorts, workload_views.cohort_view),
            scheme.LOCAL_QUEUE: (self.local_queues, workload_views.local_queue_view),
            scheme.RESOURCE_FLAVOR: (self.flavors, flavor_view),
            scheme.NAMESPACE: (self.namespaces, namespace_labels),
            scheme.WORKLOAD: (self.workloads, workload_views.workload_view),
        }

    def record(self, event: WatchEvent) -> None:
        """Update the recorded queues, Cohorts, flavors, Namespaces and Workloads after a watch event."""
        key = str(event.key)
        table_and_view = self._tables.get(event.key.kind)
        if table_and_view is None:
            return
        table, view = table_and_view
        if event.type is EventType.DELETED:
            table.pop(key, None)
        else:
            table[key] = view(event.obj)
        if event.key.kind == scheme.CLUSTER_QUEUE:
            self.terminating_queues.pop(key, None)
            if event.type is not EventType.DELETED and "deletionTimestamp" in event.obj["metadata"]:
                self.terminating_queues[key] = None
        if event.key.kind == scheme.WORKLOAD:
            self._update_held_amounts(key)
        elif changes_quota(event):
            self._quota = None

    @property
    def quota(self) -> QuotaDefinition:
        """Return all cohort trees with their quota, and the Workloads that hold it."""
        if self._quota is None:
            self._quota = QuotaDefinition(list(self.queues.values()), list(self.cohorts.values()))
            for key in self.workloads:
                self._update_held_amounts(key)
        return self._quota

    def queue_of(self, workload: workload_views.WorkloadView) -> workload_views.ClusterQueueView | None:
        """Return the ClusterQueue of a Workload's LocalQueue; None if either queue does not exist."""
        local_queue = self.local_queues.get(workload.queue)
        return self.queues.get(local_queue.cluster_queue) if local_queue is not None else None

    def _update_held_amounts(self, key: str) -> None:
        if self._quota is None:
            return
        for holders in self._quota.holders.values():
            holders.pop(key, None)
        view = self.workloads.get(key)
        if view is not None and holds_quota(view):
            self._quota.holders.setdefault(f"queue/{view.cluster_queue}", {})[key] = held_amounts_of(view)


def holds_quota(view: workload_views.WorkloadView) -> bool:
    """Return whether a Workload holds quota: it has a reservation, and is neither finished nor deactivated."""
    return view.quota_reserved and view.active and not view.finished


def held_amounts_of(view: workload_views.WorkloadView) -> Amounts:
    """Return the amounts in the admission status of a Workload, by flavor and resource."""
    held_amounts: dict[QuotaKey, int] = {}
    for holding in view.admitted_pod_sets:
        for resource, amount in holding.usage:
            quota_key = holding.flavors[resource], resource
            held_amounts[quota_key] = held_amounts.get(quota_key, 0) + amount
    return held_amounts


def changes_quota(event: WatchEvent) -> bool:
    """Return whether a watch event creates or deletes a ClusterQueue or Cohort, or changes its spec."""
    if event.key.kind not in _QUOTA_KINDS:
        return False
    return event.type is EventType.DELETED or event.old is None or event.old.get("spec") != event.obj.get("spec")


def is_new_reservation(event: WatchEvent) -> bool:
    """Return whether a watch event of a Workload shows a new quota reservation."""
    old_view = workload_views.workload_view(event.old) if event.old is not None else None
    return workload_views.workload_view(event.obj).quota_reserved and not (
        old_view is not None and old_view.quota_reserved
    )


def is_new_preemption(event: WatchEvent) -> bool:
    """Return whether a watch event shows the preemption of a Workload that holds quota."""
    if event.key.kind != scheme.WORKLOAD or event.old is None:
        return False
    old_condition, new_condition = find_condition(event.old, "Evicted"), find_condition(event.obj, "Evicted")
    if new_condition is None or new_condition["status"] != "True" or new_condition["reason"] != "Preempted":
        return False
    is_newly_evicted = old_condition is None or old_condition["status"] != "True"
    return is_newly_evicted and workload_views.workload_view(event.obj).quota_reserved


_QUOTA_KINDS: Final = (scheme.CLUSTER_QUEUE, scheme.COHORT)
