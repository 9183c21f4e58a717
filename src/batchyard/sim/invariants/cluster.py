"""Machines and nodes: no machine exceeds the cloud's capacity, a reservation, or the project's quota.

Capacity may be reduced below the usage; then no further machines may be provided.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, key_of, label
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.base.instant import MINUTE
from batchyard.cloud.catalog.instances import CRASHED, FAILED, RUNNING, is_leaving, phase_of, since
from batchyard.cloud.catalog.machine_types import catalog_of
from batchyard.cloud.catalog.prices import hosts_of_slice, machine_of
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.invariants.invariant import Invariant, WorldView

_NONE = ("", FAILED)


class CloudIsNeverOversold(Invariant):
    """New machines fit the cloud's capacity, the reservations and the quotas."""

    name = "cloud_is_never_oversold"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        self._given: dict[Key, None] = {}
        self._changed = False

    def look(self, event: WatchEvent) -> None:
        """Record new machines, and changes of the capacity."""
        self._changed = self._changed or event.key.kind == scheme.CLUSTER
        if event.key.kind == scheme.INSTANCE and event.type is not EventType.DELETED:
            was_none = event.old is None or phase_of(event.old) in _NONE
            if was_none and phase_of(event.obj) not in _NONE:
                self._given[event.key] = None

    def settle(self) -> None:
        """Check that the new machines fit the capacity."""
        given, changed = list(self._given), self._changed
        self._given, self._changed = {}, False
        if not given or changed:
            return
        world = self.scene.world
        cluster = world.objects(scheme.CLUSTER)[0]
        machines = [obj for obj in world.objects(scheme.INSTANCE) if _is_taken(obj)]
        touched = [obj for obj in machines if key_of(obj) in given]
        for what in self._beyond_capacity(cluster, machines, touched):
            self.violate(what, *given)
        for what in self._beyond_quota(cluster, machines, touched):
            self.violate(what, *given)

    def _beyond_capacity(self, cluster: Obj, machines: Sequence[Obj], touched: Sequence[Obj]) -> Iterator[str]:
        """Yield the rows of capacity and reservations that are exceeded."""
        for row in cluster["spec"].get("capacity") or ():
            taken = sum(self._is_of(row, obj) for obj in machines)
            if taken > row["count"] and any(self._is_of(row, obj) for obj in touched):
                yield f"{taken} machines of {row} are taken"
        for row in cluster["spec"].get("reservations") or ():
            taken = sum(self._reservation(obj) == row["name"] for obj in machines)
            if taken > row["count"] and any(self._reservation(obj) == row["name"] for obj in touched):
                yield f"{taken} machines of reservation {row['name']} are taken, of {row['count']}"

    def _beyond_quota(self, cluster: Obj, machines: Sequence[Obj], touched: Sequence[Obj]) -> Iterator[str]:
        """Yield the quotas of the project that are exceeded."""
        for quota in cluster["spec"].get("quotas") or ():
            name = quota["name"]
            taken = sum(self._counted(name, obj, cluster) for obj in machines)
            if taken > quota["limit"] and any(self._counted(name, obj, cluster) for obj in touched):
                yield f"{taken} of {name} are taken, the limit is {quota['limit']}"

    def _is_of(self, row: Obj, instance: Obj) -> bool:
        spec = instance["spec"]
        same_model = row.get("provisioning") in {None, spec.get("provisioning", "standard")}
        same = (row["machineType"], row["zone"]) == (spec["machineType"], spec["zone"])
        return same and same_model and self._reservation(instance) is None

    def _pool(self, instance: Obj) -> Obj | None:
        return self.scene.world.client.get(Key(scheme.NODE_POOL, "", instance["spec"]["pool"]))

    def _reservation(self, instance: Obj) -> str | None:
        pool = self._pool(instance)
        return None if pool is None else pool["spec"].get("reservation")

    def _counted(self, quota: str, instance: Obj, cluster: Obj) -> int:
        pool, catalog = self._pool(instance), catalog_of(cluster)
        kind = instance["spec"]["machineType"]
        machine = catalog.machine(kind) if pool is None else machine_of(pool, catalog)
        if machine.accelerator is not None and machine.accelerator.type == quota:
            return machine.accelerator.count
        return machine.cpu_milli // 1000 if quota == "cpus" else int(quota == kind)


def _is_taken(instance: Obj) -> bool:
    return phase_of(instance) not in _NONE and not (phase_of(instance) == CRASHED and is_leaving(instance))


# --- nodes are never overfull ---
#
# The requests of a node's pods that have not ended never exceed its allocatable resources.


