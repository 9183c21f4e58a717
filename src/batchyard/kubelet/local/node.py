"""Registration of this machine's Node with its status and Lease, and the allocation of GPUs to containers.

Sources: pkg/kubelet (kubelet_node_status.go), pkg/kubelet/nodestatus/setters.go, k8s.io/component-helpers
apimachinery/lease.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import meta, scheme
from batchyard.api.meta import Key, Obj, with_path, with_status
from batchyard.api.times import format_micro_time, format_time, parse_time
from batchyard.base.instant import MINUTE, Instant
from batchyard.interfaces.client import Create, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.kubelet.local.errors import InputError
from batchyard.kubelet.local.security import containers_of
from batchyard.nodes import conditions, health

#: The interval at which an unchanged node status is reported.
_REPORTS_EVERY: Final = 5 * MINUTE
_DELETED: Final = EventType.DELETED  # accessing an Enum member by name is slow


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """The name, address, resources (as quantities), labels, taints and `nodeInfo` of this machine's node."""

    name: str
    address: str
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    #: `nodeInfo` of its status.
    info: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, Any]] = ()


class LocalNode:
    """The controller that registers this machine's node, reports its status and renews its Lease."""

    name = "local-node"
    rank = 0
    kinds: Sequence[str] = (scheme.CLUSTER, scheme.NODE, scheme.LEASE, scheme.NAMESPACE)

    def __init__(self, facts: NodeInventory) -> None:
        self._facts = facts
        self._key = Key(scheme.NODE, "", facts.name)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the node's key if the event may change the node, its Lease, or whether the Lease can be created."""
        key = event.key
        if key.kind == scheme.LEASE and (key != health.lease_key(self._facts.name) or event.type is not _DELETED):
            return ()
        if key.kind == scheme.NAMESPACE and (key.name != health.LEASE_NAMESPACE or event.old is not None):
            return ()
        if key.kind == scheme.NODE and key != self._key:
            return ()
        return (self._key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Register the node if it does not exist; otherwise update its status and renew its Lease."""
        node = reader.get(key)
        if node is None:
            return ReconcileResult([Create(self._new())], [EventRecord(key, "Normal", "Starting", "Starting kubelet.")])
        writes: list[Write] = []
        reported = self._with_current_status(node, now)
        if reported is not node:
            writes.append(UpdateStatus(reported))
        lease = reader.get(health.lease_key(key.name))
        renewed = _renewed(lease, node, now)
        if renewed is not lease and reader.get(Key(scheme.NAMESPACE, "", health.LEASE_NAMESPACE)) is not None:
            writes.append(Create(renewed) if lease is None else Update(renewed))
        events = [] if conditions.readiness(node) == "True" else [_ready(key)]
        return ReconcileResult(writes, events, parse_time(renewed["spec"]["renewTime"]) + health.BEAT)

    def _new(self) -> Obj:
        facts = self._facts
        metadata = {"name": facts.name, "labels": dict(facts.labels)}
        spec = {"taints": [dict(taint) for taint in facts.taints]} if facts.taints else {}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}

    def _with_current_status(self, node: Obj, now: Instant) -> Obj:
        """Return the node with its current status; the same object if the status is unchanged and no report is due."""
        facts, old = self._facts, node.get("status") or {}
        addresses = [{"type": "InternalIP", "address": facts.address}, {"type": "Hostname", "address": facts.name}]
        own = {
            "capacity": dict(facts.capacity),
            "allocatable": dict(facts.allocatable),
            "addresses": addresses,
            "nodeInfo": dict(facts.info),
        }
        is_known = all(old.get(name) == value for name, value in own.items())
        current = conditions.with_resumed_heartbeats(node if is_known else with_status(node, {**old, **own}), now)
        return _reported(current, now) if current is not node or _is_due(node, now) else node


def _is_due(node: Obj, now: Instant) -> bool:
    ready = conditions.conditions_of(node).get(conditions.READY) or {}
    return now >= parse_time(ready.get("lastHeartbeatTime") or node["metadata"]["creationTimestamp"]) + _REPORTS_EVERY


def _reported(node: Obj, now: Instant) -> Obj:
    """Return the node with the heartbeat time of its conditions set to `now`."""
    beat = {"lastHeartbeatTime": format_time(now)}
    return with_path(node, ("status", "conditions"), [{**c, **beat} for c in node["status"]["conditions"]])


def _renewed(lease: Obj | None, node: Obj, now: Instant) -> Obj:
    """Return the node's Lease with a new renewal time; the same object if it was renewed recently."""
    if lease is None or not health.is_lease_of(lease, node):
        return with_path(health.new_lease(node, now), ("spec", "renewTime"), format_micro_time(now))
    last = lease["spec"].get("renewTime")
    if last is not None and parse_time(last) + health.BEAT > now:
        return lease
    return with_path(lease, ("spec", "renewTime"), format_micro_time(now))


def _ready(key: Key) -> EventRecord:
    return EventRecord(key, "Normal", "NodeReady", f"Node {key.name} status is now: NodeReady")


# --- devices ---
#
# Allocation of whole devices such as GPUs to containers, and the device files and variables that they need.
#
# A device belongs to one pod at a time. Devices of an init container are reused by later containers. Free devices with
# the lowest numbers are taken first. Sources: pkg/kubelet/cm/devicemanager/manager.go (Allocate, devicesToAllocate);
# NVIDIA's device plugin for the environment of a GPU container.


Allocation: TypeAlias = Mapping[str, Sequence[int]]
"""The device numbers that are allocated to each container of one pod, by container name."""

GPU: Final = "nvidia.com/gpu"


class Gpu(NamedTuple):
    """A GPU of this machine."""

    number: int
    uuid: str
    model: str
    memory_bytes: int
    #: The device files that programs need to use it.
    paths: Sequence[str]


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The device files and environment variables that a container needs to use its devices."""

    paths: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def allocation_of(pod: Obj, resource: str, numbers: Sequence[int], held: Mapping[str, Allocation]) -> Allocation:
    """Allocate devices to each container of a pod that requests some; InputError if too few are free.

    `numbers` are the machine's healthy devices, `held` the current allocations by pod uid. A pod keeps its devices.
    """
    uid: str = pod["metadata"]["uid"]
    own = held.get(uid, {})
    taken = {number for allocation in held.values() for given in allocation.values() for number in given}
    reusable: dict[int, None] = {}
    found: dict[str, Sequence[int]] = {}
    for container in containers_of(pod):
        wanted = _wanted(container, resource)
        if not wanted:
            continue
        name: str = container["name"]
        if name in own:
            _check_same(container, own[name], (uid, resource, wanted, numbers))
            given: Sequence[int] = own[name]
        else:
            given = _pick(resource, wanted, list(reusable), [n for n in sorted(numbers) if n not in taken])
        found[name] = given
        taken.update(given)
        for number in given:
            reusable.pop(number, None)
        if _only_starts(pod, container):
            reusable.update(dict.fromkeys(given))
    return found


def gpu_devices(gpus: Sequence[Gpu]) -> ContainerDevices:
    """Return the device files and variables for a container's GPUs; without GPUs, variables that hide all GPUs.

    The variables name GPUs by uuid, because indices differ in a container that sees only its own GPUs.
    """
    if not gpus:
        return ContainerDevices((), {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"})
    listed = ",".join(gpu.uuid for gpu in gpus)
    paths = dict.fromkeys(path for gpu in gpus for path in gpu.paths)
    return ContainerDevices(list(paths), {"CUDA_VISIBLE_DEVICES": listed, "NVIDIA_VISIBLE_DEVICES": listed})


def _wanted(container: Mapping[str, Any], resource: str) -> int:
    limits: Mapping[str, Any] = (container.get("resources") or {}).get("limits") or {}
    return meta.amount(resource, limits.get(resource) or "0")


def _only_starts(pod: Obj, container: Mapping[str, Any]) -> bool:
    return container in (pod["spec"].get("initContainers") or ()) and container.get("restartPolicy") != "Always"


def _check_same(container: Mapping[str, Any], had: Sequence[int], asked: tuple[str, str, int, Sequence[int]]) -> None:
    uid, resource, wanted, numbers = asked
    if len(had) != wanted:
        raise InputError(
            f'pod "{uid}" container "{container["name"]}" changed request for resource "{resource}"'
            f" from {len(had)} to {wanted}"
        )
    if not set(had) <= set(numbers):
        lost = "previously allocated devices are no longer healthy"
        raise InputError(f"{lost}; cannot allocate unhealthy devices {resource}")


def _pick(resource: str, wanted: int, reusable: Sequence[int], free: Sequence[int]) -> Sequence[int]:
    """Choose devices: first those of the pod's init containers, then free ones; InputError if too few are free."""
    reused = sorted(reusable)[:wanted]
    needed = wanted - len(reused)
    if len(free) < needed:
        raise InputError(
            f"requested number of devices unavailable for {resource}. Requested: {needed}, Available: {len(free)}"
        )
    return [*reused, *free[:needed]]
