"""Snapshot: the ClusterQueues, Cohorts, flavors and Workloads with quota that a scheduling cycle reads.

One snapshot exists for the lifetime of the scheduler and is updated between cycles. Changes that a cycle makes inside
`what_if()` are undone exactly. Source: Kueue's pkg/cache/scheduler (cache, snapshot).
"""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from batchyard.api.views.node import FlavorView
from batchyard.api.views.preemption import PreemptionConfigView
from batchyard.api.views.workload import ClusterQueueView, CohortView, ResourceGroup, WorkloadView
from batchyard.base.instant import Instant
from batchyard.base.primitives import invariant
from batchyard.scheduling import cluster_queue
from batchyard.scheduling.quota import QuotaNode, Usage, change_usage, refresh_tree
from batchyard.topology.state import TopologyState, TopologyUsage

# The trees of Cohorts and ClusterQueues, built from their specs.
#
# A Cohort exists if it has an object or is referenced (then without quota of its own). A Cohort whose parents form a
# cycle has no parent here, and ClusterQueues below it have no Cohort. Flavor-resource pairs are numbered on first use.
# Source: Kueue's pkg/cache/hierarchy.


NO_COHORT: Final = ""


class CohortForest:
    """The Cohorts of all cohort trees, as nodes of these trees, and the ids of flavor-resource pairs."""

    def __init__(self) -> None:
        self.cohorts: dict[str, QuotaNode] = {}
        #: The flavor and resource of each flavor-resource id.
        self.flavor_resource_names: list[tuple[str, str]] = []
        self._ids: dict[tuple[str, str], int] = {}
        self._views: dict[str, CohortView] = {}

    def flavor_resource_id(self, flavor: str, resource: str) -> int:
        """Return the id of a flavor-resource pair; a new pair gets a new id."""
        flavor_resource = (flavor, resource)
        flavor_resource_id = self._ids.get(flavor_resource)
        if flavor_resource_id is None:
            flavor_resource_id = self._ids[flavor_resource] = len(self.flavor_resource_names)
            self.flavor_resource_names.append(flavor_resource)
        return flavor_resource_id

    @property
    def views(self) -> Mapping[str, CohortView]:
        """The parsed Cohort objects, by name; a Cohort that is only referenced has none."""
        return self._views

    def put_cohort(self, view: CohortView) -> None:
        """Store the spec of a new or changed Cohort; `rebuild()` applies it to the trees."""
        self._views[view.name] = view
        for group in view.groups:
            for quota in group.quotas:
                self.flavor_resource_id(quota.flavor, quota.resource)

    def remove_cohort(self, name: str) -> bool:
        """Remove a Cohort's spec; return whether there was one. A still referenced Cohort remains without quota."""
        return self._views.pop(name, None) is not None

    def has_cycle(self, cohort: str) -> bool:
        """Return whether the parents of a Cohort form a cycle, so that the Cohort has no root."""
        visited_cohorts: dict[str, None] = {}
        while cohort != NO_COHORT:
            if cohort in visited_cohorts:
                return True
            visited_cohorts[cohort] = None
            view = self._views.get(cohort)
            cohort = view.parent if view else NO_COHORT
        return False

    def set_quotas(self, node: QuotaNode, groups: Iterable[ResourceGroup]) -> None:
        """Set a cohort tree node's nominal quotas, borrowing limits and lending limits from resource groups."""
        node.nominal, node.borrowing_limit, node.lending_limit = {}, {}, {}
        for group in groups:
            for quota in group.quotas:
                fr = self.flavor_resource_id(quota.flavor, quota.resource)
                node.nominal[fr] = quota.nominal
                if quota.borrowing_limit is not None:
                    node.borrowing_limit[fr] = quota.borrowing_limit
                if quota.lending_limit is not None:
                    node.lending_limit[fr] = quota.lending_limit

    def rebuild(self, queues: Iterable[cluster_queue.ClusterQueue]) -> None:
        """Rebuild all cohort trees from the Cohort specs and `queues`, which must be sorted by name."""
        fr_count = len(self.flavor_resource_names)
        self.cohorts = {}
        for name in sorted(self._views):
            self._cohort_node(name)
        root_nodes = []
        for queue in queues:
            node, cohort = queue.node, queue.view.cohort
            node.usage.extend([0] * (fr_count - len(node.usage)))
            queue.is_in_cohort_cycle = self.has_cycle(cohort)
            node.parent = None if cohort == NO_COHORT or queue.is_in_cohort_cycle else self._cohort_node(cohort)
            if node.parent is not None:
                node.parent.children[f"queue/{queue.name}"] = node
            else:
                node.tree = f"queue/{queue.name}"
                root_nodes.append(node)
        root_nodes += [node for node in self.cohorts.values() if node.parent is None]
        for root in root_nodes:
            refresh_tree(root)

    def _cohort_node(self, name: str) -> QuotaNode:
        new_nodes: list[QuotaNode] = []
        existing_node = self.cohorts.get(name)
        ancestor_name = name
        while ancestor_name not in self.cohorts:
            node = self.cohorts[ancestor_name] = QuotaNode(ancestor_name, len(self.flavor_resource_names))
            node.tree = f"cohort/{ancestor_name}"
            new_nodes.append(node)
            view = self._views.get(ancestor_name)
            if view is None:
                break
            self.set_quotas(node, view.groups)
            node.weight = view.weight
            if view.parent == NO_COHORT or self.has_cycle(ancestor_name):
                break
            ancestor_name = view.parent
        for node in new_nodes:
            view = self._views.get(node.name)
            if view and view.parent != NO_COHORT and not self.has_cycle(node.name):
                node.parent = self.cohorts[view.parent]
                node.parent.children[f"cohort/{node.name}"] = node
        return existing_node or new_nodes[0]