class NodesAreNeverOverfull(Invariant):
    """The requests of the pods on a node never exceed its allocatable resources."""

    name = "nodes_are_never_overfull"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        self._changed = False

    def look(self, event: WatchEvent) -> None:
        """Note changes of pods and nodes."""
        self._changed = self._changed or event.key.kind in {scheme.POD, scheme.NODE}

    def settle(self) -> None:
        """Sum the requests on each node and compare."""
        if not self._changed:
            return
        self._changed = False
        world = self.scene.world
        for name, pods in placed(pod_view(obj) for obj in world.objects(scheme.POD)).items():
            node = world.client.get(Key(scheme.NODE, "", name))
            if node is None:
                continue
            has = node_view(node).allocatable
            for resource, amount in requested(pods).items():
                if amount > has.get(resource, 0):
                    what = f"{amount} of {resource} are requested on {name}, which has {has.get(resource, 0)}"
                    self.violate(what, *(Key(scheme.POD, pod.namespace, pod.name) for pod in pods))


def placed(pods: Iterable[PodView]) -> dict[str, list[PodView]]:
    """Return the pods that have not ended, by node."""
    found: dict[str, list[PodView]] = {}
    for pod in pods:
        if pod.node_name and not pod.is_terminal:
            found.setdefault(pod.node_name, []).append(pod)
    return found


def requested(pods: Iterable[PodView]) -> dict[str, int]:
    """Return the total requests of pods."""
    total: dict[str, int] = {}
    for pod in pods:
        for resource, amount in pod.requests:
            total[resource] = total.get(resource, 0) + amount
    return total


# --- pods suit their nodes ---
#
# A pod is bound only to a node that matches its selector, whose taints it tolerates, and that is not cordoned.
#
# A change of the node in the same instant may have come too late for the scheduler.


_REPELLING = ("NoSchedule", "NoExecute")


class PodsSuitTheirNodes(Invariant):
    """Bound pods match the selector, taints and cordon of their node."""

    name = "pods_suit_their_nodes"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        #: The versions of each node in this instant, the current one last.
        self._nodes: dict[str, list[NodeView]] = {}

    def look(self, event: WatchEvent) -> None:
        """Check new bindings."""
        if event.key.kind == scheme.NODE and event.type is not EventType.DELETED:
            self._nodes.setdefault(event.key.name, []).append(node_view(event.obj))
        if event.key.kind != scheme.POD or event.type is EventType.DELETED:
            return
        pod = pod_view(event.obj)
        if pod.node_name and (event.old is None or not pod_view(event.old).node_name):
            known = self._nodes.get(pod.node_name, ())
            faults = [unsuitable(pod, node) for node in known]
            if known and all(faults):
                self.violate(f"{pod.key} was bound to {pod.node_name}: {faults[-1]}", event.key)

    def settle(self) -> None:
        """Keep only the current version of each node."""
        for views in self._nodes.values():
            del views[:-1]


def unsuitable(pod: PodView, node: NodeView) -> str:
    """Return why a pod may not run on a node, regardless of other pods; empty if it may."""
    missed = [key for key, value in pod.node_selector if node.labels.get(key) != value]
    if missed:
        return f"its label {missed[0]} is {node.labels.get(missed[0])}"
    if node.unschedulable and not any(t.key in {"", well_known.UNSCHEDULABLE} for t in pod.tolerations):
        return "it is cordoned"
    repelling = [taint for taint in node.taints if taint.effect in _REPELLING]
    bad = [taint.key for taint in repelling if not any(t.tolerates(taint) for t in pod.tolerations)]
    return f"its taint {bad[0]} is not tolerated" if bad else ""


# --- slices are whole ---
#
# A slice of several machines exists as a whole or not at all. If one machine crashes, the others stop too.


#: The time that writes with conflicts may take to stop a slice.
_SOON: Final = MINUTE


class SlicesAreWhole(Invariant):
    """The machines of a slice run together or not at all."""

    name = "slices_are_whole"

    def settle(self) -> None:
        """Check that no machine of a slice runs after another was lost."""
        now = self.scene.world.kernel.now()
        for pool, _, machines in self._slices():
            lost = [obj for obj in machines if phase_of(obj) == CRASHED and since(obj) + _SOON < now]
            if lost and any(phase_of(obj) == RUNNING for obj in machines):
                self.violate(f"half of {pool} runs", *map(_key, machines))

    def finish(self) -> None:
        """Check that in the end all machines of a slice run, or none exists."""
        for pool, hosts, machines in self._slices() if self.is_at_rest else ():
            running = sum(phase_of(obj) == RUNNING for obj in machines)
            failed = sum(phase_of(obj) == FAILED for obj in machines)
            if (running, len(machines) - failed) not in {(0, 0), (hosts, hosts)}:
                self.violate(f"{running} of {len(machines)} machines of {pool} run, of {hosts}", *map(_key, machines))

    def _slices(self) -> list[tuple[str, int, list[Obj]]]:
        """Return the pools that are slices of several machines: name, number of hosts, and the remaining machines."""
        world = self.scene.world
        clusters = world.objects(scheme.CLUSTER)
        found = []
        for pool in world.objects(scheme.NODE_POOL) if clusters else ():
            hosts, name = hosts_of_slice(pool, catalog_of(clusters[0])), pool["metadata"]["name"]
            if hosts > 1:
                here = [obj for obj in world.objects(scheme.INSTANCE) if obj["spec"]["pool"] == name]
                found.append((name, hosts, [obj for obj in here if not is_leaving(obj)]))
        return found


