"""Liveness invariants: once no more events are scheduled, no pod, job, Workload or machine waits without a reason.

No pod on a node runs forever. Every unfinished Job or JobSet that may run has waiting pods. The exception is a Job with
exclusive topology whose first pod has succeeded: JobSet rejects later pods, which would have to follow the first pod to
its domain. Every waiting pod has a reason. No waiting gang of pods fits the existing nodes, or nodes that a pool can
add.
"""

from collections.abc import Iterator, Sequence

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, controller_of, finalizers_of, is_true, key_of, label
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.api.views.queued_pods import group_name, has_admission_gate
from batchyard.api.views.workload import ClusterQueueView, ResourceGroup, WorkloadView
from batchyard.cloud.catalog.instances import FAILED, phase_of
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.nodes import node_template
from batchyard.cloud.catalog.pool_properties import is_autoscaled, slice_host_count, zones_of
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.jobframework.slices import has_gate
from batchyard.jobs.job.spec import parse_indexes, spans_contain
from batchyard.scheduling.cluster_queue import flavor_mismatch
from batchyard.sim.invariants.cluster import binding_obstacle, pods_by_node, sum_requests
from batchyard.sim.invariants.invariant import Invariant, WorldView
from batchyard.sim.invariants.object_states import QuotaKey

_END_CONDITIONS = ("Complete", "Completed", "Failed")


class NothingHangs(Invariant):
    """Invariant: once no more events are scheduled, no job or pod waits without a reason.

    Jobs that may run have pods. Pods that have not ended are unbound, have a reason, and fit no node, not even one that
    a pool could add.
    """

    name = "nothing_hangs"

    def finish(self) -> None:
        """If no more events are scheduled, report each unfinished job and pod that can no longer make progress."""
        if self.is_at_rest:
            # The gated pods of an elastic Job wait for a Workload, and so do pods in queues.
            pods = [obj for obj in self.world_view.world.objects(scheme.POD) if not pod_view(obj).is_terminal]
            self._check_jobs(pods)
            self._check_pods([pod_view(obj) for obj in pods if not has_gate(obj) and not has_admission_gate(obj)])

    def _check_jobs(self, pods: Sequence[Obj]) -> None:
        world = self.world_view.world
        jobs = [obj for kind in (scheme.JOB, scheme.JOB_SET) for obj in world.objects(kind) if not _has_ended(obj)]
        owner_uids = [owner["uid"] for obj in (*pods, *jobs) if (owner := controller_of(obj)) is not None]
        for job in jobs:
            has_pods = job["spec"].get("parallelism") != 0  # a user may scale a Job to zero
            may_job_run = has_pods and not job["spec"].get("suspend") and not _must_follow_ended_pod(job)
            if may_job_run and job["metadata"]["uid"] not in owner_uids:
                self.violate(f"job {key_of(job)} may run, but has no waiting pods", key_of(job))

    def _check_pods(self, pods: Sequence[PodView]) -> None:
        pods_by_gang: dict[str, list[PodView]] = {}
        for pod in pods:
            if pod.node_name:
                self.violate(f"pod {pod.key} on node {pod.node_name} never ends", _pod_key(pod))
                continue
            if not pod.unscheduled_reason:
                self.violate(f"pod {pod.key} has no node, but its status gives no reason", _pod_key(pod))
            if not pod.gated:
                pods_by_gang.setdefault(pod.gang or pod.key, []).append(pod)
        nodes = _rooms_of_nodes(self.world_view.world.objects(scheme.NODE), pods_by_node(pods))
        addable_by_pool = self._addable_nodes() if pods_by_gang else []
        for gang in pods_by_gang.values():
            if any(pod.shape.depends_on_pods for pod in gang):
                all_addable_nodes = [node for _, addable_nodes in addable_by_pool for node in addable_nodes]
                self._check_exclusive_jobs(gang, [*nodes, *all_addable_nodes])
                continue
            if _gang_fits_nodes(gang, nodes):
                self.violate(f"{len(gang)} pods wait, but the existing nodes have room for them", *map(_pod_key, gang))
            for pool, addable_nodes in addable_by_pool:
                if _gang_fits_nodes(gang, [*nodes, *addable_nodes]):
                    description = f"{len(gang)} pods wait, but pool {pool} could add nodes for them"
                    self.violate(description, *map(_pod_key, gang))

    def _check_exclusive_jobs(self, gang: Sequence[PodView], nodes: Sequence["_NodeRoom"]) -> None:
        first_pods = [pod for pod in gang if pod.shape.depends_on_pods]
        pools: dict[str, list[_NodeRoom]] = {}
        for node in nodes:
            pools.setdefault(node.node.labels.get(well_known.NODE_POOL, ""), []).append(node)
        fitting_pools = [
            name for name, pool_nodes in pools.items() if all(node.has_room_for(first_pods[0]) for node in pool_nodes)
        ]
        if len(first_pods) == len(gang) <= len(fitting_pools) and _is_anti_affinity_of_pools(first_pods):
            names = ", ".join(fitting_pools)
            description = f"{len(gang)} Jobs with exclusive topology wait, but these pools are free: {names}"
            self.violate(description, *map(_pod_key, gang))

    def _addable_nodes(self) -> list[tuple[str, list["_NodeRoom"]]]:
        """Return pairs of an autoscaled pool and the nodes that it could still add.

        Pools that other limits may bound are omitted: all pools if the Cluster has quotas or auto-provisioning limits.
        """
        world = self.world_view.world
        cluster = next(iter(world.objects(scheme.CLUSTER)), None)
        if cluster is None or cluster["spec"].get("quotas") or _auto_provisioning_limits(cluster):
            return []
        sold_out_types = [row["machineType"] for row in cluster["spec"].get("capacity") or ()]
        addable_by_pool = []
        for pool in world.objects(scheme.NODE_POOL):
            spec, name = pool["spec"], pool["metadata"]["name"]
            is_bounded = spec.get("provisioning") == "queued" or spec.get("reservation") or spec.get("placementGroup")
            if "autoscaling" in spec and not is_bounded and spec["machineType"] not in sold_out_types:
                addable_by_pool.append((name, list(self._rooms_to_add(pool, cluster))))
        return addable_by_pool

    def _rooms_to_add(self, pool: Obj, cluster: Obj) -> Iterator["_NodeRoom"]:
        machines = [obj for obj in self.world_view.world.objects(scheme.INSTANCE) if phase_of(obj) != FAILED]
        machine_zones = [obj["spec"]["zone"] for obj in machines if obj["spec"]["pool"] == pool["metadata"]["name"]]
        size_bounds = pool["spec"]["autoscaling"]
        if slice_host_count(pool, catalog_of(cluster)) > 1 and machine_zones:
            return
        count_max = size_bounds.get("totalMax", 1 << 30) - len(machine_zones)
        for zone in zones_of(pool, cluster):
            for _ in range(min(count_max, size_bounds.get("max", count_max) - machine_zones.count(zone))):
                count_max -= 1
                view = node_view(node_template(pool, zone, cluster))
                yield _NodeRoom(view, dict(view.allocatable))


