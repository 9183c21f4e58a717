"""Status of simulated pods and nodes, and the Leases of simulated nodes.

All containers of a simulated pod have the same state (`SimulatedRunState`), and init containers end immediately.
Sources: pkg/kubelet/kubelet_pods.go (generateAPIPodStatus), pkg/kubelet/status (generate.go:
conditions), pkg/apis/core/v1/helper/qos.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from batchyard.api import meta, scheme
from batchyard.api.meta import Key, Obj, is_true
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import FAILED, SUCCEEDED, pod_condition
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.nodes import conditions, health

# The machine of a pod: its Node, and the cloud Instance on which the node runs, if any.
#
# A Node without an Instance of the same name is on a machine that never shuts down.


class NodeMachine(NamedTuple):
    """The machine of a node at one instant: its power state, Node object, boot time and shutdown notice."""

    is_on: bool
    #: None in a cluster without nodes.
    node: Obj | None = None
    #: Containers that started before this time were lost.
    booted_at: Instant = 0
    #: When the shutdown notice arrived; None if there was none.
    notice_at: Instant | None = None

    def is_ready(self) -> bool:
        """Return whether the machine is on and its Node is Ready, so that the kubelet accepts pods."""
        return self.is_on and (self.node is None or is_true(self.node, "Ready"))

    def host_ip(self) -> str:
        """Return the node's internal address, or one derived from its name; empty in a cluster without nodes."""
        if self.node is None:
            return ""
        for address in (self.node.get("status") or {}).get("addresses") or ():
            if address["type"] == "InternalIP":
                return str(address["address"])
        return _host_address(self.node["metadata"]["name"])


MACHINE_OFF: Final = NodeMachine(is_on=False)
MACHINE_WITHOUT_NODE: Final = NodeMachine(is_on=True)


def machine_of(node: Obj | None, instance: Obj | None, now: Instant) -> NodeMachine:
    """Return the state at `now` of the machine on which a node runs; off if there is no node."""
    if node is None:
        return MACHINE_OFF
    if instance is None:
        return NodeMachine(True, node, parse_time(node["metadata"]["creationTimestamp"]))
    status: Mapping[str, Any] = instance.get("status") or {}
    if not _is_instance_running(status, now):
        return MACHINE_OFF
    booted_at = parse_time(node["metadata"]["creationTimestamp"])
    if status["phase"] == "Running":
        booted_at = max(booted_at, parse_time(status["since"]))
    return NodeMachine(True, node, booted_at, shutdown_notice_time(instance))


def shutdown_notice_time(instance: Obj) -> Instant | None:
    """Return when a machine was notified to shut down, as its Instance stops or is deleted; None if it was not."""
    status: Mapping[str, Any] = instance.get("status") or {}
    if status.get("phase") == "Stopping":
        return parse_time(status["since"])
    deleted_at = instance["metadata"].get("deletionTimestamp")
    return parse_time(deleted_at) if deleted_at is not None and status.get("phase") == "Running" else None


def pod_address(uid: str) -> str:
    """Return an IP address in 10.4.0.0/14 for a pod, derived from its uid; two pods may have the same address."""
    uid_hash = zlib.crc32(uid.encode())
    return f"10.{4 + (uid_hash >> 16 & 3)}.{uid_hash >> 8 & 255}.{uid_hash & 255}"


@lru_cache(maxsize=16384)
def _host_address(name: str) -> str:
    """Return an IP address in 10.128.0.0/20 for a node, derived from its name; two nodes may have the same one."""
    node_name_hash = zlib.crc32(name.encode())
    return f"10.128.{node_name_hash >> 8 & 15}.{node_name_hash & 255}"


def _is_instance_running(status: Mapping[str, Any], now: Instant) -> bool:
    phase = status.get("phase")
    if phase == "Stopping":
        return "stopAt" not in status or now < parse_time(status["stopAt"])
    return phase == "Running"


SharedContainerState = Mapping[str, Mapping[str, Any]]

