"""Liveness: when no more events are scheduled, everything that has not ended waits for something that does not exist.

No pod on a node runs forever, so no gang is placed in part. Every Job or JobSet that may run has waiting pods. The
exception is a Job alone in its domain whose first pod has succeeded: JobSet rejects the pods that would follow that
one. Every waiting pod has a reason. No gang waits that would fit the existing nodes, or those that a pool can add.
"""

from collections.abc import Iterator, Sequence

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, controller_of, is_true, key_of, label
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.api.views.workload import ClusterQueueView, ResourceGroup, WorkloadView
from batchyard.cloud.catalog.instances import FAILED, phase_of
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.nodes import node_template
from batchyard.cloud.catalog.prices import hosts_of_slice, is_autoscaled, zones_of
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.jobs.job.spec import contains, parsed
from batchyard.scheduling.cluster_queue import flavor_mismatch
from batchyard.sim.invariants.cluster import (
    placed,
    requested,
    unsuitable,
)
from batchyard.sim.invariants.invariant import Invariant, WorldView
from batchyard.sim.invariants.ledger import Pair

_ENDS = ("Complete", "Completed", "Failed")


class NothingHangs(Invariant):
    """Jobs have pods that wait, and waiting pods have a reason and no room."""

    name = "nothing_hangs"

    def finish(self) -> None:
        """Check everything that has not ended."""
        if self.is_at_rest:
            pods = [obj for obj in self.scene.world.objects(scheme.POD) if not pod_view(obj).is_terminal]
            self._look_at_jobs(pods)
            self._look_at_pods([pod_view(obj) for obj in pods])

    def _look_at_jobs(self, pods: Sequence[Obj]) -> None:
        """Check that every runnable Job or JobSet has a dependent that waits."""
        world = self.scene.world
        jobs = [obj for kind in (scheme.JOB, scheme.JOB_SET) for obj in world.objects(kind) if not _has_ended(obj)]
        owners = [owner["uid"] for obj in (*pods, *jobs) if (owner := controller_of(obj)) is not None]
        for job in jobs:
            may_run = not job["spec"].get("suspend") and not _must_follow_ended_pod(job)
            if may_run and job["metadata"]["uid"] not in owners:
                self.violate(f"{key_of(job)} may run, but has no waiting pods", key_of(job))

    def _look_at_pods(self, pods: Sequence[PodView]) -> None:
        """Check that no pod is left on a node, and that no waiting gang has room."""
        gangs: dict[str, list[PodView]] = {}
        for pod in pods:
            if pod.node_name:
                self.violate(f"{pod.key} never ends on {pod.node_name}", _key(pod))
                continue
            if not pod.unscheduled:
                self.violate(f"{pod.key} waits for a node without a reason", _key(pod))
            if not pod.gated:
                gangs.setdefault(pod.gang or pod.key, []).append(pod)
        nodes = _free_nodes(self.scene.world.objects(scheme.NODE), placed(pods))
        growth = self._nodes_to_come() if gangs else []
        for gang in gangs.values():
            if any(pod.shape.minds_pods for pod in gang):
                self._look_at_exclusive(gang, [*nodes, *(node for _, more in growth for node in more)])
                continue
            if _find_room(gang, nodes):
                self.violate(f"{len(gang)} pods wait though there is room", *map(_key, gang))
            for pool, more in growth:
                if _find_room(gang, [*nodes, *more]):
                    self.violate(f"{len(gang)} pods wait though {pool} may grow", *map(_key, gang))

    def _look_at_exclusive(self, gang: Sequence[PodView], nodes: Sequence["_Free"]) -> None:
        """Check Jobs that each need an exclusive pool; each has a first pod, which the others wait for."""
        first = [pod for pod in gang if pod.shape.minds_pods]
        pools: dict[str, list[_Free]] = {}
        for node in nodes:
            pools.setdefault(node.node.labels.get(well_known.NODE_POOL, ""), []).append(node)
        fitting = [name for name, found in pools.items() if all(node.could_take(first[0]) for node in found)]
        if len(first) == len(gang) <= len(fitting) and _wants_pools(first):
            self.violate(f"{len(gang)} Jobs wait though they could have {', '.join(fitting)}", *map(_key, gang))

    def _nodes_to_come(self) -> list[tuple[str, list["_Free"]]]:
        """Return, for each pool with an autoscaler and no other bound, the nodes that it can still add."""
        world = self.scene.world
        cluster = next(iter(world.objects(scheme.CLUSTER)), None)
        if cluster is None or cluster["spec"].get("quotas") or _limits(cluster):
            return []
        sold_out = [row["machineType"] for row in cluster["spec"].get("capacity") or ()]
        found = []
        for pool in world.objects(scheme.NODE_POOL):
            spec, name = pool["spec"], pool["metadata"]["name"]
            is_bounded = spec.get("provisioning") == "queued" or spec.get("reservation") or spec.get("placementGroup")
            if "autoscaling" in spec and not is_bounded and spec["machineType"] not in sold_out:
                found.append((name, list(self._growth(pool, cluster))))
        return found

    def _growth(self, pool: Obj, cluster: Obj) -> Iterator["_Free"]:
        machines = [obj for obj in self.scene.world.objects(scheme.INSTANCE) if phase_of(obj) != FAILED]
        zones = [obj["spec"]["zone"] for obj in machines if obj["spec"]["pool"] == pool["metadata"]["name"]]
        bounds = pool["spec"]["autoscaling"]
        if hosts_of_slice(pool, catalog_of(cluster)) > 1 and zones:
            return
        left = bounds.get("totalMax", 1 << 30) - len(zones)
        for zone in zones_of(pool, cluster):
            for _ in range(min(left, bounds.get("max", left) - zones.count(zone))):
                left -= 1
                view = node_view(node_template(pool, zone, cluster))
                yield _Free(view, dict(view.allocatable))


