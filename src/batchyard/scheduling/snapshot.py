"""Snapshot: the queues, Cohorts, flavors and quota holders that a scheduling cycle reads.

One snapshot exists for the lifetime of the scheduler and is updated between cycles. Changes that a cycle makes inside
`what_if()` are undone exactly. Source: Kueue's pkg/cache/scheduler (cache, snapshot).
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from batchyard.api.views.workload import ClusterQueueView, CohortView, FlavorView, ResourceGroup
from batchyard.base import invariant
from batchyard.scheduling.cluster_queue import (
    AdmittedWorkload,
    ClusterQueue,
    FlavorGroup,
    FlavorMismatches,
    ResourceGroupIndex,
)
from batchyard.scheduling.quota import QuotaNode, Usage, change_usage, refresh_tree

# --- cohort forest ---
#
# The trees of Cohorts and ClusterQueues, built from their specs.
#
# A Cohort exists if it has an object or is referenced (then without quota of its own). A Cohort whose parents form a
# cycle has no parent here, and ClusterQueues below it have no Cohort. Flavor-resource pairs are numbered on first use.
# Source: Kueue's pkg/cache/hierarchy.


NO_COHORT: Final = ""


class CohortForest:
    """The Cohort nodes of all trees, and the ids of flavor-resource pairs."""

    def __init__(self) -> None:
        self.cohorts: dict[str, QuotaNode] = {}
        #: The flavor and resource of each flavor-resource id.
        self.names: list[tuple[str, str]] = []
        self._ids: dict[tuple[str, str], int] = {}
        self._views: dict[str, CohortView] = {}

    def id_of(self, flavor: str, resource: str) -> int:
        """Return the id of a flavor-resource pair; it is assigned on first use."""
        pair = (flavor, resource)
        known = self._ids.get(pair)
        if known is None:
            known = self._ids[pair] = len(self.names)
            self.names.append(pair)
        return known

    @property
    def views(self) -> Mapping[str, CohortView]:
        """The Cohorts that have an object, by name."""
        return self._views

    def put_cohort(self, view: CohortView) -> None:
        """Add or change a Cohort."""
        self._views[view.name] = view
        for group in view.groups:
            for quota in group.quotas:
                self.id_of(quota.flavor, quota.resource)

    def remove_cohort(self, name: str) -> bool:
        """Remove a Cohort's object; it stays without quota while referenced. Return whether it existed."""
        return self._views.pop(name, None) is not None

    def has_cycle(self, cohort: str) -> bool:
        """Report whether the parents of a Cohort form a cycle."""
        seen: dict[str, None] = {}
        while cohort != NO_COHORT:
            if cohort in seen:
                return True
            seen[cohort] = None
            view = self._views.get(cohort)
            cohort = view.parent if view else NO_COHORT
        return False

    def set_quotas(self, node: QuotaNode, groups: Iterable[ResourceGroup]) -> None:
        """Set a node's own quotas and limits."""
        node.nominal, node.borrowing_limit, node.lending_limit = {}, {}, {}
        for group in groups:
            for quota in group.quotas:
                fr = self.id_of(quota.flavor, quota.resource)
                node.nominal[fr] = quota.nominal
                if quota.borrowing_limit is not None:
                    node.borrowing_limit[fr] = quota.borrowing_limit
                if quota.lending_limit is not None:
                    node.lending_limit[fr] = quota.lending_limit

    def rebuild(self, queues: Iterable[ClusterQueue]) -> None:
        """Rebuild all trees; the queues come in order of name."""
        width = len(self.names)
        self.cohorts = {}
        for name in sorted(self._views):
            self._cohort(name)
        roots = []
        for queue in queues:
            node, cohort = queue.node, queue.view.cohort
            node.usage.extend([0] * (width - len(node.usage)))
            queue.in_cycle = self.has_cycle(cohort)
            node.parent = None if cohort == NO_COHORT or queue.in_cycle else self._cohort(cohort)
            if node.parent is not None:
                node.parent.children[f"queue/{queue.name}"] = node
            else:
                node.tree = f"queue/{queue.name}"
                roots.append(node)
        roots += [node for node in self.cohorts.values() if node.parent is None]
        for root in roots:
            refresh_tree(root)

    def _cohort(self, name: str) -> QuotaNode:
        """Return the node of a Cohort; create it and its ancestors on first use."""
        made: list[QuotaNode] = []
        found = self.cohorts.get(name)
        above = name
        while above not in self.cohorts:
            node = self.cohorts[above] = QuotaNode(above, len(self.names))
            node.tree = f"cohort/{above}"
            made.append(node)
            view = self._views.get(above)
            if view is None:
                break
            self.set_quotas(node, view.groups)
            node.weight = view.weight
            if view.parent == NO_COHORT or self.has_cycle(above):
                break
            above = view.parent
        for node in made:
            view = self._views.get(node.name)
            if view and view.parent != NO_COHORT and not self.has_cycle(node.name):
                node.parent = self.cohorts[view.parent]
                node.parent.children[f"cohort/{node.name}"] = node
        return found or made[0]