_SANDBOX_CONDITION: Final = "PodReadyToStartContainers"
_KUBELET_CONDITIONS: Final = frozenset({_SANDBOX_CONDITION, "Initialized", "Ready", "ContainersReady", "PodScheduled"})
_NO_REASON: Final = ("", "")
_NO_STATE: Final[SharedContainerState] = {}
_QOS_RESOURCES: Final = ("cpu", "memory")


class SimulatedRunState(NamedTuple):
    """The fields that all containers of a simulated pod share: state, last `terminated` state and restart count."""

    #: The container state: `waiting`, `running` or `terminated`, with its fields.
    state: SharedContainerState
    #: The `terminated` state of the previous run; empty if there was none.
    last_state: SharedContainerState = _NO_STATE
    restart_count: int = 0


def creating_state(pod: Obj) -> SharedContainerState:
    """Return the `waiting` state of containers that are being created (ContainerCreating or PodInitializing)."""
    reason = "PodInitializing" if pod["spec"].get("initContainers") else "ContainerCreating"
    return {"waiting": {"reason": reason}}


def running_state(start_time: Instant) -> SharedContainerState:
    """Return the `running` state of containers that started at `start_time`."""
    return {"running": {"startedAt": format_time(start_time)}}


def exited_state(exit_code: int, started_at: str, finished_at: Instant) -> SharedContainerState:
    """Return the `terminated` state of containers that exited or were stopped.

    `started_at` is formatted, as in the previous `running` state.
    """
    time_fields = {"startedAt": started_at, "finishedAt": format_time(finished_at)}
    return {"terminated": {"exitCode": exit_code, "reason": "Error" if exit_code else "Completed", **time_fields}}


def lost_state(message: str) -> SharedContainerState:
    """Return the `terminated` state of lost containers: exit code 137, because the real one is unknown."""
    return {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "message": message}}


def run_of(pod: Obj) -> SimulatedRunState | None:
    """Return the state that all containers of a simulated pod share; None if no kubelet has accepted the pod."""
    statuses = (pod.get("status") or {}).get("containerStatuses")
    if not statuses:
        return None
    status = statuses[0]
    return SimulatedRunState(status["state"], status.get("lastState") or _NO_STATE, status.get("restartCount", 0))


def pod_status(pod: Obj, phase: str, run: SimulatedRunState, machine: NodeMachine, now: Instant) -> dict[str, Any]:
    """Return a simulated pod's status with this phase and container state; other controllers' fields are kept."""
    old = pod.get("status") or {}
    status = {**old, "phase": phase, "conditions": _conditions(pod, phase, run, now)}
    if "startTime" not in status:
        status["startTime"], status["qosClass"] = format_time(now), qos_class(pod["spec"])
    if machine.node is not None and "hostIP" not in status:
        address = machine.host_ip()
        status["hostIP"], status["hostIPs"] = address, [{"ip": address}]
    if "running" in run.state and "podIP" not in status:
        address = _pod_ip(pod, machine)
        status["podIP"], status["podIPs"] = address, [{"ip": address}]
    if pod["spec"].get("initContainers"):
        status["initContainerStatuses"] = _init_container_statuses(pod, run, now)
    status["containerStatuses"] = [_container_status(c, run) for c in pod["spec"]["containers"]]
    return status


def qos_class(spec: Mapping[str, Any]) -> str:
    """Return the QoS class of a pod: Guaranteed, Burstable or BestEffort."""
    containers = [*(spec.get("initContainers") or ()), *spec["containers"]]
    container_amounts = [(_parse_amounts(c, "requests"), _parse_amounts(c, "limits")) for c in containers]
    if not any(requests or limits for requests, limits in container_amounts):
        return "BestEffort"
    for requests, limits in container_amounts:
        if len(limits) < len(_QOS_RESOURCES) or any(requests.get(key, limits[key]) != limits[key] for key in limits):
            return "Burstable"
    return "Guaranteed"


