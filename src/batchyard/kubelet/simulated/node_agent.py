"""Simulated node agents: Leases and readiness of simulated nodes.

A node gets its Lease when it registers. If its machine is lost, the Lease records the last heartbeat
(batchyard.nodes.leases) and nothing else is written. On the shutdown notice of its machine a node becomes NotReady.
When a machine returns, its node reports again. The cloud decides when the node of one of its machines is ready. A Node
without an Instance is ready immediately. Sources: pkg/kubelet/nodestatus, pkg/kubelet/nodeshutdown.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.kubelet.simulated.node_machine import notice_at
from batchyard.nodes import conditions as lifecycle
from batchyard.nodes import leases

_DELETED: Final = EventType.DELETED  # accessing an Enum member by name is slow


class NodeAgents:
    """The controller of simulated nodes' Leases and readiness, with the keys of all nodes."""

    name = "node-agents"
    rank = 0
    kinds = (scheme.NODE, scheme.INSTANCE, scheme.LEASE, scheme.NAMESPACE)

    def __init__(self, local: str = "") -> None:
        self._nodes: dict[Key, None] = {}
        #: The node that is not simulated; empty if all are.
        self._local = local

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the node of a changed node, machine or Lease, or all nodes when Leases can be created again."""
        key = event.key
        if self._local and key.name == self._local:
            return ()
        if key.kind == scheme.NAMESPACE:
            return tuple(self._nodes) if key.name == leases.LEASE_NAMESPACE and event.old is None else ()
        if key.kind == scheme.NODE:
            self._note(event)
        if key.kind == scheme.LEASE and (key.namespace != leases.LEASE_NAMESPACE or event.type is not _DELETED):
            return ()
        if key.kind == scheme.NODE and (event.type is _DELETED or not _is_news_of_node(event)):
            return ()
        return (Key(scheme.NODE, "", key.name),)

    def _note(self, event: WatchEvent) -> None:
        if event.type is _DELETED:
            self._nodes.pop(event.key, None)
        else:
            self._nodes[event.key] = None

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Update the Lease and readiness of a node according to its machine."""
        node, instance = reader.get(key), reader.get(Key(scheme.INSTANCE, "", key.name))
        if node is None:
            return ReconcileResult()
        lease = reader.get(leases.lease_key(key.name))
        if lease is not None and not leases.is_lease_of(lease, node):
            return ReconcileResult()  # the Lease of an earlier node with this name, about to be deleted
        writes: list[Write] = []
        beating = _lease(node, lease, instance, now)
        if beating is not lease:
            writes.append(Create(beating) if lease is None else Update(beating))
        reported = _with_readiness(node, instance, now)
        if reported is node:
            return ReconcileResult(writes)
        return ReconcileResult([*writes, UpdateStatus(reported)], _events(key, node, reported))


def _is_news_of_node(event: WatchEvent) -> bool:
    """Whether a node is new or its readiness was changed by anyone."""
    return event.old is None or lifecycle.readiness(event.obj) != lifecycle.readiness(event.old)


def _lease(node: Obj, lease: Obj | None, instance: Obj | None, now: Instant) -> Obj:
    """Return the Lease of a node; unchanged while its machine boots."""
    current = leases.new_lease(node, now) if lease is None else lease
    phase, beats = _phase(instance), leases.is_beating(current)
    if instance is not None and phase == "Crashed" and beats:
        return leases.stopped(current, parse_time(instance["status"]["since"]))
    return leases.resumed(current, now) if phase == "Running" and not beats else current


def _with_readiness(node: Obj, instance: Obj | None, now: Instant) -> Obj:
    """Return the node with the readiness that its kubelet reports; the same object if nothing changes."""
    readiness = lifecycle.readiness(node)
    if instance is not None and notice_at(instance) is not None:
        return lifecycle.shutting_down(node, now) if readiness == "True" else node
    unheard = readiness == "Unknown" or (not readiness and instance is None)
    return lifecycle.with_resumed_heartbeats(node, now) if unheard and _phase(instance) == "Running" else node


def _phase(instance: Obj | None) -> str:
    """Return the phase of a machine; a node without an Instance counts as running."""
    return "Running" if instance is None else (instance.get("status") or {}).get("phase") or ""


def _events(key: Key, before: Obj, after: Obj) -> list[EventRecord]:
    if not lifecycle.readiness(before):
        return []
    word = "NodeReady" if lifecycle.readiness(after) == "True" else "NodeNotReady"
    return [EventRecord(key, "Normal", word, f"Node {key.name} status is now: {word}")]