#: The sign of usage that was added to a ClusterQueue, but not to its Cohorts.
_QUEUE_ONLY: Final = 0
#: A tentative change: the queue, the removed Workload if any, the usage, and its sign (1 added, -1 removed).
TentativeChange: TypeAlias = tuple[cluster_queue.ClusterQueue, cluster_queue.AdmittedWorkload | None, Usage, int]


def _change_usage_of_queue(node: QuotaNode, usage: Usage, sign: int) -> None:
    node.path[0].available_by_gate = {}
    for fr, amount in usage:
        node.usage[fr] += sign * amount


class TentativeChangeScope:
    """Context manager that undoes the tentative changes to a Snapshot made inside it; may be nested."""

    __slots__ = ("_mark", "_snapshot")

    def __init__(self, snapshot: "Snapshot") -> None:
        self._snapshot = snapshot

    def __enter__(self) -> None:
        self._mark = self._snapshot.begin()

    def __exit__(self, *exception: object) -> None:
        self._snapshot.undo_to(self._mark)


class _SharedResourceGroups:
    """The resource groups that ClusterQueues share, by the resources and flavors of each group."""

    def __init__(self, flavor_resource_id: Callable[[str, str], int], *, ignores_undeclared: bool) -> None:
        self._flavor_resource_id = flavor_resource_id
        self._ignores_undeclared = ignores_undeclared
        self._indexes: dict[object, cluster_queue.ResourceGroupIndex] = {}

    def index_of(self, groups: tuple[ResourceGroup, ...]) -> cluster_queue.ResourceGroupIndex:
        """Return the shared index of some resource groups; a new one if no ClusterQueue has such groups yet."""
        group_content = tuple([(group.resources, group.flavors) for group in groups])
        shared_index = self._indexes.get(group_content)
        if shared_index is None:
            shared_index = self._indexes[group_content] = cluster_queue.ResourceGroupIndex(
                tuple([self._flavor_group(n, group) for n, group in enumerate(groups)]),
                ignores_undeclared=self._ignores_undeclared,
            )
        return shared_index

    def keep(self, used: Container[cluster_queue.ResourceGroupIndex]) -> None:
        """Drop the indexes that are not in `used`."""
        self._indexes = {content: index for content, index in self._indexes.items() if index in used}

    def clear_request_caches(self) -> None:
        """Forget which flavors suit which pods, after a change of a flavor."""
        for index in self._indexes.values():
            index.clear_request_cache()

    def _flavor_group(self, group_number: int, group: ResourceGroup) -> cluster_queue.FlavorGroup:
        ids = {r: tuple([self._flavor_resource_id(flavor, r) for flavor in group.flavors]) for r in group.resources}
        return cluster_queue.FlavorGroup(group_number, group.flavors, ids)


