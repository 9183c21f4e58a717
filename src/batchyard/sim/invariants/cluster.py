"""Invariants of machines, nodes and pods: cloud capacity, node resources, bindings, TPU slices and idle nodes.

The capacity of the cloud may be reduced below the usage; then no further machines may be provided.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, key_of, label
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.base.instant import MINUTE
from batchyard.cloud.catalog.instances import CRASHED, FAILED, RUNNING, is_being_deleted, phase_of, phase_start
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.pool_properties import machine_of, slice_host_count
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.invariants.invariant import Invariant, WorldView

_ABSENT_PHASES = ("", FAILED)


class CloudIsNeverOversold(Invariant):
    """Invariant: new machines fit the cloud's capacity, reservations and quotas."""

    name = "cloud_is_never_oversold"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        self._provided_machines: dict[Key, None] = {}
        self._has_cluster_changed = False

    def check_event(self, event: WatchEvent) -> None:
        """Record which machines were provided, and whether the cloud's capacity changed."""
        self._has_cluster_changed = self._has_cluster_changed or event.key.kind == scheme.CLUSTER
        if event.key.kind == scheme.INSTANCE and event.type is not EventType.DELETED:
            was_machine_absent = event.old is None or phase_of(event.old) in _ABSENT_PHASES
            if was_machine_absent and phase_of(event.obj) not in _ABSENT_PHASES:
                self._provided_machines[event.key] = None

    def end_instant(self) -> None:
        """Check that the new machines fit capacity, reservations and quotas, unless these changed in this instant."""
        new_machine_keys, has_cluster_changed = list(self._provided_machines), self._has_cluster_changed
        self._provided_machines, self._has_cluster_changed = {}, False
        if not new_machine_keys or has_cluster_changed:
            return
        world = self.world_view.world
        cluster = world.objects(scheme.CLUSTER)[0]
        machines = [obj for obj in world.objects(scheme.INSTANCE) if _is_in_use(obj)]
        new_machines = [obj for obj in machines if key_of(obj) in new_machine_keys]
        for description in self._exceeded_capacity(cluster, machines, new_machines):
            self.violate(description, *new_machine_keys)
        for description in self._exceeded_quotas(cluster, machines, new_machines):
            self.violate(description, *new_machine_keys)

    def _exceeded_capacity(self, cluster: Obj, machines: Sequence[Obj], new_machines: Sequence[Obj]) -> Iterator[str]:
        for row in cluster["spec"].get("capacity") or ():
            used_count = sum(self._uses_capacity_entry(row, obj) for obj in machines)
            if used_count > row["count"] and any(self._uses_capacity_entry(row, obj) for obj in new_machines):
                yield f"{used_count} machines exist for the capacity entry {row}, more than its count"
        for row in cluster["spec"].get("reservations") or ():
            used_count = sum(self._reservation_name(obj) == row["name"] for obj in machines)
            if used_count > row["count"] and any(self._reservation_name(obj) == row["name"] for obj in new_machines):
                yield f"reservation {row['name']} has {row['count']} machines, but {used_count} are in use"

    def _exceeded_quotas(self, cluster: Obj, machines: Sequence[Obj], new_machines: Sequence[Obj]) -> Iterator[str]:
        for quota in cluster["spec"].get("quotas") or ():
            name = quota["name"]
            used_amount = sum(self._quota_usage(name, obj, cluster) for obj in machines)
            if used_amount > quota["limit"] and any(self._quota_usage(name, obj, cluster) for obj in new_machines):
                yield f"the cloud quota {name} is exceeded: {used_amount} in use, the limit is {quota['limit']}"

    def _uses_capacity_entry(self, row: Obj, instance: Obj) -> bool:
        spec = instance["spec"]
        is_same_provisioning = row.get("provisioning") in {None, spec.get("provisioning", "standard")}
        is_same_type = (row["machineType"], row["zone"]) == (spec["machineType"], spec["zone"])
        return is_same_type and is_same_provisioning and self._reservation_name(instance) is None

    def _pool_of_machine(self, instance: Obj) -> Obj | None:
        return self.world_view.world.client.get(Key(scheme.NODE_POOL, "", instance["spec"]["pool"]))

    def _reservation_name(self, instance: Obj) -> str | None:
        pool = self._pool_of_machine(instance)
        return None if pool is None else pool["spec"].get("reservation")

    def _quota_usage(self, quota: str, instance: Obj, cluster: Obj) -> int:
        pool, catalog = self._pool_of_machine(instance), catalog_of(cluster)
        kind = instance["spec"]["machineType"]
        machine = catalog.machine(kind) if pool is None else machine_of(pool, catalog)
        if machine.accelerator is not None and machine.accelerator.type == quota:
            return machine.accelerator.count
        return machine.cpu_milli // 1000 if quota == "cpus" else int(quota == kind)