class _NodeRoom:
    def __init__(self, node: NodeView, free_amounts: dict[str, int]) -> None:
        self.node = node
        self.free = free_amounts

    def has_room_for(self, pod: PodView) -> bool:
        return not binding_obstacle(pod, self.node) and all(self.free.get(r, 0) >= amount for r, amount in pod.requests)


def _rooms_of_nodes(nodes: Sequence[Obj], pods_on_nodes: dict[str, list[PodView]]) -> list[_NodeRoom]:
    node_rooms = []
    for view in map(node_view, nodes):
        used = sum_requests(pods_on_nodes.get(view.name, ()))
        free_amounts = {resource: amount - used.get(resource, 0) for resource, amount in view.allocatable.items()}
        node_rooms.append(_NodeRoom(view, free_amounts))
    return node_rooms


def _gang_fits_nodes(gang: Sequence[PodView], nodes: Sequence[_NodeRoom]) -> bool:
    trial_nodes = [_NodeRoom(node.node, dict(node.free)) for node in nodes]
    for pod in gang:
        node = next((node for node in trial_nodes if node.has_room_for(pod)), None)
        if node is None:
            return False
        for resource, amount in pod.requests:
            node.free[resource] -= amount
    return True


def _is_anti_affinity_of_pools(pods: Sequence[PodView]) -> bool:
    return all(term.topology_key == well_known.NODE_POOL for pod in pods for term in pod.shape.anti_affinity)


def _auto_provisioning_limits(cluster: Obj) -> object:
    autoscaling = cluster["spec"].get("autoscaling") or {}
    return (autoscaling.get("autoProvisioning") or {}).get("limits")


def _has_ended(job: Obj) -> bool:
    return any(is_true(job.get("status") or {}, end) for end in _END_CONDITIONS)


