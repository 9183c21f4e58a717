"""Node health: heartbeats of nodes, taints of unhealthy nodes, and the eviction of pods from tainted nodes.

If the last heartbeat of a kubelet is too old, its node's conditions become Unknown, and its pods unready. Conditions
lead to taints: NoSchedule without delay, NoExecute at a rate that depends on the state of the zone. Source:
pkg/controller/nodelifecycle, which polls every 5 s; here checks are timed.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, label, with_path
from batchyard.api.times import format_micro_time, parse_time
from batchyard.api.views import pods
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.client import Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.nodes import conditions
from batchyard.nodes.conditions import Taint, no_execute_taints, readiness
from batchyard.nodes.pods import PodsByNode

# The state of each zone, and the rate at which its unready nodes get NoExecute taints.
#
# If most nodes of a zone are lost, a network failure is likely. Nodes are then tainted slowly or not at all.
# Source: pkg/controller/nodelifecycle (ComputeZoneState, handleDisruption) and the defaults of
# kube-controller-manager's flags.


#: The interval between the NoExecute taints of two nodes of one zone: node-eviction-rate, secondary-node-eviction-rate.
EVICTION_INTERVAL: Final = 10 * SECOND
SLOW_EVICTION_INTERVAL: Final = 100 * SECOND
#: The maximum size of a zone whose evictions stop in a disruption; in larger zones they are slow.
SMALL_ZONE_NODES_MAX: Final = 50
#: The percentage of unready nodes from which a zone is disrupted: unhealthy-zone-threshold.
UNHEALTHY_ZONE_PERCENT: Final = 55


class ZoneState(StrEnum):
    """The disruption state of a zone of nodes, which determines the rate of NoExecute taints in the zone."""

    NORMAL = "Normal"
    PARTIAL_DISRUPTION = "PartialDisruption"
    FULL_DISRUPTION = "FullDisruption"


def zone_state(ready_count: int, unready_count: int) -> ZoneState:
    """Return the disruption state of a zone with these numbers of ready and unready nodes."""
    if unready_count and not ready_count:
        return ZoneState.FULL_DISRUPTION
    if unready_count > 2 and 100 * unready_count >= UNHEALTHY_ZONE_PERCENT * (ready_count + unready_count):
        return ZoneState.PARTIAL_DISRUPTION
    return ZoneState.NORMAL


def are_all_zones_down(zone_states: Iterable[ZoneState]) -> bool:
    """Return whether all zones are fully disrupted; then no node gets a NoExecute taint."""
    return all(state is ZoneState.FULL_DISRUPTION for state in zone_states)


def eviction_interval(state: ZoneState, node_count: int) -> Duration | None:
    """Return the minimum time between the NoExecute taints of two nodes of a zone; None if no node may get one."""
    if state is not ZoneState.PARTIAL_DISRUPTION:
        return EVICTION_INTERVAL
    return SLOW_EVICTION_INTERVAL if node_count > SMALL_ZONE_NODES_MAX else None


class _NodeRecord(NamedTuple):
    zone: str
    is_ready: bool
    tainted_at: Instant | None


class _Zone:
    __slots__ = ("ready_count", "state", "taint_interval", "tainted_at", "unready_nodes")

    def __init__(self) -> None:
        self.ready_count = 0
        self.unready_nodes: dict[str, None] = {}
        self.tainted_at: Instant | None = None
        self.state = ZoneState.NORMAL
        self.taint_interval: Duration | None = None

    def record_taint(self, at: Instant) -> None:
        self.tainted_at = at if self.tainted_at is None else max(at, self.tainted_at)

    def update_state(self) -> bool:
        old_state = (self.state, self.taint_interval)
        self.state = zone_state(self.ready_count, len(self.unready_nodes))
        self.taint_interval = eviction_interval(self.state, self.ready_count + len(self.unready_nodes))
        return old_state != (self.state, self.taint_interval)


class Zones:
    """The nodes by zone, with the disruption state of each zone."""

    __slots__ = ("_nodes", "_zones")

    def __init__(self) -> None:
        self._nodes: dict[str, _NodeRecord] = {}
        self._zones: dict[str, _Zone] = {}

    def observe(self, name: str, node: Obj | None) -> bool:
        """Process a created, changed or deleted (None) node; return whether a zone's state or taint rate changed."""
        old_record, new_record = self._nodes.pop(name, None), None if node is None else _node_record(node)
        if new_record is not None:
            self._nodes[name] = new_record
        if old_record == new_record:
            return False
        changed_zones: dict[str, None] = {}
        if old_record is not None:
            self._remove_node(name, old_record)
            changed_zones[old_record.zone] = None
        if new_record is not None:
            self._add_node(name, new_record)
            changed_zones[new_record.zone] = None
        have_states_changed = [self._zones[zone].update_state() for zone in changed_zones]
        return any(have_states_changed)

    def unready_nodes(self) -> list[str]:
        """Return the names of all unready nodes."""
        return [name for zone in self._zones.values() for name in zone.unready_nodes]

    def record_taint(self, name: str, at: Instant) -> None:
        """Record that a node gets its NoExecute taint, before the taint is written."""
        self._zones[self._nodes[name].zone].record_taint(at)

    def are_all_zones_down(self) -> bool:
        """Return whether no zone that has nodes has a ready node."""
        return are_all_zones_down(zone.state for zone in self._zones.values() if zone.ready_count or zone.unready_nodes)

    def next_taint_time(self, name: str) -> Instant | None:
        """Return when a node may get its NoExecute taint (0: at once).

        None if the node is unknown, or if no node of its zone may get the taint now.
        """
        node = self._nodes.get(name)
        zone = None if node is None else self._zones[node.zone]
        if zone is None or zone.taint_interval is None:
            return None
        return 0 if zone.tainted_at is None else zone.tainted_at + zone.taint_interval

    def _add_node(self, name: str, node: _NodeRecord) -> None:
        zone = self._zones.setdefault(node.zone, _Zone())
        if node.is_ready:
            zone.ready_count += 1
        else:
            zone.unready_nodes[name] = None
        if node.tainted_at is not None:
            zone.record_taint(node.tainted_at)

    def _remove_node(self, name: str, node: _NodeRecord) -> None:
        zone = self._zones[node.zone]
        if node.is_ready:
            zone.ready_count -= 1
        else:
            del zone.unready_nodes[name]