def _is_in_use(instance: Obj) -> bool:
    return phase_of(instance) not in _ABSENT_PHASES and not (
        phase_of(instance) == CRASHED and is_being_deleted(instance)
    )


# The total requests of the unfinished pods on a node never exceed its allocatable resources.


class NodesAreNeverOverfull(Invariant):
    """Invariant: the requests of the unfinished pods on a node do not exceed its allocatable resources."""

    name = "nodes_are_never_overfull"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        self._has_changed = False

    def check_event(self, event: WatchEvent) -> None:
        """Record that a pod or node changed."""
        self._has_changed = self._has_changed or event.key.kind in {scheme.POD, scheme.NODE}

    def end_instant(self) -> None:
        """Check, if a pod or node changed, that the total requests on each node fit its allocatable resources."""
        if not self._has_changed:
            return
        self._has_changed = False
        world = self.world_view.world
        for name, pods in pods_by_node(pod_view(obj) for obj in world.objects(scheme.POD)).items():
            node = world.client.get(Key(scheme.NODE, "", name))
            if node is None:
                continue
            allocatable = node_view(node).allocatable
            for resource, amount in sum_requests(pods).items():
                if amount > allocatable.get(resource, 0):
                    allocatable_amount = allocatable.get(resource, 0)
                    description = f"pods on node {name} request {amount} {resource} of {allocatable_amount} allocatable"
                    self.violate(description, *(Key(scheme.POD, pod.namespace, pod.name) for pod in pods))


def pods_by_node(pods: Iterable[PodView]) -> dict[str, list[PodView]]:
    """Return the unfinished pods on nodes, by node name."""
    pods_by_name: dict[str, list[PodView]] = {}
    for pod in pods:
        if pod.node_name and not pod.is_terminal:
            pods_by_name.setdefault(pod.node_name, []).append(pod)
    return pods_by_name


def sum_requests(pods: Iterable[PodView]) -> dict[str, int]:
    """Return the total requests of several pods, by resource."""
    total_requests: dict[str, int] = {}
    for pod in pods:
        for resource, amount in pod.requests:
            total_requests[resource] = total_requests.get(resource, 0) + amount
    return total_requests


# A pod is bound only to a node that matches its selector, whose taints it tolerates, and that is not cordoned.
#
# A node that changes in the same instant counts in all its versions, because the scheduler may not know the last one.


_REPELLING_EFFECTS = ("NoSchedule", "NoExecute")


class PodsSuitTheirNodes(Invariant):
    """Invariant: pods are bound only to nodes that their selectors and tolerations allow and that are not cordoned."""

    name = "pods_suit_their_nodes"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        #: The versions of each node in this instant, the current one last.
        self._node_versions: dict[str, list[NodeView]] = {}

    def check_event(self, event: WatchEvent) -> None:
        """Check a new binding of a pod to a node; record changes of nodes."""
        if event.key.kind == scheme.NODE and event.type is not EventType.DELETED:
            self._node_versions.setdefault(event.key.name, []).append(node_view(event.obj))
        if event.key.kind != scheme.POD or event.type is EventType.DELETED:
            return
        pod = pod_view(event.obj)
        if pod.node_name and (event.old is None or not pod_view(event.old).node_name):
            node_versions = self._node_versions.get(pod.node_name, ())
            obstacles = [binding_obstacle(pod, node) for node in node_versions]
            if node_versions and all(obstacles):
                self.violate(f"pod {pod.key} was bound to node {pod.node_name}, but {obstacles[-1]}", event.key)

    def end_instant(self) -> None:
        """Drop the recorded earlier versions of nodes, and keep their current versions."""
        for views in self._node_versions.values():
            del views[:-1]