#: A tentative change: the queue, the removed Workload if any, the usage, and its sign (1 added, -1 removed).
TentativeChange: TypeAlias = tuple[ClusterQueue, AdmittedWorkload | None, Usage, int]


class TentativeChanges:
    """A block whose changes are undone at its end, even after an exception. Blocks nest."""

    __slots__ = ("_mark", "_snapshot")

    def __init__(self, snapshot: "Snapshot") -> None:
        self._snapshot = snapshot

    def __enter__(self) -> None:
        self._mark = self._snapshot.begin()

    def __exit__(self, *exception: object) -> None:
        self._snapshot.undo_to(self._mark)


class Snapshot:
    """The state that decisions read. Call `settle()` after changes of queues, Cohorts or flavors, before reading."""

    def __init__(self) -> None:
        self.forest = CohortForest()
        self.flavors: dict[str, FlavorView] = {}
        self.obstacles = FlavorMismatches(self.flavors)
        self.queues: dict[str, ClusterQueue] = {}
        #: The ClusterQueue of each leaf.
        self.queue_of: dict[QuotaNode, ClusterQueue] = {}
        #: By the resources and flavors of each group; unused ones are dropped in `settle()`.
        self._coverages: dict[object, ResourceGroupIndex] = {}
        self._assigned: dict[str, AdmittedWorkload] = {}
        self._trials: list[TentativeChange] = []
        self._depth = 0
        self._dirty = False
        #: Trees (by their old ids), queues and Cohorts with changed quotas or members.
        self._changed_trees: dict[str, None] = {}
        self._changed_queues: dict[str, None] = {}
        self._changed_cohorts: dict[str, None] = {}
        #: The number of rebuilds of the trees.
        self.rebuilds = 0

    @property
    def cohorts(self) -> dict[str, QuotaNode]:
        """All Cohorts by name."""
        return self.forest.cohorts

    @property
    def names(self) -> list[tuple[str, str]]:
        """The flavor and resource of each flavor-resource id."""
        return self.forest.names

    # Permanent changes.

    def put_queue(self, view: ClusterQueueView) -> ClusterQueue:
        """Add or change a ClusterQueue; its Workloads stay."""
        queue, coverage = self.queues.get(view.name), self._coverage(view.groups)
        if queue is None:
            queue = self.queues[view.name] = ClusterQueue(view, QuotaNode(view.name, len(self.names)), coverage)
            self.queue_of[queue.node] = queue
            self._changed_queues[view.name] = None
        elif (queue.view.groups, queue.view.cohort) != (view.groups, view.cohort):
            self._changed_trees[queue.node.tree] = None
            self._changed_queues[view.name] = None
        queue.view, queue.coverage = view, coverage
        self.forest.set_quotas(queue.node, view.groups)
        queue.node.weight = view.weight
        self._dirty = True
        return queue

    def remove_queue(self, name: str) -> None:
        """Remove a ClusterQueue and its quota holders."""
        queue = self.queues.pop(name, None)
        if queue is not None:
            self._changed_trees[queue.node.tree] = None
            del self.queue_of[queue.node]
            for key in queue.workloads:
                del self._assigned[key]
            self._dirty = True

    def put_cohort(self, view: CohortView) -> None:
        """Add or change a Cohort."""
        self._note_cohort(view.name)
        self.forest.put_cohort(view)
        self._dirty = True

    def remove_cohort(self, name: str) -> None:
        """Remove a Cohort's object; it stays without quota while it is referenced."""
        self._note_cohort(name)
        self._dirty |= self.forest.remove_cohort(name)

    def put_flavor(self, flavor: FlavorView) -> None:
        """Add or change a ResourceFlavor."""
        self.flavors[flavor.name] = flavor
        self._forget_plans()

    def remove_flavor(self, name: str) -> None:
        """Remove a ResourceFlavor."""
        self.flavors.pop(name, None)
        self._forget_plans()

    def hold(self, workload: AdmittedWorkload) -> None:
        """Count a Workload that holds quota; replace its previous entry, if any."""
        self.release(workload.key)
        workload.queue.put(workload)
        self._assigned[workload.key] = workload
        self._count(workload.queue.node, workload.usage, 1)

    @staticmethod
    def confirm(workload: AdmittedWorkload) -> None:
        """Confirm that a counted Workload is correct. Older flavor searches start over, as after hold()."""
        workload.queue.generation += 1

    def release(self, key: str) -> AdmittedWorkload | None:
        """Stop counting a Workload. Return its entry, or None."""
        invariant(self._depth == 0, "permanent changes are not allowed inside a what_if()")
        workload = self._assigned.pop(key, None)
        if workload is not None:
            queue = workload.queue
            queue.take(key)
            queue.generation += 1
            self._count(queue.node, workload.usage, -1)
        return workload

    def holder(self, key: str) -> AdmittedWorkload | None:
        """Return the Workload of that key if it holds quota."""
        return self._assigned.get(key)

    def id_of(self, flavor: str, resource: str) -> int:
        """Return the id of a flavor-resource pair; it is assigned on first use."""
        before = len(self.names)
        fr = self.forest.id_of(flavor, resource)
        self._dirty |= len(self.names) > before
        return fr

    def settle(self) -> None:
        """Rebuild the trees after changes of queues, Cohorts or their quotas."""
        if not self._dirty:
            return
        self._dirty = False
        self.rebuilds += 1
        self.forest.rebuild(self.queues[name] for name in sorted(self.queues))
        self._renew_generations()
        used = {queue.coverage: None for queue in self.queues.values()}
        self._coverages = {content: coverage for content, coverage in self._coverages.items() if coverage in used}

    def _note_cohort(self, name: str) -> None:
        """Record a changed Cohort."""
        known = self.cohorts.get(name)
        if known is not None:
            self._changed_trees[known.tree] = None
        self._changed_cohorts[name] = None

    def _renew_generations(self) -> None:
        """Invalidate flavor searches in trees with changed quotas or members; other edits of a queue do not."""
        trees = self._changed_trees
        trees |= {self.queues[name].node.tree: None for name in self._changed_queues if name in self.queues}
        trees |= {self.cohorts[name].tree: None for name in self._changed_cohorts if name in self.cohorts}
        for queue in self.queues.values():
            if queue.node.tree in trees:
                queue.generation += 1
        self._changed_trees, self._changed_queues, self._changed_cohorts = {}, {}, {}

    # Queries on the trees.

    def queues_below(self, node: QuotaNode) -> list[ClusterQueue]:
        """Return all ClusterQueues of a subtree."""
        found, nodes = [], [node]
        for step in nodes:
            queue = self.queue_of.get(step)
            if queue is not None:
                found.append(queue)
            nodes.extend(step.children.values())
        return found

    @staticmethod
    def path_of(queue: ClusterQueue) -> str:
        """Return the path of a ClusterQueue in its tree: `/company/team/queue`."""
        return "/" + "/".join(node.name for node in queue.node.path)

    # Tentative changes.

    def what_if(self) -> TentativeChanges:
        """Return a context that undoes every change made inside it, even after an exception. Contexts nest."""
        return TentativeChanges(self)

    def begin(self) -> int:
        """Begin tentative changes. Return the mark for undo_to()."""
        self._depth += 1
        return len(self._trials)

    def undo_to(self, mark: int) -> None:
        """Undo all changes since begin()."""
        trials = self._trials
        while len(trials) > mark:
            queue, workload, usage, sign = trials.pop()
            change_usage(queue.node, usage, -sign)
            if workload is not None:
                queue.put(workload)
        self._depth -= 1

    def add_usage(self, queue: ClusterQueue, usage: Usage) -> None:
        """Add usage without a Workload, inside a what_if()."""
        self._try(queue, None, usage, 1)

    def remove_usage(self, queue: ClusterQueue, usage: Usage) -> None:
        """Subtract usage, inside a what_if()."""
        self._try(queue, None, usage, -1)

    def remove_workload(self, workload: AdmittedWorkload) -> None:
        """Remove a Workload, inside a what_if()."""
        self._try(workload.queue, workload, workload.usage, -1)
        workload.queue.take(workload.key)

    def _try(self, queue: ClusterQueue, taken: AdmittedWorkload | None, usage: Usage, sign: int) -> None:
        assert self._depth > 0, "tentative change outside a what_if()"
        self._trials.append((queue, taken, usage, sign))
        change_usage(queue.node, usage, sign)

    # Internal helpers.

    def _count(self, node: QuotaNode, usage: Usage, sign: int) -> None:
        if not self._dirty:
            change_usage(node, usage, sign)
            return
        for fr, amount in usage:
            node.usage.extend([0] * (fr + 1 - len(node.usage)))
            node.usage[fr] += sign * amount

    def _coverage(self, groups: tuple[ResourceGroup, ...]) -> ResourceGroupIndex:
        """Return the coverage of these groups, shared by all ClusterQueues with equal groups."""
        content = tuple([(group.resources, group.flavors) for group in groups])
        known = self._coverages.get(content)
        if known is None:
            known = self._coverages[content] = ResourceGroupIndex(
                tuple([self._group(n, group) for n, group in enumerate(groups)])
            )
        return known

    def _group(self, number: int, group: ResourceGroup) -> FlavorGroup:
        ids = {r: tuple([self.id_of(flavor, r) for flavor in group.flavors]) for r in group.resources}
        return FlavorGroup(number, group.flavors, ids)

    def _forget_plans(self) -> None:
        self.obstacles.forget()
        for coverage in self._coverages.values():
            coverage.forget_plans()