def _key(obj: Obj) -> Key:
    return Key(scheme.INSTANCE, "", obj["metadata"]["name"])


# --- requests are whole ---
#
# Queued provisioning provides all machines of a request at once, or none.


class RequestsAreWhole(Invariant):
    """A ResizeRequest gets all of its machines at once, or none."""

    name = "requests_are_whole"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        self._made: dict[str, int] = {}
        self._changed: dict[str, None] = {}

    def look(self, event: WatchEvent) -> None:
        """Count the machines that are created for requests."""
        if event.key.kind == scheme.RESIZE_REQUEST:
            self._changed[event.key.name] = None
            if event.type is EventType.ADDED:
                self._made.pop(event.key.name, None)
        if event.key.kind == scheme.INSTANCE and event.type is EventType.ADDED:
            request = event.obj["spec"].get("resizeRequest")
            if request is not None:
                self._made[request] = self._made.get(request, 0) + 1
                self._changed[request] = None

    def settle(self) -> None:
        """Check that a request has all of its machines, or none."""
        for name in self._changed:
            request = self.scene.world.client.get(Key(scheme.RESIZE_REQUEST, "", name))
            made = self._made.get(name, 0)
            if request is None:
                continue
            wanted, state = request["spec"]["count"], (request.get("status") or {}).get("state")
            if made not in {0, wanted} or (state == "SUCCEEDED" and made != wanted):
                what = f"{made} of {wanted} machines were made for {name}, which is {state}"
                self.violate(what, Key(scheme.RESIZE_REQUEST, "", name))
        self._changed.clear()


# --- exclusive domains ---
#
# With JobSet's exclusive topology, pods of two Jobs are never in the same domain.
#
# Jobs of different priority may share a domain while the lower one terminates.


class ExclusiveDomains(Invariant):
    """A domain holds pods of at most one exclusive Job for each priority."""

    name = "exclusive_domains"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        self._changed = False

    def look(self, event: WatchEvent) -> None:
        """Note changes of pods."""
        self._changed = self._changed or event.key.kind == scheme.POD

    def settle(self) -> None:
        """Check that each domain has pods of one Job only."""
        if not self._changed:
            return
        self._changed = False
        world = self.scene.world
        jobs: dict[tuple[str, str, int], dict[str, Key]] = {}
        for obj in world.objects(scheme.POD):
            topology, pod = annotation(obj, well_known.EXCLUSIVE_TOPOLOGY), pod_view(obj)
            node = None if topology is None else world.client.get(Key(scheme.NODE, "", pod.node_name))
            if topology is not None and node is not None and not pod.is_terminal:
                domain = topology, label(node, topology) or "", pod.priority
                key = Key(scheme.POD, pod.namespace, pod.name)
                jobs.setdefault(domain, {})[label(obj, well_known.JOB_KEY) or ""] = key
        for domain, found in jobs.items():
            if len(found) > 1:
                self.violate(f"{len(found)} Jobs are in one domain, {domain[1]}", *found.values())


# --- idle nodes are released ---
#
# When no more events are scheduled, no autoscaled pool has idle nodes above its minimum.


class IdleNodesAreReleased(Invariant):
    """An autoscaled pool at rest has no idle nodes above its minimum."""

    name = "idle_nodes_are_released"

    def finish(self) -> None:
        """Check every autoscaled pool."""
        world = self.scene.world
        busy = placed(pod_view(obj) for obj in world.objects(scheme.POD))
        for pool in world.objects(scheme.NODE_POOL) if self.is_at_rest else ():
            bounds, name = pool["spec"].get("autoscaling"), pool["metadata"]["name"]
            if bounds is None:
                continue
            zones: dict[str, list[str]] = {}
            for instance in world.objects(scheme.INSTANCE):
                if instance["spec"]["pool"] == name:
                    zones.setdefault(instance["spec"]["zone"], []).append(instance["metadata"]["name"])
            for found in zones.values():
                idle = [node for node in found if node not in busy]
                if idle and len(found) > _least(bounds, pool["spec"].get("tpuTopology") is not None, zones):
                    self.violate(f"{', '.join(idle)} of {name} are idle", Key(scheme.NODE, "", idle[0]))


def _least(bounds: Mapping[str, int], atomic: bool, zones: Mapping[str, list[str]]) -> int:
    """Return the minimum of a zone: all of its nodes while the pool is not above its total minimum."""
    everywhere = sum(map(len, zones.values()))
    if atomic:
        return 0
    return everywhere if everywhere <= bounds.get("totalMin", 0) else bounds.get("min", 0)