def binding_obstacle(pod: PodView, node: NodeView) -> str:
    """Return why a pod's nodeSelector and tolerations keep it off a node; '' if they do not."""
    mismatched_keys = [key for key, value in pod.node_selector if node.labels.get(key) != value]
    if mismatched_keys:
        return f"the pod's nodeSelector does not match the node's label {mismatched_keys[0]}"
    if node.unschedulable and not any(t.key in {"", well_known.UNSCHEDULABLE} for t in pod.tolerations):
        return "the node is cordoned"
    repelling_taints = [taint for taint in node.taints if taint.effect in _REPELLING_EFFECTS]
    untolerated_keys = [taint.key for taint in repelling_taints if not any(t.tolerates(taint) for t in pod.tolerations)]
    return f"the pod does not tolerate the node's taint {untolerated_keys[0]}" if untolerated_keys else ""


# All machines of a TPU slice exist, or none does. If one machine crashes, all machines of the slice stop.


#: The time after a crash in which a slice has to stop, because writes may be retried after conflicts.
_STOP_TIME_MAX: Final = MINUTE


class SlicesAreWhole(Invariant):
    """Invariant: of a multi-host TPU slice, all machines run, or none."""

    name = "slices_are_whole"

    def end_instant(self) -> None:
        """Check that no machine of a slice runs longer than a minute after another one crashed."""
        now = self.world_view.world.kernel.now()
        for pool, _, machines in self._slices():
            crashed_machines = [
                obj for obj in machines if phase_of(obj) == CRASHED and phase_start(obj) + _STOP_TIME_MAX < now
            ]
            if crashed_machines and any(phase_of(obj) == RUNNING for obj in machines):
                self.violate(f"some machines of slice {pool} still run after one crashed", *map(_machine_key, machines))

    def finish(self) -> None:
        """Check, if no more events are scheduled, that each slice runs as a whole or has only failed machines left."""
        for pool, hosts, machines in self._slices() if self.is_at_rest else ():
            running_count = sum(phase_of(obj) == RUNNING for obj in machines)
            failed_count = sum(phase_of(obj) == FAILED for obj in machines)
            if (running_count, len(machines) - failed_count) not in {(0, 0), (hosts, hosts)}:
                description = f"{running_count} machines of slice {pool} run, but it has {hosts} hosts"
                self.violate(description, *map(_machine_key, machines))

    def _slices(self) -> list[tuple[str, int, list[Obj]]]:
        """Return each multi-host slice: its pool's name, number of hosts, and machines that are not being deleted."""
        world = self.world_view.world
        clusters = world.objects(scheme.CLUSTER)
        slices = []
        for pool in world.objects(scheme.NODE_POOL) if clusters else ():
            hosts, name = slice_host_count(pool, catalog_of(clusters[0])), pool["metadata"]["name"]
            if hosts > 1:
                pool_machines = [obj for obj in world.objects(scheme.INSTANCE) if obj["spec"]["pool"] == name]
                slices.append((name, hosts, [obj for obj in pool_machines if not is_being_deleted(obj)]))
        return slices


def _machine_key(obj: Obj) -> Key:
    return Key(scheme.INSTANCE, "", obj["metadata"]["name"])


# Queued provisioning provides all machines of a ResizeRequest at once, or none.


class RequestsAreWhole(Invariant):
    """Invariant: a ResizeRequest (queued provisioning) gets all of its machines at once, or none."""

    name = "requests_are_whole"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        self._created_machines: dict[str, int] = {}
        self._changed_requests: dict[str, None] = {}

    def check_event(self, event: WatchEvent) -> None:
        """Count the machines that are created for each ResizeRequest."""
        if event.key.kind == scheme.RESIZE_REQUEST:
            self._changed_requests[event.key.name] = None
            if event.type is EventType.ADDED:
                self._created_machines.pop(event.key.name, None)
        if event.key.kind == scheme.INSTANCE and event.type is EventType.ADDED:
            request = event.obj["spec"].get("resizeRequest")
            if request is not None:
                self._created_machines[request] = self._created_machines.get(request, 0) + 1
                self._changed_requests[request] = None

    def end_instant(self) -> None:
        """Check that each changed ResizeRequest has all of its machines, or none."""
        for name in self._changed_requests:
            request = self.world_view.world.client.get(Key(scheme.RESIZE_REQUEST, "", name))
            created_count = self._created_machines.get(name, 0)
            if request is None:
                continue
            requested_count, state = request["spec"]["count"], (request.get("status") or {}).get("state")
            if created_count not in {0, requested_count} or (state == "SUCCEEDED" and created_count != requested_count):
                description = f"ResizeRequest {name} ({state}) has {created_count} of {requested_count} machines"
                self.violate(description, Key(scheme.RESIZE_REQUEST, "", name))
        self._changed_requests.clear()


