"""What the kubelet of this machine says of its node: that it is there, what it has, and that it lives.

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
from batchyard.interfaces.controller import EventRecord, Outcome
from batchyard.nodes import conditions as lifecycle
from batchyard.nodes import leases

#: How often a status is told anew that says nothing new.
_REPORTS_EVERY: Final = 5 * MINUTE
_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


@dataclass(frozen=True, slots=True)
class Facts:
    """What a node is and has, as quantities."""

    name: str
    address: str
    capacity: Mapping[str, str]
    allocatable: Mapping[str, str]
    #: `nodeInfo` of its status.
    info: Mapping[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, Any]] = ()


class LocalNode:
    """Registers this machine's node, and renews its Lease."""

    name = "local-node"
    rank = 0
    kinds: Sequence[str] = (scheme.CLUSTER, scheme.NODE, scheme.LEASE, scheme.NAMESPACE)

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._key = Key(scheme.NODE, "", facts.name)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The node, when the platform begins, when it changes, and when its Lease may be made or goes."""
        key = event.key
        if key.kind == scheme.LEASE and (key != leases.lease_key(self._facts.name) or event.type is not _DELETED):
            return ()
        if key.kind == scheme.NAMESPACE and (key.name != leases.LEASE_NAMESPACE or event.old is not None):
            return ()
        if key.kind == scheme.NODE and key != self._key:
            return ()
        return (self._key,)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Make the node if it is not there, say what it has, and that it lives."""
        node = reader.get(key)
        if node is None:
            return Outcome([Create(self._new())], [EventRecord(key, "Normal", "Starting", "Starting kubelet.")])
        writes: list[Write] = []
        said = self._said(node, now)
        if said is not node:
            writes.append(UpdateStatus(said))
        lease = reader.get(leases.lease_key(key.name))
        renewed = _renewed(lease, node, now)
        if renewed is not lease and reader.get(Key(scheme.NAMESPACE, "", leases.LEASE_NAMESPACE)) is not None:
            writes.append(Create(renewed) if lease is None else Update(renewed))
        events = [] if lifecycle.readiness(node) == "True" else [_ready(key)]
        return Outcome(writes, events, parse_time(renewed["spec"]["renewTime"]) + leases.BEAT)

    def _new(self) -> Obj:
        facts = self._facts
        metadata = {"name": facts.name, "labels": dict(facts.labels)}
        spec = {"taints": [dict(taint) for taint in facts.taints]} if facts.taints else {}
        return {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec}

    def _said(self, node: Obj, now: Instant) -> Obj:
        """The node as its kubelet has it; itself where there is nothing new to say."""
        facts, old = self._facts, node.get("status") or {}
        addresses = [{"type": "InternalIP", "address": facts.address}, {"type": "Hostname", "address": facts.name}]
        own = {
            "capacity": dict(facts.capacity),
            "allocatable": dict(facts.allocatable),
            "addresses": addresses,
            "nodeInfo": dict(facts.info),
        }
        is_known = all(old.get(name) == value for name, value in own.items())
        told = lifecycle.heard_of_again(node if is_known else with_status(node, {**old, **own}), now)
        return _reported(told, now) if told is not node or _is_due(node, now) else node


def _is_due(node: Obj, now: Instant) -> bool:
    ready = lifecycle.conditions_of(node).get(lifecycle.READY) or {}
    return now >= parse_time(ready.get("lastHeartbeatTime") or node["metadata"]["creationTimestamp"]) + _REPORTS_EVERY


def _reported(node: Obj, now: Instant) -> Obj:
    """The node with conditions that were told now."""
    beat = {"lastHeartbeatTime": format_time(now)}
    return with_path(node, ("status", "conditions"), [{**c, **beat} for c in node["status"]["conditions"]])


def _renewed(lease: Obj | None, node: Obj, now: Instant) -> Obj:
    """The Lease of the node as it should be; itself while it was renewed lately."""
    if lease is None or not leases.is_lease_of(lease, node):
        return with_path(leases.new_lease(node, now), ("spec", "renewTime"), format_micro_time(now))
    last = lease["spec"].get("renewTime")
    if last is not None and parse_time(last) + leases.BEAT > now:
        return lease
    return with_path(lease, ("spec", "renewTime"), format_micro_time(now))


def _ready(key: Key) -> EventRecord:
    return EventRecord(key, "Normal", "NodeReady", f"Node {key.name} status is now: NodeReady")
