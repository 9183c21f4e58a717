"""Node registration: the local kubelet's Node object, node status and Lease.

Sources: pkg/kubelet (kubelet_node_status.go), pkg/kubelet/nodestatus/setters.go, k8s.io/component-helpers
apimachinery/lease.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_path, with_status
from batchyard.api.times import format_micro_time, format_time, parse_time
from batchyard.base.instant import MINUTE, Instant
from batchyard.interfaces.client import Create, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.nodes import conditions as lifecycle
from batchyard.nodes import leases

#: How often an unchanged status is reported.
_REPORTS_EVERY: Final = 5 * MINUTE
_DELETED: Final = EventType.DELETED  # accessing an Enum member by name is slow


@dataclass(frozen=True, slots=True)
class NodeInventory:
    """The name, address, resources (as quantities) and info of a node."""

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
        """Return the node's key when the platform starts, the node changes, or its Lease can be created or is
        deleted.
        """
        key = event.key
        if key.kind == scheme.LEASE and (key != leases.lease_key(self._facts.name) or event.type is not _DELETED):
            return ()
        if key.kind == scheme.NAMESPACE and (key.name != leases.LEASE_NAMESPACE or event.old is not None):
            return ()
        if key.kind == scheme.NODE and key != self._key:
            return ()
        return (self._key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Register the node if it does not exist; otherwise report its status and renew its Lease."""
        node = reader.get(key)
        if node is None:
            return ReconcileResult([Create(self._new())], [EventRecord(key, "Normal", "Starting", "Starting kubelet.")])
        writes: list[Write] = []
        reported = self._with_current_status(node, now)
        if reported is not node:
            writes.append(UpdateStatus(reported))
        lease = reader.get(leases.lease_key(key.name))
        renewed = _renewed(lease, node, now)
        if renewed is not lease and reader.get(Key(scheme.NAMESPACE, "", leases.LEASE_NAMESPACE)) is not None:
            writes.append(Create(renewed) if lease is None else Update(renewed))
        events = [] if lifecycle.readiness(node) == "True" else [_ready(key)]
        return ReconcileResult(writes, events, parse_time(renewed["spec"]["renewTime"]) + leases.BEAT)

    def _new(self) -> Obj:
        facts = self._facts
        metadata = {"name": facts.name, "labels": dict(facts.labels)}
        spec = {"taints": [dict(taint) for taint in facts.taints]} if facts.taints else {}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}

    def _with_current_status(self, node: Obj, now: Instant) -> Obj:
        """Return the node with its current status; the same object if nothing is due."""
        facts, old = self._facts, node.get("status") or {}
        addresses = [{"type": "InternalIP", "address": facts.address}, {"type": "Hostname", "address": facts.name}]
        own = {
            "capacity": dict(facts.capacity),
            "allocatable": dict(facts.allocatable),
            "addresses": addresses,
            "nodeInfo": dict(facts.info),
        }
        is_known = all(old.get(name) == value for name, value in own.items())
        current = lifecycle.with_resumed_heartbeats(node if is_known else with_status(node, {**old, **own}), now)
        return _reported(current, now) if current is not node or _is_due(node, now) else node


def _is_due(node: Obj, now: Instant) -> bool:
    ready = lifecycle.conditions_of(node).get(lifecycle.READY) or {}
    return now >= parse_time(ready.get("lastHeartbeatTime") or node["metadata"]["creationTimestamp"]) + _REPORTS_EVERY


def _reported(node: Obj, now: Instant) -> Obj:
    """Return the node with the heartbeat time of its conditions set to `now`."""
    beat = {"lastHeartbeatTime": format_time(now)}
    return with_path(node, ("status", "conditions"), [{**c, **beat} for c in node["status"]["conditions"]])


def _renewed(lease: Obj | None, node: Obj, now: Instant) -> Obj:
    """Return the renewed Lease of the node; the same object if it was renewed recently."""
    if lease is None or not leases.is_lease_of(lease, node):
        return with_path(leases.new_lease(node, now), ("spec", "renewTime"), format_micro_time(now))
    last = lease["spec"].get("renewTime")
    if last is not None and parse_time(last) + leases.BEAT > now:
        return lease
    return with_path(lease, ("spec", "renewTime"), format_micro_time(now))


def _ready(key: Key) -> EventRecord:
    return EventRecord(key, "Normal", "NodeReady", f"Node {key.name} status is now: NodeReady")