def _must_follow_ended_pod(job: Obj) -> bool:
    """Return whether a Job with exclusive topology can create no pods: they would join the domain of an ended pod.

    That is the pod of index 0, which determines the topology domain of all pods of the Job.
    """
    annotations = ((job["spec"].get("template") or {}).get("metadata") or {}).get("annotations") or {}
    if well_known.EXCLUSIVE_TOPOLOGY not in annotations or well_known.NODE_SELECTOR_STRATEGY in annotations:
        return False
    return spans_contain(parse_indexes((job.get("status") or {}).get("completedIndexes"), 1), 0)


def _pod_key(pod: PodView) -> Key:
    return Key(scheme.POD, pod.namespace, pod.name)


class NothingIsStuck(Invariant):
    """Invariant: once no more events are scheduled, no pending Workload fits the free quota of its queue."""

    name = "nothing_is_stuck"

    def finish(self) -> None:
        """Check pending Workloads, provided that no more events are scheduled.

        In StrictFIFO queues, and in queues with a quota for pods, only the first Workload is checked. Cohort trees in a
        preemption loop, or with another StrictFIFO queue that has pending Workloads, are skipped. So are StrictFIFO
        queues with admission fair sharing, where the usage of LocalQueues selects the first Workload, and slices of
        elastic jobs that replace a slice with quota, because they need the flavors of that slice.
        """
        if self.world_view.world.kernel.pending_count():
            return
        waiting_workloads = self._waiting_workloads()
        looping_roots = {loop.root for loop in self.world_view.world.loops}
        for queue, views in waiting_workloads.items():
            root = self._cohort_root(queue)
            spec = self.states.queues[queue]
            other_queues = [name for name in waiting_workloads if name != queue and self._cohort_root(name) == root]
            has_strict_queue = any(self.states.queues[name].strict_fifo for name in other_queues)
            is_order_unknown = spec.strict_fifo and spec.is_usage_based
            if root.partition("/")[2] in looping_roots or has_strict_queue or is_order_unknown:
                continue
            for view in views[:1] if spec.strict_fifo or _counts_pods(spec) else views:
                if not self._replaces_slice(view) and self._has_room(view, spec):
                    description = f"Workload {view.key} is pending in {queue}, but fits its free quota"
                    self.violate(description, Key(scheme.WORKLOAD, view.namespace, view.name))

    def _replaces_slice(self, view: WorkloadView) -> bool:
        replaced_slice = self.states.workloads.get(view.replaced_slice) if view.replaced_slice else None
        return replaced_slice is not None and replaced_slice.quota_reserved and not replaced_slice.finished

    def _waiting_workloads(self) -> dict[str, list[WorkloadView]]:
        views_by_queue: dict[str, list[WorkloadView]] = {}
        for view in self.states.workloads.values():
            queue = self.states.queue_of(view)
            if queue is not None and self._can_be_scheduled(view, queue):
                views_by_queue.setdefault(queue.name, []).append(view)
        return {name: sorted(views, key=_queue_order_key) for name, views in views_by_queue.items()}

    def _can_be_scheduled(self, view: WorkloadView, queue: ClusterQueueView) -> bool:
        namespace_labels = self.states.namespaces.get(view.namespace)
        is_not_stopped = queue.stop_policy == "None" and self.states.local_queues[view.queue].stop_policy == "None"
        has_all_flavors = all(flavor in self.states.flavors for group in queue.groups for flavor in group.flavors)
        return (
            is_not_stopped
            and has_all_flavors
            and not queue.admission_checks
            and queue.name not in self.states.terminating_queues
            and not self.states.quota.is_in_cycle(queue.cohort)
            and namespace_labels is not None
            and queue.namespaces is not None
            and queue.namespaces.matches(namespace_labels)
            and view.admissible
            and not view.requeue_blocked
            and view.requeue_at is None
            and not any(pod_set.template.over_limit for pod_set in view.pod_sets)
        )

    def _has_room(self, view: WorkloadView, queue: ClusterQueueView) -> bool:
        total_requests: dict[str, int] = {}
        for pod_set, count in zip(view.pod_sets, view.counts, strict=True):
            for resource, amount in pod_set.template.requests:
                total_requests[resource] = total_requests.get(resource, 0) + amount * count
        group_by_resource = {resource: group for group in queue.groups for resource in group.resources}
        if "pods" in group_by_resource:
            total_requests["pods"] = sum(view.counts)
        if any(amount and resource not in group_by_resource for resource, amount in total_requests.items()):
            return False
        groups = [group for group in queue.groups if any(resource in total_requests for resource in group.resources)]
        return all(self._group_has_room(view, queue, group, total_requests) for group in groups)

    def _group_has_room(
        self, view: WorkloadView, queue: ClusterQueueView, group: ResourceGroup, total: dict[str, int]
    ) -> bool:
        for flavor in group.flavors:
            requests = {(flavor, resource): total[resource] for resource in group.resources if resource in total}
            flavor_view = self.states.flavors[flavor]
            is_suitable = all(not flavor_mismatch(each.template, flavor, flavor_view) for each in view.pod_sets)
            if is_suitable and all(self._is_free(queue, quota_key, amount) for quota_key, amount in requests.items()):
                return True
        return False

    def _is_free(self, queue: ClusterQueueView, quota_key: QuotaKey, amount: int) -> bool:
        return amount <= max(0, self.states.quota.available(f"queue/{queue.name}", quota_key))

    def _cohort_root(self, queue: str) -> str:
        return self.states.quota.path(f"queue/{queue}")[0]