# With JobSet's exclusive topology, pods of two Jobs are never in the same domain.
#
# Jobs of different priorities may be in one domain while the pods of the lower priority terminate.


class ExclusiveDomains(Invariant):
    """Invariant: a topology domain has pods of at most one exclusively placed Job per priority."""

    name = "exclusive_domains"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        self._has_pod_changed = False

    def check_event(self, event: WatchEvent) -> None:
        """Record that a pod changed."""
        self._has_pod_changed = self._has_pod_changed or event.key.kind == scheme.POD

    def end_instant(self) -> None:
        """Check that no topology domain has pods of two exclusively placed Jobs of equal priority."""
        if not self._has_pod_changed:
            return
        self._has_pod_changed = False
        world = self.world_view.world
        jobs: dict[tuple[str, str, int], dict[str, Key]] = {}
        for obj in world.objects(scheme.POD):
            topology, pod = annotation(obj, well_known.EXCLUSIVE_TOPOLOGY), pod_view(obj)
            node = None if topology is None else world.client.get(Key(scheme.NODE, "", pod.node_name))
            if topology is not None and node is not None and not pod.is_terminal:
                domain = topology, label(node, topology) or "", pod.priority
                key = Key(scheme.POD, pod.namespace, pod.name)
                jobs.setdefault(domain, {})[label(obj, well_known.JOB_KEY) or ""] = key
        for domain, pod_keys in jobs.items():
            if len(pod_keys) > 1:
                description = f"{len(pod_keys)} Jobs with exclusive topology are in one domain, {domain[1]}"
                self.violate(description, *pod_keys.values())


# When no more events are scheduled, no autoscaled pool has idle nodes above its minimum.


class IdleNodesAreReleased(Invariant):
    """Invariant: once no more events are scheduled, an autoscaled pool has no idle nodes above its minimum."""

    name = "idle_nodes_are_released"

    def finish(self) -> None:
        """Check, if no more events are scheduled, that autoscaled pools have no idle nodes above their minimum."""
        world = self.world_view.world
        pods_on_nodes = pods_by_node(pod_view(obj) for obj in world.objects(scheme.POD))
        for pool in world.objects(scheme.NODE_POOL) if self.is_at_rest else ():
            size_bounds, name = pool["spec"].get("autoscaling"), pool["metadata"]["name"]
            if size_bounds is None:
                continue
            nodes_by_zone: dict[str, list[str]] = {}
            for instance in world.objects(scheme.INSTANCE):
                if instance["spec"]["pool"] == name:
                    nodes_by_zone.setdefault(instance["spec"]["zone"], []).append(instance["metadata"]["name"])
            for node_names in nodes_by_zone.values():
                idle_nodes = [node for node in node_names if node not in pods_on_nodes]
                count_min = _minimum_of_zone(size_bounds, pool["spec"].get("tpuTopology") is not None, nodes_by_zone)
                if idle_nodes and len(node_names) > count_min:
                    description = f"idle nodes of pool {name} were not removed: {', '.join(idle_nodes)}"
                    self.violate(description, Key(scheme.NODE, "", idle_nodes[0]))


def _minimum_of_zone(size_bounds: Mapping[str, int], is_slice: bool, nodes_by_zone: Mapping[str, list[str]]) -> int:
    node_count = sum(map(len, nodes_by_zone.values()))
    if is_slice:
        return 0
    return node_count if node_count <= size_bounds.get("totalMin", 0) else size_bounds.get("min", 0)