class _Free:
    """A node, and the free amounts on it."""

    def __init__(self, node: NodeView, free: dict[str, int]) -> None:
        self.node = node
        self.free = free

    def could_take(self, pod: PodView) -> bool:
        """Whether a pod fits this node."""
        return not unsuitable(pod, self.node) and all(self.free.get(r, 0) >= amount for r, amount in pod.requests)


def _free_nodes(nodes: Sequence[Obj], taken: dict[str, list[PodView]]) -> list[_Free]:
    found = []
    for view in map(node_view, nodes):
        used = requested(taken.get(view.name, ()))
        free = {resource: amount - used.get(resource, 0) for resource, amount in view.allocatable.items()}
        found.append(_Free(view, free))
    return found


def _find_room(gang: Sequence[PodView], nodes: Sequence[_Free]) -> bool:
    """Whether all pods of a gang fit, each on the first node with room."""
    trial = [_Free(node.node, dict(node.free)) for node in nodes]
    for pod in gang:
        node = next((node for node in trial if node.could_take(pod)), None)
        if node is None:
            return False
        for resource, amount in pod.requests:
            node.free[resource] -= amount
    return True


def _wants_pools(pods: Sequence[PodView]) -> bool:
    """Whether the pods' anti-affinity concerns pools only."""
    return all(term.topology_key == well_known.NODE_POOL for pod in pods for term in pod.shape.anti_affinity)


def _limits(cluster: Obj) -> object:
    """Return the limits of the whole cluster."""
    scaling = cluster["spec"].get("autoscaling") or {}
    return (scaling.get("autoProvisioning") or {}).get("limits")


def _has_ended(job: Obj) -> bool:
    return any(is_true(job.get("status") or {}, end) for end in _ENDS)


def _must_follow_ended_pod(job: Obj) -> bool:
    """Whether new pods of a Job would have to follow its first pod, which has succeeded, to its domain."""
    annotations = ((job["spec"].get("template") or {}).get("metadata") or {}).get("annotations") or {}
    if well_known.EXCLUSIVE_TOPOLOGY not in annotations or well_known.NODE_SELECTOR_STRATEGY in annotations:
        return False
    return contains(parsed((job.get("status") or {}).get("completedIndexes"), 1), 0)


def _key(pod: PodView) -> Key:
    return Key(scheme.POD, pod.namespace, pod.name)


class NothingIsStuck(Invariant):
    """No pending Workload fits the free quota of its queue."""

    name = "nothing_is_stuck"

    def finish(self) -> None:
        """Check all pending Workloads, if no more events are scheduled."""
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
        """Return the Workloads that the scheduler could consider, by ClusterQueue, in queue order."""
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
        """Whether one flavor of each resource group could hold all pod sets, so that no earlier choice can fail."""
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
            suits = all(not flavor_mismatch(p.template, flavor, self.ledger.flavors[flavor]) for p in view.pod_sets)
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


class NothingIsOrphaned(Invariant):
    """No object remains whose owner was deleted, and every machine has its node."""

    name = "nothing_is_orphaned"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        #: The uids of all objects that ever existed.
        self._known: dict[str, None] = {}

    def look(self, event: WatchEvent) -> None:
        """Record the uid of an added object."""
        if event.type is EventType.ADDED:
            self._known[event.obj["metadata"]["uid"]] = None

    def finish(self) -> None:
        """Check the owners of all objects."""
        if self.is_at_rest:
            for key, what in [*self._left_by_owners(), *self._left_by_machines()]:
                self.violate(f"{key.kind} {key} {what}", key)

    def _left_by_owners(self) -> Iterator[tuple[Key, str]]:
        store = self.scene.world.store
        found = [obj for kind in store.kinds() for obj in store.list(kind)]
        uids = {obj["metadata"]["uid"]: None for obj in found}
        for obj in found:
            owner = controller_of(obj)
            if owner is not None and owner["uid"] not in uids and owner["uid"] in self._known:
                yield key_of(obj), f"is owned by {owner['name']}, which is gone"
            if "deletionTimestamp" in obj["metadata"]:
                yield key_of(obj), "is terminating forever"

    def _left_by_machines(self) -> Iterator[tuple[Key, str]]:
        world = self.scene.world
        machines = {obj["metadata"]["name"]: obj for obj in world.objects(scheme.INSTANCE)}
        pools = {obj["metadata"]["name"]: obj for obj in world.objects(scheme.NODE_POOL)}
        nodes = {obj["metadata"]["name"]: obj for obj in world.objects(scheme.NODE)}
        for name, machine in machines.items():
            pool = pools.get(machine["spec"]["pool"])
            if pool is None:
                yield key_of(machine), "is of a pool that is gone"
            elif name not in nodes and (is_autoscaled(pool) or phase_of(machine) != FAILED):
                yield key_of(machine), f"has no node: {machine.get('status')}"
        for name, node in nodes.items():
            if name not in machines and label(node, well_known.NODE_POOL) is not None:
                yield key_of(node), "has no machine"
        for lease in world.objects(scheme.LEASE):
            if lease["metadata"]["name"] not in nodes:
                yield key_of(lease), "is of no node"
        used = [machine["spec"]["pool"] for machine in machines.values()]
        for name, pool in pools.items():
            if pool["spec"].get("autoProvisioned") and name not in used:
                yield key_of(pool), "was made for pods and is empty"