def _node_record(node: Obj) -> _NodeRecord:
    zone = f"{label(node, well_known.REGION) or ''}:{label(node, well_known.ZONE) or ''}"
    return _NodeRecord(zone, conditions.readiness(node) == "True", conditions.unready_taint_time(node))


# Heartbeats of nodes in their Leases, and the time at which a node counts as lost.
#
# A simulated node does not write each heartbeat: a Lease without `renewTime` means that heartbeats continue. When its
# machine is lost, the time of the last heartbeat is written once. Sources: k8s.io/component-helpers apimachinery/lease
# and pkg/kubelet (intervals), cmd/kube-controller-manager (node-monitor-grace-period and node-startup-grace-period).


LEASE_NAMESPACE: Final = "kube-node-lease"
LEASE_SECONDS: Final = 40
HEARTBEAT_INTERVAL: Final = LEASE_SECONDS * SECOND // 4
MONITOR_GRACE_PERIOD: Final = 50 * SECOND
STARTUP_GRACE_PERIOD: Final = 60 * SECOND


def lease_key(node: str) -> Key:
    """Return the key of a node's Lease."""
    return Key(scheme.LEASE, LEASE_NAMESPACE, node)


def new_lease(node: Obj, now: Instant) -> Obj:
    """Return a Lease for a new node, with the node as owner."""
    name, uid = node["metadata"]["name"], node["metadata"]["uid"]
    owner_reference = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner_reference]},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "acquireTime": format_micro_time(now)},
    }