def _conditions(pod: Obj, phase: str, run: SimulatedRunState, now: Instant) -> list[Mapping[str, Any]]:
    old = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    is_creating = "waiting" in run.state and not run.last_state
    is_running, unready_reason = "running" in run.state, _unready_reason(pod, phase, run)
    is_initialized, initialized_reason = _initialized_condition(pod, phase, is_creating)
    return [
        *[c for kind, c in old.items() if kind not in _KUBELET_CONDITIONS],
        pod_condition(
            _SANDBOX_CONDITION,
            is_running or bool(run.last_state and "waiting" in run.state),
            _NO_REASON,
            old.get(_SANDBOX_CONDITION),
            now,
        ),
        pod_condition("Initialized", is_initialized, initialized_reason, old.get("Initialized"), now),
        pod_condition("Ready", is_running, unready_reason, old.get("Ready"), now),
        pod_condition("ContainersReady", is_running, unready_reason, old.get("ContainersReady"), now),
        pod_condition("PodScheduled", True, _NO_REASON, old.get("PodScheduled"), now),
    ]


def _unready_reason(pod: Obj, phase: str, run: SimulatedRunState) -> tuple[str, str]:
    if phase in {SUCCEEDED, FAILED}:
        return ("PodCompleted" if phase == SUCCEEDED else "PodFailed"), ""
    if "running" in run.state:
        return _NO_REASON
    sidecar_containers = [c for c in pod["spec"].get("initContainers") or () if _is_sidecar(c)]
    names = _format_names([*sidecar_containers, *pod["spec"]["containers"]])
    return "ContainersNotReady", f"containers with unready status: {names}"


def _initialized_condition(pod: Obj, phase: str, is_creating: bool) -> tuple[bool, tuple[str, str]]:
    init_containers = pod["spec"].get("initContainers") or ()
    if is_creating and init_containers:
        message = f"containers with incomplete status: {_format_names(init_containers)}"
        return False, ("ContainersNotInitialized", message)
    return True, ("PodCompleted" if phase == SUCCEEDED else "", "")


def _format_names(containers: Iterable[Mapping[str, Any]]) -> str:
    return f"[{' '.join(c['name'] for c in containers)}]"


def _container_status(container: Mapping[str, Any], run: SimulatedRunState) -> dict[str, Any]:
    is_running = "running" in run.state
    return {
        "name": container["name"],
        "state": run.state,
        "lastState": run.last_state,
        "ready": is_running,
        "started": is_running,
        "restartCount": run.restart_count,
        "image": container.get("image") or "",
        "imageID": "",
    }


def _init_container_statuses(pod: Obj, run: SimulatedRunState, now: Instant) -> list[Mapping[str, Any]]:
    """Return the statuses of init containers, which end at once, and of sidecars, which run like main containers."""
    old = {s["name"]: s for s in (pod.get("status") or {}).get("initContainerStatuses") or ()}
    exited_run = SimulatedRunState(exited_state(0, format_time(now), now))
    return [_init_container_status(c, run, exited_run, old.get(c["name"])) for c in pod["spec"]["initContainers"]]


