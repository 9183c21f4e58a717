"""What kubelets say of their nodes: that they are there, that they go off, that they are back.

A node that registers gets its Lease. When its machine is lost, the Lease tells the last beat
(batchyard.nodes.leases); this is all the dead can say. On the notice that the machine goes off its node is
not ready any more; a machine that is back posts anew. The cloud says when the node of one of its machines is ready; a
Node without an Instance is ready as soon as it is there. Sources: pkg/kubelet/nodestatus, pkg/kubelet/nodeshutdown.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, Outcome
from batchyard.kubelet.simulated.node_machine import notice_at
from batchyard.nodes import conditions as lifecycle
from batchyard.nodes import leases

_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


class NodeAgents:
    """See the module."""

    name = "node-agents"
    rank = 0
    kinds = (scheme.NODE, scheme.INSTANCE, scheme.LEASE, scheme.NAMESPACE)

    def __init__(self, local: str = "") -> None:
        self._nodes: dict[Key, None] = {}
        #: The node that is no simulated one; empty if all are.
        self._local = local

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The node, when it comes, when its machine changes, or its Lease goes; all when Leases may be made again."""
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

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Keep the Lease of a node, and say of the node what its machine makes true."""
        node, instance = reader.get(key), reader.get(Key(scheme.INSTANCE, "", key.name))
        if node is None:
            return Outcome()
        lease = reader.get(leases.lease_key(key.name))
        if lease is not None and not leases.is_lease_of(lease, node):
            return Outcome()  # that of an earlier node of this name, about to go
        writes: list[Write] = []
        beating = _lease(node, lease, instance, now)
        if beating is not lease:
            writes.append(Create(beating) if lease is None else Update(beating))
        said = _said(node, instance, now)
        if said is node:
            return Outcome(writes)
        return Outcome([*writes, UpdateStatus(said)], _events(key, node, said))


def _is_news_of_node(event: WatchEvent) -> bool:
    """Whether a node is new, or somebody says otherwise about its readiness."""
    return event.old is None or lifecycle.readiness(event.obj) != lifecycle.readiness(event.old)


def _lease(node: Obj, lease: Obj | None, instance: Obj | None, now: Instant) -> Obj:
    """The Lease of a node as it should be; while its machine boots, as it is."""
    current = leases.new_lease(node, now) if lease is None else lease
    phase, beats = _phase(instance), leases.is_beating(current)
    if instance is not None and phase == "Crashed" and beats:
        return leases.stopped(current, parse_time(instance["status"]["since"]))
    return leases.resumed(current, now) if phase == "Running" and not beats else current


def _said(node: Obj, instance: Obj | None, now: Instant) -> Obj:
    """The node as its kubelet has it; the node itself if there is nothing to say, or nobody to say it."""
    readiness = lifecycle.readiness(node)
    if instance is not None and notice_at(instance) is not None:
        return lifecycle.shutting_down(node, now) if readiness == "True" else node
    unheard = readiness == "Unknown" or (not readiness and instance is None)
    return lifecycle.heard_of_again(node, now) if unheard and _phase(instance) == "Running" else node


def _phase(instance: Obj | None) -> str:
    """The phase of a machine; one that is nobody's runs."""
    return "Running" if instance is None else (instance.get("status") or {}).get("phase") or ""


def _events(key: Key, before: Obj, after: Obj) -> list[EventRecord]:
    if not lifecycle.readiness(before):
        return []
    word = "NodeReady" if lifecycle.readiness(after) == "True" else "NodeNotReady"
    return [EventRecord(key, "Normal", word, f"Node {key.name} status is now: {word}")]