def is_lease_of(lease: Obj, node: Obj) -> bool:
    """Return whether a Lease belongs to this node instead of an earlier node of the same name."""
    owner_references = lease["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == node["metadata"]["uid"] for owner in owner_references)


def has_heartbeats(lease: Obj) -> bool:
    """Return whether a Lease's simulated node still sends heartbeats; `renewTime` is set only when they stop."""
    return "renewTime" not in lease["spec"]


def stop_lease_heartbeats(lease: Obj, at: Instant) -> Obj:
    """Return the Lease of a node whose machine was lost at `at`, with the time of its last heartbeat as `renewTime`."""
    first_heartbeat = parse_time(lease["spec"]["acquireTime"])
    last_heartbeat = first_heartbeat + max(0, at - first_heartbeat) // HEARTBEAT_INTERVAL * HEARTBEAT_INTERVAL
    return with_path(lease, ("spec", "renewTime"), format_micro_time(last_heartbeat))


def resume_lease_heartbeats(lease: Obj, now: Instant) -> Obj:
    """Return the Lease of a node whose heartbeats resume: without `renewTime`, and with `acquireTime` set to now."""
    spec = {field: value for field, value in lease["spec"].items() if field != "renewTime"}
    return {**lease, "spec": {**spec, "acquireTime": format_micro_time(now)}}


def lost_at(node: Obj, lease: Obj | None) -> Instant | None:
    """Return when a node counts as lost; None if its heartbeats continue or it has no Lease.

    A node without a Ready condition is lost a grace period after its creation. Another node is lost a grace period
    after the `renewTime` of its Lease.
    """
    if not readiness(node):
        return parse_time(node["metadata"]["creationTimestamp"]) + STARTUP_GRACE_PERIOD
    if lease is None or has_heartbeats(lease) or not is_lease_of(lease, node):
        return None
    return parse_time(lease["spec"]["renewTime"]) + MONITOR_GRACE_PERIOD


_DELETED: Final = EventType.DELETED  # enum member access is slow


class NodeHealth:
    """Controller that maintains the conditions and taints of nodes, and sets the pods on lost nodes to unready."""

    name = "node-health"
    rank = 0
    kinds = (scheme.NODE, scheme.LEASE, scheme.POD)

    def __init__(self) -> None:
        self._pods = PodsByNode()
        self._zones = Zones()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of the node whose Node or Lease changed.

        If the change affects the state or taint rate of a zone, also return the keys of all unready nodes.
        """
        key, new = event.key, None if event.type is _DELETED else event.obj
        if key.kind == scheme.POD:
            self._pods.observe(key, event.old, new)
            return ()
        if key.kind == scheme.LEASE:
            return (Key(scheme.NODE, "", key.name),) if key.namespace == LEASE_NAMESPACE else ()
        if not self._zones.observe(key.name, new):
            return (key,)
        return [key, *[Key(scheme.NODE, "", name) for name in self._zones.unready_nodes()]]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Set a newly lost node's conditions to Unknown; otherwise update the node's taints and its pods' readiness."""
        node = reader.get(key)
        if node is None:
            return ReconcileResult()
        lost_time = lost_at(node, reader.get(lease_key(key.name)))
        if lost_time is not None and now >= lost_time:
            lost_node = conditions.with_lost_heartbeats(node, now)
            if lost_node is not node:
                return ReconcileResult([UpdateStatus(lost_node)], _not_ready_events(key, node))
            lost_time = None
        taint_result = self._update_taints(node, now)
        if conditions.readiness(node) == "Unknown":
            self._set_pods_unready(key.name, reader, now, taint_result)
        requeue_times = [at for at in (lost_time, taint_result.requeue_at) if at is not None]
        taint_result.requeue_at = min(requeue_times, default=None)
        return taint_result

    def _update_taints(self, node: Obj, now: Instant) -> ReconcileResult:
        key, due_at = self._no_execute_key_to_set(node, now)
        tainted_node = conditions.with_taints(node, key, now)
        writes: list[Write] = [Update(tainted_node)] if tainted_node is not node else []
        return ReconcileResult(writes, requeue_at=due_at)

    def _no_execute_key_to_set(self, node: Obj, now: Instant) -> tuple[str | None, Instant | None]:
        """Return the key of the NoExecute taint that a node must have now, or else the time when the taint is due.

        The other value is None. Both are None if the node must not get the taint in its zone's present state. A new
        taint is recorded for the rate limit of the zone.
        """
        key, name = conditions.required_no_execute_taint_key(node), node["metadata"]["name"]
        if key is None or self._zones.are_all_zones_down():
            return None, None
        if conditions.has_unready_taint(node):
            return key, None
        due_at = self._zones.next_taint_time(name)
        if due_at is None or due_at > now:
            return None, due_at
        self._zones.record_taint(name, now)
        return key, None

    def _set_pods_unready(self, node: str, reader: Reader, now: Instant, reconcile_result: ReconcileResult) -> None:
        for key in self._pods.pod_keys_on(node):
            pod = reader.get(key)
            if pod is not None and pods.is_ready(pod):
                reconcile_result.writes.append(UpdateStatus(pods.with_ready_false(pod, now)))
                reconcile_result.events.append(EventRecord(key, "Warning", "NodeNotReady", "Node is not ready"))


def _not_ready_events(key: Key, old_node: Obj) -> list[EventRecord]:
    if conditions.readiness(old_node) != "True":
        return []
    return [EventRecord(key, "Normal", "NodeNotReady", f"Node {key.name} status is now: NodeNotReady")]


# A pod first gets the condition DisruptionTarget, and is then deleted. Source: pkg/controller/tainteviction, which
# counts from its observation of a taint. Here toleration times count from `timeAdded`, so that a restart does not reset
# them.


class TaintEviction:
    """Controller that deletes pods from nodes with NoExecute taints when the pods' toleration ends."""

    name = "taint-eviction"
    rank = 0
    kinds = (scheme.NODE, scheme.POD)

    def __init__(self) -> None:
        self._pods = PodsByNode()
        #: The NoExecute taints by node name.
        self._taints: dict[str, Sequence[Taint]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the keys of a node's pods if its NoExecute taints changed, or of a changed pod on a tainted node."""
        key, new = event.key, None if event.type is _DELETED else event.obj
        if key.kind == scheme.POD:
            self._pods.observe(key, event.old, new)
            return (key,) if new is not None and pods.bound_node(new) in self._taints else ()
        old_taints = self._taints.pop(key.name, ())
        new_taints = () if new is None else no_execute_taints(new)
        if new_taints:
            self._taints[key.name] = new_taints
        return self._pods.pod_keys_on(key.name) if list(old_taints) != list(new_taints) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """When a pod's toleration of its node's taints ends, set DisruptionTarget to True, then delete the pod."""
        pod = reader.get(key)
        taints = () if pod is None else self._taints.get(pods.bound_node(pod), ())
        if pod is None or not taints or pods.is_terminating(pod):
            return ReconcileResult()
        due_at = pods.taint_eviction_time(pod, taints)
        if due_at is None or due_at > now:
            return ReconcileResult(requeue_at=due_at)
        pod_with_disruption_target = pods.with_disruption(pod, pods.DISRUPTION_BY_TAINT, now)
        if pod_with_disruption_target is not pod:
            return ReconcileResult([UpdateStatus(pod_with_disruption_target)])
        event = EventRecord(key, "Normal", "TaintManagerEviction", f"Marking for deletion Pod {key}")
        return ReconcileResult([Delete(key, uid=pod["metadata"]["uid"])], [event])