@dataclass(slots=True)
class PreemptionState:
    """What preemption considers besides quota: rules of PreemptionConfigs, and protection by minimal run times."""

    #: The PreemptionConfigs by name; empty if the feature gate is off.
    configs: dict[str, PreemptionConfigView] = field(default_factory=dict)
    #: The labels of the ClusterQueues, which these PreemptionConfigs select.
    queue_labels: dict[str, Mapping[str, str]] = field(default_factory=dict)
    #: The time of the current cycle.
    now: Instant = 0
    #: Whether a ClusterQueue or Cohort may protect Workloads by minimal run times.
    has_min_runtimes: bool = False
    #: For each ClusterQueue of a preemptor: when the first of the protections ends that the cycle respected.
    protection_ends: dict[str, Instant] = field(default_factory=dict)


class Snapshot:
    """The queues, Cohorts, flavors and Workloads with quota that a cycle reads; call `rebuild_if_changed()` first."""

    def __init__(self, *, ignores_undeclared: bool = False) -> None:
        """Create an empty snapshot; `ignores_undeclared`: requests for resources without quota do not block."""
        self.ignores_undeclared = ignores_undeclared
        self.forest = CohortForest()
        self.flavors: dict[str, FlavorView] = {}
        self.obstacles = cluster_queue.FlavorMismatches(self.flavors)
        self.queues: dict[str, cluster_queue.ClusterQueue] = {}
        #: The ClusterQueue of each leaf.
        self.queue_of: dict[QuotaNode, cluster_queue.ClusterQueue] = {}
        self._shared_groups = _SharedResourceGroups(self.flavor_resource_id, ignores_undeclared=ignores_undeclared)
        self._holders: dict[str, cluster_queue.AdmittedWorkload] = {}
        #: The nodes of flavors with a Topology, and the usage of Workloads there.
        self.topology = TopologyState()
        self._tentative_changes: list[TentativeChange] = []
        self._depth = 0
        self._is_outdated = False
        #: Trees (by their old ids), queues and Cohorts with changed quotas or members.
        self._changed_trees: dict[str, None] = {}
        self._changed_queues: dict[str, None] = {}
        self._changed_cohorts: dict[str, None] = {}
        self.rebuild_count = 0
        #: Returns the usage of a LocalQueue for the order of victims; None without admission fair sharing.
        self.usage_of: Callable[[str], float] | None = None
        self.preemption = PreemptionState()

    @property
    def cohorts(self) -> dict[str, QuotaNode]:
        """All Cohorts by name."""
        return self.forest.cohorts

    @property
    def flavor_resource_names(self) -> list[tuple[str, str]]:
        """The (flavor, resource) of each flavor-resource id."""
        return self.forest.flavor_resource_names

    # Permanent changes.

    def put_queue(self, view: ClusterQueueView) -> cluster_queue.ClusterQueue:
        """Add a ClusterQueue or replace its spec, and return the ClusterQueue; the Workloads with quota in it stay."""
        queue, coverage = self.queues.get(view.name), self._shared_groups.index_of(view.groups)
        if queue is None:
            node = QuotaNode(view.name, len(self.flavor_resource_names))
            queue = self.queues[view.name] = cluster_queue.ClusterQueue(view, node, coverage)
            self.queue_of[queue.node] = queue
            self._changed_queues[view.name] = None
        elif (queue.view.groups, queue.view.cohort) != (view.groups, view.cohort):
            self._changed_trees[queue.node.tree] = None
            self._changed_queues[view.name] = None
        queue.view, queue.coverage = view, coverage
        self.preemption.has_min_runtimes |= view.preemption_settings is not None
        queue.set_topology_flavors(self.topology.flavors)
        self.forest.set_quotas(queue.node, view.groups)
        queue.node.weight = view.weight
        self._is_outdated = True
        return queue

    def remove_queue(self, name: str) -> None:
        """Remove a ClusterQueue and the Workloads with quota in it."""
        queue = self.queues.pop(name, None)
        if queue is not None:
            self._changed_trees[queue.node.tree] = None
            del self.queue_of[queue.node]
            for key, workload in queue.workloads.items():
                del self._holders[key]
                if workload.topology_usage:
                    self.topology.add_usage(workload.topology_usage, -1)
            self._is_outdated = True

    def put_cohort(self, view: CohortView) -> None:
        """Add a Cohort or replace its spec."""
        self._record_cohort_change(view.name)
        self.preemption.has_min_runtimes |= view.preemption_settings is not None
        self.forest.put_cohort(view)
        self._is_outdated = True

    def remove_cohort(self, name: str) -> None:
        """Remove a Cohort's spec; if other objects still reference the Cohort, it remains without quota."""
        self._record_cohort_change(name)
        self._is_outdated |= self.forest.remove_cohort(name)

    def put_flavor(self, flavor: FlavorView) -> None:
        """Add or change a ResourceFlavor."""
        self.flavors[flavor.name] = flavor
        self.topology.put_flavor(flavor)
        self._clear_request_caches()

    def remove_flavor(self, name: str) -> None:
        """Remove a ResourceFlavor."""
        self.flavors.pop(name, None)
        self.topology.remove_flavor(name)
        self._clear_request_caches()

    def add_holder(self, workload: cluster_queue.AdmittedWorkload) -> None:
        """Add a Workload with quota and its usage to its queue; it replaces an earlier version of itself."""
        self.remove_holder(workload.key)
        workload.queue.put(workload)
        self._holders[workload.key] = workload
        self._change_usage(workload.queue.node, workload.usage, 1)
        if workload.topology_usage:
            self.topology.add_usage(workload.topology_usage)

    @staticmethod
    def confirm_admission(workload: cluster_queue.AdmittedWorkload) -> None:
        """Record that the write of an assumed admission succeeded: increment its ClusterQueue's generation.

        Flavor searches that stopped at an older generation then start over at the first flavor.
        """
        workload.queue.generation += 1

    def remove_holder(self, key: str) -> cluster_queue.AdmittedWorkload | None:
        """Remove a Workload's usage from its queue; return the removed AdmittedWorkload, None if it had no quota."""
        invariant(self._depth == 0, "remove_holder() must not be called inside a what_if() block")
        workload = self._holders.pop(key, None)
        if workload is not None:
            queue = workload.queue
            queue.remove(key)
            queue.generation += 1
            self._change_usage(queue.node, workload.usage, -1)
            if workload.topology_usage:
                self.topology.add_usage(workload.topology_usage, -1)
        return workload

    def holder(self, key: str) -> cluster_queue.AdmittedWorkload | None:
        """Return the AdmittedWorkload with this Workload key; None if the Workload has no quota."""
        return self._holders.get(key)

    def flavor_resource_id(self, flavor: str, resource: str) -> int:
        """Return the id of a flavor-resource pair; a new pair gets a new id."""
        old_count = len(self.flavor_resource_names)
        fr = self.forest.flavor_resource_id(flavor, resource)
        self._is_outdated |= len(self.flavor_resource_names) > old_count
        return fr

    def rebuild_if_changed(self) -> None:
        """Rebuild the cohort trees if queues, Cohorts or quotas have changed since the last rebuild."""
        if not self._is_outdated:
            return
        self._is_outdated = False
        self.rebuild_count += 1
        self.forest.rebuild(self.queues[name] for name in sorted(self.queues))
        self._advance_queue_generations()
        self._shared_groups.keep({queue.coverage: None for queue in self.queues.values()})

    def _record_cohort_change(self, name: str) -> None:
        node = self.cohorts.get(name)
        if node is not None:
            self._changed_trees[node.tree] = None
        self._changed_cohorts[name] = None

    def _advance_queue_generations(self) -> None:
        """Let stopped flavor searches start over in cohort trees whose quotas or members changed."""
        changed_trees = self._changed_trees
        changed_trees |= {self.queues[name].node.tree: None for name in self._changed_queues if name in self.queues}
        changed_trees |= {self.cohorts[name].tree: None for name in self._changed_cohorts if name in self.cohorts}
        for queue in self.queues.values():
            if queue.node.tree in changed_trees:
                queue.generation += 1
        self._changed_trees, self._changed_queues, self._changed_cohorts = {}, {}, {}

    # Queries on the trees.

    def queues_below(self, node: QuotaNode) -> list[cluster_queue.ClusterQueue]:
        """Return all ClusterQueues in the subtree of a cohort tree node."""
        queues_in_subtree, nodes = [], [node]
        for step in nodes:
            queue = self.queue_of.get(step)
            if queue is not None:
                queues_in_subtree.append(queue)
            nodes.extend(step.children.values())
        return queues_in_subtree

    @staticmethod
    def path_of(queue: cluster_queue.ClusterQueue) -> str:
        """Return the names from the root Cohort to a ClusterQueue, as in Kueue's messages: `/company/team/queue`."""
        return "/" + "/".join(node.name for node in queue.node.path)

    # Tentative changes.

    def what_if(self) -> TentativeChangeScope:
        """Return a context manager that undoes every change made inside it by the tentative methods; may be nested."""
        return TentativeChangeScope(self)

    def begin(self) -> int:
        """Allow tentative changes; return the number of changes so far, for `undo_to()`."""
        self._depth += 1
        return len(self._tentative_changes)

    def undo_to(self, change_count: int) -> None:
        """Undo the tentative changes made since `begin()` returned `change_count`, and end the block that it began."""
        tentative_changes = self._tentative_changes
        if self.topology.assumed:
            self.topology.undo_after(change_count)
        while len(tentative_changes) > change_count:
            queue, workload, usage, sign = tentative_changes.pop()
            if sign == _QUEUE_ONLY:
                _change_usage_of_queue(queue.node, usage, -1)
            else:
                change_usage(queue.node, usage, -sign)
            if workload is not None:
                queue.put(workload)
        self._depth -= 1

    def add_usage(self, queue: cluster_queue.ClusterQueue, usage: Usage) -> None:
        """Tentatively add usage to a ClusterQueue, without a Workload; only inside `what_if()`."""
        self._apply_tentatively(queue, None, usage, 1)

    def add_usage_of(self, workload: WorkloadView, queue: cluster_queue.ClusterQueue, usage: Usage) -> None:
        """Tentatively add the usage of a Workload, or the difference to the slice that it replaces."""
        if workload.replaced_slice:
            self.add_difference(queue, usage)
        else:
            self.add_usage(queue, usage)

    def add_difference(self, queue: cluster_queue.ClusterQueue, usage: Usage) -> None:
        """Tentatively add the usage by which a slice differs from the slice that it replaces; only in `what_if()`.

        As in Kueue (addUsage), a negative amount counts in the ClusterQueue, but not in its Cohorts.
        """
        self.add_usage(queue, tuple([(fr, amount) for fr, amount in usage if amount > 0]))
        released_usage = tuple([(fr, amount) for fr, amount in usage if amount < 0])
        if released_usage:
            self._tentative_changes.append((queue, None, released_usage, _QUEUE_ONLY))
            _change_usage_of_queue(queue.node, released_usage, 1)

    def remove_usage(self, queue: cluster_queue.ClusterQueue, usage: Usage) -> None:
        """Tentatively subtract usage from a ClusterQueue; only inside `what_if()`."""
        self._apply_tentatively(queue, None, usage, -1)

    def release(self, workload: cluster_queue.AdmittedWorkload, sign: int = -1) -> None:
        """Tentatively subtract a Workload's usage, or add it again (sign 1); only inside `what_if()`."""
        self._apply_tentatively(workload.queue, None, workload.usage, sign)
        if workload.topology_usage:
            self.use_topology(workload.topology_usage, sign)

    def use_topology(self, usage: TopologyUsage, sign: int = 1) -> None:
        """Tentatively add (sign 1) or subtract (-1) the usage of topology domains; only inside `what_if()`."""
        self.topology.assume_at(len(self._tentative_changes), usage, sign)

    def remove_workload(self, workload: cluster_queue.AdmittedWorkload) -> None:
        """Tentatively remove a Workload with quota and its usage (or its released part); only inside `what_if()`."""
        self._apply_tentatively(workload.queue, workload.whole or workload, workload.usage, -1)
        workload.queue.remove(workload.key)
        if workload.topology_usage:
            self.use_topology(workload.topology_usage, -1)

    def _apply_tentatively(
        self,
        queue: cluster_queue.ClusterQueue,
        removed_workload: cluster_queue.AdmittedWorkload | None,
        usage: Usage,
        sign: int,
    ) -> None:
        assert self._depth > 0, "tentative changes are allowed only inside a what_if() block"
        self._tentative_changes.append((queue, removed_workload, usage, sign))
        change_usage(queue.node, usage, sign)

    # Internal helpers.

    def _change_usage(self, node: QuotaNode, usage: Usage, sign: int) -> None:
        if not self._is_outdated:
            change_usage(node, usage, sign)
            return
        for fr, amount in usage:
            node.usage.extend([0] * (fr + 1 - len(node.usage)))
            node.usage[fr] += sign * amount

    def _clear_request_caches(self) -> None:
        self.obstacles.clear()
        self._shared_groups.clear_request_caches()
        if self.topology.is_enabled:
            for queue in self.queues.values():
                queue.set_topology_flavors(self.topology.flavors)