def _counts_pods(queue: ClusterQueueView) -> bool:
    return any("pods" in group.resources for group in queue.groups)


def _queue_order_key(view: WorkloadView) -> tuple[int, int, str]:
    return -view.priority, view.queued, view.uid


class NothingIsOrphaned(Invariant):
    """Invariant: at the end, no object has a deleted owner, and each machine has its node and its pool."""

    name = "nothing_is_orphaned"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        #: The uids of all objects that were ever created.
        self._created_uids: dict[str, None] = {}

    def check_event(self, event: WatchEvent) -> None:
        """Record the uid of a new object."""
        if event.type is EventType.ADDED:
            self._created_uids[event.obj["metadata"]["uid"]] = None

    def finish(self) -> None:
        """Check owners, deletions and machines, unless further events are scheduled.

        No object has a deleted owner or still waits for its deletion. Each machine has its pool and its node; a failed
        machine of a pool that is not autoscaled needs no node. Each node of a pool has its machine, each Lease its
        node, and each auto-provisioned pool a machine.
        """
        if self.is_at_rest:
            for key, description in [*self._find_orphans(), *self._cloud_orphans()]:
                self.violate(f"{key.kind} {key} {description}", key)

    def _find_orphans(self) -> Iterator[tuple[Key, str]]:
        store = self.world_view.world.store
        stored_objects = [obj for kind in store.kinds() for obj in store.list(kind)]
        uids = {obj["metadata"]["uid"]: None for obj in stored_objects}
        for obj in stored_objects:
            owner = controller_of(obj)
            if owner is not None and owner["uid"] not in uids and owner["uid"] in self._created_uids:
                yield key_of(obj), f"still exists, but its owner {owner['name']} was deleted"
            if "deletionTimestamp" in obj["metadata"] and not _awaits_replacement(obj):
                yield key_of(obj), "has a deletionTimestamp, but is never deleted"

    def _cloud_orphans(self) -> Iterator[tuple[Key, str]]:
        world = self.world_view.world
        machines = {obj["metadata"]["name"]: obj for obj in world.objects(scheme.INSTANCE)}
        pools = {obj["metadata"]["name"]: obj for obj in world.objects(scheme.NODE_POOL)}
        nodes = {obj["metadata"]["name"]: obj for obj in world.objects(scheme.NODE)}
        for name, machine in machines.items():
            pool = pools.get(machine["spec"]["pool"])
            if pool is None:
                yield key_of(machine), "still exists, but its node pool was deleted"
            elif name not in nodes and (is_autoscaled(pool) or phase_of(machine) != FAILED):
                yield key_of(machine), f"has no Node; its status is {machine.get('status')}"
        for name, node in nodes.items():
            if name not in machines and label(node, well_known.NODE_POOL) is not None:
                yield key_of(node), "is a Node without a machine"
        for lease in world.objects(scheme.LEASE):
            if lease["metadata"]["name"] not in nodes:
                yield key_of(lease), "is a Lease without a Node"
        used_pools = [machine["spec"]["pool"] for machine in machines.values()]
        for name, pool in pools.items():
            if pool["spec"].get("autoProvisioned") and name not in used_pools:
                yield key_of(pool), "was created by auto-provisioning and has no machines, but was not deleted"


def _awaits_replacement(obj: Obj) -> bool:
    """Return whether a failed pod of a group stays until another pod replaces it; another law checks its finalizer."""
    return obj["kind"] == "Pod" and well_known.MANAGED in finalizers_of(obj) and bool(group_name(obj))