def _init_container_status(
    container: Mapping[str, Any], run: SimulatedRunState, exited_run: SimulatedRunState, old: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    if _is_sidecar(container) or ("waiting" in run.state and not run.last_state):
        return _container_status(container, run)
    if old is not None and "terminated" in old["state"]:
        return old
    return {**_container_status(container, exited_run), "ready": True}


def _is_sidecar(container: Mapping[str, Any]) -> bool:
    return container.get("restartPolicy") == "Always"


def _pod_ip(pod: Obj, machine: NodeMachine) -> str:
    if pod["spec"].get("hostNetwork") and machine.node is not None:
        return machine.host_ip()
    return pod_address(pod["metadata"]["uid"])


def _parse_amounts(container: Mapping[str, Any], kind: str) -> Mapping[str, int]:
    quantities: Mapping[str, Any] = (container.get("resources") or {}).get(kind) or {}
    parsed_amounts: Sequence[tuple[str, int]] = [
        (name, meta.parse_quantity(quantities[name])) for name in _QOS_RESOURCES if name in quantities
    ]
    return {name: nano for name, nano in parsed_amounts if nano > 0}


# Leases and readiness of simulated nodes.
#
# A node gets its Lease when it registers. If its machine is lost, the Lease records the last heartbeat
# (batchyard.nodes.health). On the shutdown notice of its machine a node becomes NotReady. When a machine returns, its
# node becomes Ready again. The cloud controller sets the first readiness of a node with an Instance. A Node without an
# Instance is ready immediately. Sources: pkg/kubelet/nodestatus, pkg/kubelet/nodeshutdown.


_DELETED: Final = EventType.DELETED  # accessing an Enum member by name is slow


class NodeAgents:
    """The controller that acts for simulated nodes: it writes their Leases and Ready conditions."""

    name = "node-agents"
    rank = 0
    kinds = (scheme.NODE, scheme.INSTANCE, scheme.LEASE, scheme.NAMESPACE)

    def __init__(self, local_node: str = "") -> None:
        self._nodes: dict[Key, None] = {}
        #: The name of the node that is not simulated; empty if all nodes are simulated.
        self._local_node = local_node

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of the Node whose readiness or Instance has changed, or whose Lease was deleted.

        When the namespace of the Leases is created, return the keys of all nodes.
        """
        key = event.key
        if self._local_node and key.name == self._local_node:
            return ()
        if key.kind == scheme.NAMESPACE:
            return tuple(self._nodes) if key.name == health.LEASE_NAMESPACE and event.old is None else ()
        if key.kind == scheme.NODE:
            self._index_node(event)
        if key.kind == scheme.LEASE and (key.namespace != health.LEASE_NAMESPACE or event.type is not _DELETED):
            return ()
        if key.kind == scheme.NODE and (event.type is _DELETED or not _is_readiness_change(event)):
            return ()
        return (Key(scheme.NODE, "", key.name),)

    def _index_node(self, event: WatchEvent) -> None:
        if event.type is _DELETED:
            self._nodes.pop(event.key, None)
        else:
            self._nodes[event.key] = None

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Update the Lease and the Ready condition of a node according to the state of its machine."""
        node, instance = reader.get(key), reader.get(Key(scheme.INSTANCE, "", key.name))
        if node is None:
            return ReconcileResult()
        lease = reader.get(health.lease_key(key.name))
        if lease is not None and not health.is_lease_of(lease, node):
            return ReconcileResult()  # the Lease of an earlier node with this name, about to be deleted
        writes: list[Write] = []
        new_lease = _updated_lease(node, lease, instance, now)
        if new_lease is not lease:
            writes.append(Create(new_lease) if lease is None else Update(new_lease))
        updated_node = _with_readiness(node, instance, now)
        if updated_node is node:
            return ReconcileResult(writes)
        return ReconcileResult([*writes, UpdateStatus(updated_node)], _readiness_events(key, node, updated_node))


def _is_readiness_change(event: WatchEvent) -> bool:
    return event.old is None or conditions.readiness(event.obj) != conditions.readiness(event.old)


def _updated_lease(node: Obj, lease: Obj | None, instance: Obj | None, now: Instant) -> Obj:
    old_lease = health.new_lease(node, now) if lease is None else lease
    phase, has_heartbeats = _machine_phase(instance), health.has_heartbeats(old_lease)
    if instance is not None and phase == "Crashed" and has_heartbeats:
        return health.stop_lease_heartbeats(old_lease, parse_time(instance["status"]["since"]))
    return health.resume_lease_heartbeats(old_lease, now) if phase == "Running" and not has_heartbeats else old_lease


def _with_readiness(node: Obj, instance: Obj | None, now: Instant) -> Obj:
    readiness = conditions.readiness(node)
    if instance is not None and shutdown_notice_time(instance) is not None:
        return conditions.with_shutdown(node, now) if readiness == "True" else node
    is_unreported = readiness == "Unknown" or (not readiness and instance is None)
    if is_unreported and _machine_phase(instance) == "Running":
        return conditions.with_resumed_heartbeats(node, now)
    return node


def _machine_phase(instance: Obj | None) -> str:
    return "Running" if instance is None else (instance.get("status") or {}).get("phase") or ""


def _readiness_events(key: Key, old_node: Obj, new_node: Obj) -> list[EventRecord]:
    if not conditions.readiness(old_node):
        return []
    reason = "NodeReady" if conditions.readiness(new_node) == "True" else "NodeNotReady"
    return [EventRecord(key, "Normal", reason, f"Node {key.name} status is now: {reason}")]