# Counts of the Workloads with quota, and the quota that they use, for each ClusterQueue or LocalQueue.


@dataclass(slots=True)
class QueueCounter:
    """The number of Workloads with quota in a queue, and the quota they use, by flavor-resource id."""

    reserving: int = 0
    admitted: int = 0
    reserved_usage: dict[int, int] = field(default_factory=dict)
    admitted_usage: dict[int, int] = field(default_factory=dict)


class QueueCounters:
    """The number and quota usage of the Workloads with quota, by queue name."""

    def __init__(self) -> None:
        self._counts: dict[str, QueueCounter] = {}

    def get(self, queue: str) -> QueueCounter:
        """Return the counter of a queue; a counter of zeros if no Workload of the queue was counted."""
        return self._counts.get(queue) or QueueCounter()

    def add(self, queue: str, quota_holder: cluster_queue.AdmittedWorkload) -> None:
        """Count a Workload that has a quota reservation in the counter of a ClusterQueue or LocalQueue."""
        counter = self._counts.get(queue)
        if counter is None:
            counter = self._counts[queue] = QueueCounter()
        self._change_counter(counter, quota_holder, 1)

    def remove(self, queue: str, quota_holder: cluster_queue.AdmittedWorkload) -> None:
        """Subtract a Workload from the counter of its queue."""
        counter = self._counts.get(queue)
        if counter is not None:
            self._change_counter(counter, quota_holder, -1)

    def forget(self, queue: str) -> None:
        """Delete the counter of a queue."""
        self._counts.pop(queue, None)

    @staticmethod
    def _change_counter(counter: QueueCounter, quota_holder: cluster_queue.AdmittedWorkload, sign: int) -> None:
        counter.reserving += sign
        usage_tables = [counter.reserved_usage]
        if quota_holder.is_admitted:
            counter.admitted += sign
            usage_tables.append(counter.admitted_usage)
        for fr, amount in quota_holder.usage:
            for table in usage_tables:
                table[fr] = table.get(fr, 0) + sign * amount


def make_holder(
    view: WorkloadView,
    queue: cluster_queue.ClusterQueue,
    usage: Usage,
    assigned_frs: frozenset[int],
    *,
    reserved_at: Instant,
    is_admitted: bool,
) -> cluster_queue.AdmittedWorkload:
    """Return the AdmittedWorkload for a Workload with quota; `usage` are its amounts by flavor-resource."""
    return cluster_queue.AdmittedWorkload(
        view.key,
        view.uid,
        queue,
        tuple(sorted(usage)),  # a fixed order
        assigned_frs,
        view.priority,
        view.queued,
        reserved_at,
        view.evicted and view.quota_reserved,
        is_admitted,
        view.queue,
        view.boost,
        (),
        (),
        view.obj,
    )  # positional arguments, because keyword arguments dominate the cost here
