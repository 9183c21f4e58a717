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
_REPORT_INTERVAL: Final = 5 * MINUTE
_DELETED: Final = EventType.DELETED  # accessing an Enum member by name is slow


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """What this machine's Node object reports: name, address, resource quantities, labels, taints and `nodeInfo`."""

    name: str
    address: str
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    #: `nodeInfo` of its status.
    node_info: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, Any]] = ()


class LocalNode:
    """The controller that registers this machine's node, reports its status and renews its Lease."""

    name = "local-node"
    rank = 0
    kinds: Sequence[str] = (scheme.CLUSTER, scheme.NODE, scheme.LEASE, scheme.NAMESPACE)

    def __init__(self, inventory: NodeInventory) -> None:
        self._inventory = inventory
        self._key = Key(scheme.NODE, "", inventory.name)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return this node's key if the event may require an update of its Node or Lease.

        That is so if the Node or a Cluster changes, the Lease is deleted, or the Namespace of the Lease is created.
        """
        key = event.key
        if key.kind == scheme.LEASE and (key != health.lease_key(self._inventory.name) or event.type is not _DELETED):
            return ()
        if key.kind == scheme.NAMESPACE and (key.name != health.LEASE_NAMESPACE or event.old is not None):
            return ()
        if key.kind == scheme.NODE and key != self._key:
            return ()
        return (self._key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Create the Node object if it does not exist; otherwise update its status and renew its Lease if due."""
        node = reader.get(key)
        if node is None:
            event = EventRecord(key, "Normal", "Starting", "Starting kubelet.")
            return ReconcileResult([Create(self._new_node())], [event])
        writes: list[Write] = []
        new_node = self._with_current_status(node, now)
        if new_node is not node:
            writes.append(UpdateStatus(new_node))
        lease = reader.get(health.lease_key(key.name))
        new_lease = _renew_lease(lease, node, now)
        if new_lease is not lease and reader.get(Key(scheme.NAMESPACE, "", health.LEASE_NAMESPACE)) is not None:
            writes.append(Create(new_lease) if lease is None else Update(new_lease))
        events = [] if conditions.readiness(node) == "True" else [_ready_event(key)]
        return ReconcileResult(writes, events, parse_time(new_lease["spec"]["renewTime"]) + health.HEARTBEAT_INTERVAL)

    def _new_node(self) -> Obj:
        inventory = self._inventory
        metadata = {"name": inventory.name, "labels": dict(inventory.labels)}
        spec = {"taints": [dict(taint) for taint in inventory.taints]} if inventory.taints else {}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}

    def _with_current_status(self, node: Obj, now: Instant) -> Obj:
        """Return the Node with its current status; the same object if nothing changed and no heartbeat is due."""
        machine, old = self._inventory, node.get("status") or {}
        addresses = [{"type": "InternalIP", "address": machine.address}, {"type": "Hostname", "address": machine.name}]
        fields = {
            "capacity": dict(machine.capacity),
            "allocatable": dict(machine.allocatable),
            "addresses": addresses,
            "nodeInfo": dict(machine.node_info),
        }
        is_same = all(old.get(name) == value for name, value in fields.items())
        new_node = conditions.with_resumed_heartbeats(node if is_same else with_status(node, {**old, **fields}), now)
        return _with_heartbeat(new_node, now) if new_node is not node or _is_status_report_due(node, now) else node


def _is_status_report_due(node: Obj, now: Instant) -> bool:
    condition = conditions.conditions_of(node).get(conditions.READY) or {}
    return (
        now
        >= parse_time(condition.get("lastHeartbeatTime") or node["metadata"]["creationTimestamp"]) + _REPORT_INTERVAL
    )


def _with_heartbeat(node: Obj, now: Instant) -> Obj:
    heartbeat_field = {"lastHeartbeatTime": format_time(now)}
    return with_path(node, ("status", "conditions"), [{**c, **heartbeat_field} for c in node["status"]["conditions"]])


def _renew_lease(lease: Obj | None, node: Obj, now: Instant) -> Obj:
    if lease is None or not health.is_lease_of(lease, node):
        return with_path(health.new_lease(node, now), ("spec", "renewTime"), format_micro_time(now))
    renewed_at = lease["spec"].get("renewTime")
    if renewed_at is not None and parse_time(renewed_at) + health.HEARTBEAT_INTERVAL > now:
        return lease
    return with_path(lease, ("spec", "renewTime"), format_micro_time(now))


def _ready_event(key: Key) -> EventRecord:
    return EventRecord(key, "Normal", "NodeReady", f"Node {key.name} status is now: NodeReady")


