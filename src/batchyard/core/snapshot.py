"""All that a scheduling cycle looks at: queues, Cohorts, flavors, and who holds what.

One snapshot lives as long as the scheduler; between cycles it is kept up to date, and whatever a cycle tries inside
`what_if()` is undone exactly. Cohorts exist by their object or by being named (then without quota of their own).
A Cohort whose parents form a cycle, and every ClusterQueue below it, is left out of admission.
Sources: Kueue's pkg/cache/scheduler (cache, snapshot) and pkg/cache/hierarchy.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from batchyard.api.views.flavor import Flavor
from batchyard.api.views.queues import ClusterQueueView, CohortView, ResourceGroup
from batchyard.base.check import invariant
from batchyard.base.instant import Instant
from batchyard.core.matching import FlavorMatches
from batchyard.core.quota import QuotaNode, Usage, change_usage, refresh_tree

NO_COHORT: Final = ""


class Group:
    """A resource group of a ClusterQueue, its flavor-resource ids looked up."""

    __slots__ = ("flavors", "ids", "matches", "resources")

    def __init__(self, group: ResourceGroup, ids: Mapping[str, tuple[int, ...]]) -> None:
        self.flavors = group.flavors
        self.resources = group.resources
        #: By resource: the id for each flavor, in the order of `flavors`.
        self.ids = ids
        self.matches = FlavorMatches()


class Admitted:
    """A Workload that holds quota."""

    __slots__ = ("evicted", "flavor_resources", "is_admitted", "job_uid", "key", "local_queue", "priority", "queue",
                 "queued", "reserved_at", "uid", "usage")  # fmt: skip

    def __init__(self, key: str, uid: str, queue: "ClusterQueue", usage: Usage) -> None:
        self.key = key
        self.uid = uid
        self.queue = queue
        self.usage = usage
        #: Every flavor-resource assigned, those with an amount of zero included.
        self.flavor_resources: frozenset[int] = frozenset(fr for fr, _ in usage)
        self.job_uid = ""
        self.local_queue = ""
        self.priority = 0
        self.queued: Instant = 0
        self.reserved_at: Instant = 0
        self.evicted = False
        self.is_admitted = True


class ClusterQueue:
    """A ClusterQueue as decisions see it: its spec, its place in the quota tree, its Workloads."""

    __slots__ = ("active", "generation", "group_of", "groups", "in_cycle", "name", "node", "view", "workloads")

    def __init__(self, view: ClusterQueueView, node: QuotaNode) -> None:
        self.name = view.name
        self.view = view
        self.node = node
        self.groups: tuple[Group, ...] = ()
        self.group_of: dict[str, Group] = {}
        self.workloads: dict[str, Admitted] = {}
        #: Grows whenever quota may have become free here; an older flavor search is then started over.
        self.generation = 1
        self.active = True
        #: Its Cohort's parents lead into a cycle.
        self.in_cycle = False


class Snapshot:
    """See the module. `settle()` before reading, after any change of queues, Cohorts or flavors."""

    def __init__(self) -> None:
        self.flavors: dict[str, Flavor] = {}
        self.queues: dict[str, ClusterQueue] = {}
        self.cohorts: dict[str, QuotaNode] = {}
        #: The names of flavor-resource ids: (flavor, resource).
        self.names: list[tuple[str, str]] = []
        #: By root node name: grows with every lasting change in the tree.
        self.versions: dict[str, int] = {}
        #: The ClusterQueue of a leaf.
        self.queue_of: dict[QuotaNode, ClusterQueue] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._cohort_views: dict[str, CohortView] = {}
        self._assigned: dict[str, Admitted] = {}
        self._journal: list[tuple[ClusterQueue, Admitted | None, Usage, int]] | None = None
        self._dirty = False

    # Changes that last.

    def put_queue(self, view: ClusterQueueView) -> ClusterQueue:
        """Add or change a ClusterQueue; its Workloads stay."""
        queue = self.queues.get(view.name)
        if queue is None:
            queue = self.queues[view.name] = ClusterQueue(view, QuotaNode(view.name, len(self.names)))
            self.queue_of[queue.node] = queue
        queue.view = view
        self._set_quotas(queue.node, view.groups)
        queue.node.weight = view.weight
        queue.groups = tuple(self._group(group) for group in view.groups)
        queue.group_of = {resource: group for group in queue.groups for resource in group.resources}
        self._dirty = True
        return queue

    def remove_queue(self, name: str) -> None:
        """Forget a ClusterQueue and whoever holds quota in it."""
        queue = self.queues.pop(name, None)
        if queue is not None:
            del self.queue_of[queue.node]
            for key in queue.workloads:
                del self._assigned[key]
            self._dirty = True

    def put_cohort(self, view: CohortView) -> None:
        """Add or change a Cohort."""
        self._cohort_views[view.name] = view
        for group in view.groups:
            for quota in group.quotas:
                self.id_of(quota.flavor, quota.resource)
        self._dirty = True

    def remove_cohort(self, name: str) -> None:
        """Forget a Cohort's object; it lives on without quota while somebody names it."""
        self._dirty |= self._cohort_views.pop(name, None) is not None

    def put_flavor(self, flavor: Flavor) -> None:
        """Add or change a ResourceFlavor."""
        self.flavors[flavor.name] = flavor
        self._forget_matches()

    def remove_flavor(self, name: str) -> None:
        """Forget a ResourceFlavor."""
        self.flavors.pop(name, None)
        self._forget_matches()

    def hold(self, workload: Admitted) -> None:
        """Count a Workload that holds quota, anew if it was counted already."""
        invariant(self._journal is None, "what lasts is not tried")
        self.release(workload.key)
        workload.queue.workloads[workload.key] = workload
        self._assigned[workload.key] = workload
        self._apply(workload.queue.node, workload.usage, 1)

    def release(self, key: str) -> Admitted | None:
        """Count a Workload no more; returns what it held, or None."""
        invariant(self._journal is None, "what lasts is not tried")
        workload = self._assigned.pop(key, None)
        if workload is not None:
            queue = workload.queue
            del queue.workloads[key]
            queue.generation += 1
            self._apply(queue.node, workload.usage, -1)
        return workload

    def holder(self, key: str) -> Admitted | None:
        """The Workload of that key if it holds quota."""
        return self._assigned.get(key)

    def id_of(self, flavor: str, resource: str) -> int:
        """The id of a flavor-resource pair, made on first use."""
        pair = (flavor, resource)
        known = self._ids.get(pair)
        if known is None:
            known = self._ids[pair] = len(self.names)
            self.names.append(pair)
            self._dirty = True
        return known

    def settle(self) -> bool:
        """Rebuild the trees after changes of queues, Cohorts or their quotas; whether there were any."""
        if not self._dirty:
            return False
        self._dirty = False
        self._rebuild()
        return True

    def has_cycle(self, cohort: str) -> bool:
        """Whether the parents of a Cohort lead into a cycle."""
        seen: dict[str, None] = {}
        while cohort != NO_COHORT:
            if cohort in seen:
                return True
            seen[cohort] = None
            view = self._cohort_views.get(cohort)
            cohort = view.parent if view else NO_COHORT
        return False

    def queues_below(self, node: QuotaNode) -> list[ClusterQueue]:
        """All ClusterQueues of a subtree."""
        found, nodes = [], [node]
        for step in nodes:
            queue = self.queue_of.get(step)
            if queue is not None:
                found.append(queue)
            nodes.extend(step.children.values())
        return found

    def path_of(self, queue: ClusterQueue) -> str:
        """Where a ClusterQueue is in its tree: `/root/cohort/queue`."""
        return "/" + "/".join(node.name for node in queue.node.path)

    def version(self, queue: ClusterQueue) -> int:
        """A number that grows with every lasting change in the queue's tree."""
        return self.versions[queue.node.path[0].name]

    # Changes that are undone.

    @contextmanager
    def what_if(self) -> Iterator[None]:
        """Undo every change made inside the block, whatever happens. Blocks nest."""
        outer = self._journal
        if outer is None:
            self._journal = []
        journal = self._journal
        assert journal is not None
        mark = len(journal)
        try:
            yield
        finally:
            while len(journal) > mark:
                self._undo(journal.pop())
            self._journal = outer

    def add_usage(self, queue: ClusterQueue, usage: Usage) -> None:
        """Count usage of nobody in particular, inside a what_if()."""
        self._record(queue, None, usage, 1)

    def remove_usage(self, queue: ClusterQueue, usage: Usage) -> None:
        """Take usage away, inside a what_if()."""
        self._record(queue, None, usage, -1)

    def add_workload(self, workload: Admitted) -> None:
        """Put a Workload back, inside a what_if()."""
        self._record(workload.queue, workload, workload.usage, 1)

    def remove_workload(self, workload: Admitted) -> None:
        """Take a Workload out, inside a what_if()."""
        self._record(workload.queue, workload, workload.usage, -1)

    def _record(self, queue: ClusterQueue, workload: Admitted | None, usage: Usage, sign: int) -> None:
        journal = self._journal
        assert journal is not None, "tried outside a what_if()"
        journal.append((queue, workload, usage, sign))
        self._try(queue, workload, usage, sign)

    def _undo(self, entry: tuple[ClusterQueue, Admitted | None, Usage, int]) -> None:
        queue, workload, usage, sign = entry
        self._try(queue, workload, usage, -sign)

    @staticmethod
    def _try(queue: ClusterQueue, workload: Admitted | None, usage: Usage, sign: int) -> None:
        node = queue.node
        for fr, amount in usage:
            change_usage(node, fr, sign * amount)
        if workload is None:
            return
        if sign > 0:
            queue.workloads[workload.key] = workload
        else:
            del queue.workloads[workload.key]

    # Building.

    def _apply(self, node: QuotaNode, usage: Usage, sign: int) -> None:
        for fr, amount in usage:
            if fr >= len(node.usage):
                self._dirty = True
                node.usage.extend([0] * (len(self.names) - len(node.usage)))
            if self._dirty:
                node.usage[fr] += sign * amount
            else:
                change_usage(node, fr, sign * amount)
        root = node.path[0].name
        self.versions[root] = self.versions.get(root, 0) + 1

    def _group(self, group: ResourceGroup) -> Group:
        ids = {r: tuple(self.id_of(flavor, r) for flavor in group.flavors) for r in group.resources}
        return Group(group, ids)

    def _set_quotas(self, node: QuotaNode, groups: tuple[ResourceGroup, ...]) -> None:
        node.nominal, node.borrowing_limit, node.lending_limit = {}, {}, {}
        for group in groups:
            for quota in group.quotas:
                fr = self.id_of(quota.flavor, quota.resource)
                node.nominal[fr] = quota.nominal
                if quota.borrowing_limit is not None:
                    node.borrowing_limit[fr] = quota.borrowing_limit
                if quota.lending_limit is not None:
                    node.lending_limit[fr] = quota.lending_limit

    def _forget_matches(self) -> None:
        for queue in self.queues.values():
            for group in queue.groups:
                group.matches = FlavorMatches()

    def _rebuild(self) -> None:
        """Make all trees again: Cohorts by object or by name, ClusterQueues under them in order of name."""
        width = len(self.names)
        self.cohorts = {}
        for name in sorted(self._cohort_views):
            self._cohort(name)
        for name in sorted(self.queues):
            queue = self.queues[name]
            node = queue.node
            node.usage.extend([0] * (width - len(node.usage)))
            cohort = queue.view.cohort
            queue.in_cycle = self.has_cycle(cohort)
            node.parent = None if cohort == NO_COHORT or queue.in_cycle else self._cohort(cohort)
            if node.parent is not None:
                node.parent.children[f"queue/{name}"] = node
        for root in [*self.cohorts.values(), *(q.node for q in self.queues.values())]:
            if root.parent is None and not (root.name in self.cohorts and self.has_cycle(root.name)):
                refresh_tree(root)
        for queue in self.queues.values():
            queue.generation += 1
            root_name = queue.node.path[0].name
            self.versions[root_name] = self.versions.get(root_name, 0) + 1

    def _cohort(self, name: str) -> QuotaNode:
        """The node of a Cohort and, on first use, those of its ancestors. A Cohort in a cycle stays without parent."""
        made: list[QuotaNode] = []
        while name not in self.cohorts:
            node = self.cohorts[name] = QuotaNode(name, len(self.names))
            made.append(node)
            view = self._cohort_views.get(name)
            if view is None:
                break
            self._set_quotas(node, view.groups)
            node.weight = view.weight
            if view.parent == NO_COHORT or self.has_cycle(name):
                break
            name = view.parent
        self._link(made)
        return made[0] if made else self.cohorts[name]

    def _link(self, chain: list[QuotaNode]) -> None:
        for node in chain:
            view = self._cohort_views.get(node.name)
            if view and view.parent != NO_COHORT and not self.has_cycle(node.name):
                node.parent = self.cohorts[view.parent]
                node.parent.children[f"cohort/{node.name}"] = node
