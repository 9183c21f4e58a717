"""Nothing is stuck: when nothing is left to happen, nobody waits for quota that lies free.

Whoever waits then must be one whose turn it could not be: its queues are closed or closed to it, it is held back, it
waits behind the head of a StrictFIFO queue, or there is no room for it now. Three cases are left out, all as upstream
has them. A StrictFIFO queue whose head waits for quota may keep quota for it that others then lack. A tree in which
Workloads preempt each other for ever is left alone. And the search for victims overlooks quota for the number of pods:
a head whose victims would not free enough pods stays at the front, and nobody behind it has a turn.
"""

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.views.queues import ClusterQueueView, ResourceGroup
from batchyard.api.views.workload import WorkloadView
from batchyard.core.matching import find_obstacle
from batchyard.sim.checkers.definition import Pair
from batchyard.sim.checkers.law import Law


class NothingIsStuck(Law):
    """See the module."""

    name = "nothing_is_stuck"

    def finish(self) -> None:
        """Look at all who wait, if nothing is left to happen."""
        if self.scene.world.kernel.pending():
            return
        waiting = self._waiting()
        looping = {loop.root for loop in self.scene.world.loops}
        for queue, views in waiting.items():
            root = self._root(queue)
            spec = self.ledger.queues[queue]
            others = [name for name in waiting if name != queue and self._root(name) == root]
            if root.partition("/")[2] in looping or any(self.ledger.queues[name].strict_fifo for name in others):
                continue
            for view in views[:1] if spec.strict_fifo or _counts_pods(spec) else views:
                if self._has_room(view, spec):
                    what = f"{view.key} waits in {queue} though there is room for it"
                    self.violate(what, Key(scheme.WORKLOAD, view.namespace, view.name))

    def _waiting(self) -> dict[str, list[WorkloadView]]:
        """Whoever could have its turn, by ClusterQueue, in the order of turns."""
        found: dict[str, list[WorkloadView]] = {}
        for view in self.ledger.workloads.values():
            queue = self.ledger.queue_of(view)
            if queue is not None and self._may_have_its_turn(view, queue):
                found.setdefault(queue.name, []).append(view)
        return {name: sorted(views, key=_turn) for name, views in found.items()}

    def _may_have_its_turn(self, view: WorkloadView, queue: ClusterQueueView) -> bool:
        labels = self.ledger.namespaces.get(view.namespace)
        is_open = queue.stop_policy == "None" and self.ledger.local_queues[view.queue].stop_policy == "None"
        is_whole = all(flavor in self.ledger.flavors for group in queue.groups for flavor in group.flavors)
        return (
            is_open
            and is_whole
            and not queue.admission_checks
            and queue.name not in self.ledger.terminating
            and not self.ledger.quota.is_in_cycle(queue.cohort)
            and labels is not None
            and queue.namespaces is not None
            and queue.namespaces.matches(labels)
            and view.admissible
            and not view.requeue_blocked
            and view.requeue_at is None
            and not any(pod_set.template.over_limit for pod_set in view.pod_sets)
        )

    def _has_room(self, view: WorkloadView, queue: ClusterQueueView) -> bool:
        """Whether one flavor of each resource group could hold all pod sets: then no choice before can fail it."""
        total: dict[str, int] = {}
        for pod_set, count in zip(view.pod_sets, view.counts, strict=True):
            for resource, amount in pod_set.template.requests:
                total[resource] = total.get(resource, 0) + amount * count
        covered = {resource: group for group in queue.groups for resource in group.resources}
        if "pods" in covered:
            total["pods"] = sum(view.counts)
        if any(amount and resource not in covered for resource, amount in total.items()):
            return False
        groups = [group for group in queue.groups if any(resource in total for resource in group.resources)]
        return all(self._group_has_room(view, queue, group, total) for group in groups)

    def _group_has_room(
        self, view: WorkloadView, queue: ClusterQueueView, group: ResourceGroup, total: dict[str, int]
    ) -> bool:
        for flavor in group.flavors:
            wanted = {(flavor, resource): total[resource] for resource in group.resources if resource in total}
            suits = all(not find_obstacle(p.template, flavor, self.ledger.flavors[flavor]) for p in view.pod_sets)
            if suits and all(self._is_free(queue, pair, amount) for pair, amount in wanted.items()):
                return True
        return False

    def _is_free(self, queue: ClusterQueueView, pair: Pair, amount: int) -> bool:
        return amount <= max(0, self.ledger.quota.available(f"queue/{queue.name}", pair))

    def _root(self, queue: str) -> str:
        return self.ledger.quota.path(f"queue/{queue}")[0]


def _counts_pods(queue: ClusterQueueView) -> bool:
    return any("pods" in group.resources for group in queue.groups)


def _turn(view: WorkloadView) -> tuple[int, int, str]:
    return -view.priority, view.queued, view.uid