# Allocation of whole devices such as GPUs to containers, and the device files and variables that they need.
#
# A device belongs to one pod at a time. Devices of an init container are reused by later containers. Free devices with
# the lowest numbers are taken first. Sources: pkg/kubelet/cm/devicemanager/manager.go (Allocate, devicesToAllocate);
# NVIDIA's device plugin for the environment of a GPU container.


Allocation: TypeAlias = Mapping[str, Sequence[int]]
"""The device numbers that are allocated to each container of one pod, by container name."""

GPU: Final = "nvidia.com/gpu"


class Gpu(NamedTuple):
    """A GPU of this machine: its number and uuid, its model and memory, and its device files."""

    number: int
    uuid: str
    model: str
    memory_bytes: int
    #: The device files that programs need to use it.
    paths: Sequence[str]


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The device files and environment variables with which a container gets its assigned devices."""

    paths: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def allocate_devices(
    pod: Obj, resource: str, healthy_devices: Sequence[int], allocations: Mapping[str, Allocation]
) -> Allocation:
    """Return the devices of `resource` for each container of a pod that requests some.

    `healthy_devices` are those of the machine, `allocations` the current assignments by pod uid. Raises InputError if
    too few devices are free, or if the pod's own current assignment is no longer valid.
    """
    uid: str = pod["metadata"]["uid"]
    own_allocation = allocations.get(uid, {})
    allocated_devices = {
        number for allocation in allocations.values() for devices in allocation.values() for number in devices
    }
    reusable_devices: dict[int, None] = {}
    allocation_by_container: dict[str, Sequence[int]] = {}
    for container in containers_of(pod):
        count = _requested_device_count(container, resource)
        if not count:
            continue
        name: str = container["name"]
        if name in own_allocation:
            _check_unchanged_allocation(container, own_allocation[name], (uid, resource, count, healthy_devices))
            devices: Sequence[int] = own_allocation[name]
        else:
            devices = _choose_devices(
                resource, count, reusable_devices, [n for n in sorted(healthy_devices) if n not in allocated_devices]
            )
        allocation_by_container[name] = devices
        allocated_devices.update(devices)
        for number in devices:
            reusable_devices.pop(number, None)
        if _is_plain_init_container(pod, container):
            reusable_devices.update(dict.fromkeys(devices))
    return allocation_by_container


def gpu_devices(gpus: Sequence[Gpu]) -> ContainerDevices:
    """Return the device files and environment variables of a container with these GPUs.

    Without GPUs, the variables hide all GPUs. They name GPUs by uuid, because indices differ in a container that
    sees only its own GPUs.
    """
    if not gpus:
        return ContainerDevices((), {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"})
    uuids = ",".join(gpu.uuid for gpu in gpus)
    paths = dict.fromkeys(path for gpu in gpus for path in gpu.paths)
    return ContainerDevices(list(paths), {"CUDA_VISIBLE_DEVICES": uuids, "NVIDIA_VISIBLE_DEVICES": uuids})


def _requested_device_count(container: Mapping[str, Any], resource: str) -> int:
    limits: Mapping[str, Any] = (container.get("resources") or {}).get("limits") or {}
    return meta.amount(resource, limits.get(resource) or "0")


def _is_plain_init_container(pod: Obj, container: Mapping[str, Any]) -> bool:
    return container in (pod["spec"].get("initContainers") or ()) and container.get("restartPolicy") != "Always"


def _check_unchanged_allocation(
    container: Mapping[str, Any], allocated_devices: Sequence[int], request: tuple[str, str, int, Sequence[int]]
) -> None:
    uid, resource, requested_count, healthy_devices = request
    if len(allocated_devices) != requested_count:
        raise InputError(
            f'pod "{uid}" container "{container["name"]}" changed request for resource "{resource}"'
            f" from {len(allocated_devices)} to {requested_count}"
        )
    if not set(allocated_devices) <= set(healthy_devices):
        error = "previously allocated devices are no longer healthy"
        raise InputError(f"{error}; cannot allocate unhealthy devices {resource}")


def _choose_devices(resource: str, count: int, reusable: Iterable[int], free_devices: Sequence[int]) -> Sequence[int]:
    """Return `count` devices: first the `reusable` ones of the pod's init containers, then free ones.

    Raises InputError if there are too few free devices.
    """
    reused_devices = sorted(reusable)[:count]
    needed_count = count - len(reused_devices)
    if len(free_devices) < needed_count:
        counts_text = f"Requested: {needed_count}, Available: {len(free_devices)}"
        raise InputError(f"requested number of devices unavailable for {resource}. {counts_text}")
    return [*reused_devices, *free_devices[:needed_count]]
