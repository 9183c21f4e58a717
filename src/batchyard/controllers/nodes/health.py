"""The health of nodes: who is not heard of, and the taints that say so.

A node whose kubelet's last beat is too old is told unknown, and its pods not ready. Its conditions become taints: such
that keep pods off at once, and such that drive pods out one node after the other, as its zone fares
(batchyard.core.lifecycle.disruption). Source: pkg/controller/nodelifecycle; it looks every 5 s, we when it is due.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import Instant
from batchyard.controllers.nodes.zones import Zones
from batchyard.core.lifecycle import heartbeat
from batchyard.core.lifecycle import node as lifecycle
from batchyard.core.lifecycle import pod as pods
from batchyard.core.lifecycle.pods_by_node import PodsByNode
from batchyard.ports.client import EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.ports.controller import EventRecord, Outcome

_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


class NodeHealth:
    """See the module."""

    name = "node-health"
    rank = 0
    kinds = (scheme.NODE, scheme.LEASE, scheme.POD)

    def __init__(self) -> None:
        self._pods = PodsByNode()
        self._zones = Zones()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The node, or that of a Lease; with it those that are not ready, where a zone fares otherwise than before."""
        key, new = event.key, None if event.type is _DELETED else event.obj
        if key.kind == scheme.POD:
            self._pods.observe(key, event.old, new)
            return ()
        if key.kind == scheme.LEASE:
            return (Key(scheme.NODE, "", key.name),) if key.namespace == heartbeat.LEASE_NAMESPACE else ()
        if not self._zones.observe(key.name, new):
            return (key,)
        return [key, *[Key(scheme.NODE, "", name) for name in self._zones.unready()]]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Tell what is known of a node, and taint it."""
        node = reader.get(key)
        if node is None:
            return Outcome()
        unheard_from = heartbeat.unheard_from(node, reader.get(heartbeat.lease_key(key.name)))
        if unheard_from is not None and now >= unheard_from:
            unheard = lifecycle.unheard_of(node, now)
            if unheard is not node:
                return Outcome([UpdateStatus(unheard)], _not_ready_events(key, node))
            unheard_from = None
        outcome = self._tainted(node, now)
        if lifecycle.readiness(node) == "Unknown":
            self._mark_pods(key.name, reader, now, outcome)
        waits = [at for at in (unheard_from, outcome.requeue_at) if at is not None]
        outcome.requeue_at = min(waits, default=None)
        return outcome

    def _tainted(self, node: Obj, now: Instant) -> Outcome:
        """The taints of a node brought up to date, or when the one that drives pods out may come."""
        key, due = self._driven_out_by(node, now)
        tainted = lifecycle.with_taints(node, key, now)
        writes: list[Write] = [Update(tainted)] if tainted is not node else []
        return Outcome(writes, requeue_at=due)

    def _driven_out_by(self, node: Obj, now: Instant) -> tuple[str | None, Instant | None]:
        """The key of the NoExecute taint that the health of a node asks for, if it may have it; else from when on."""
        key, name = lifecycle.execution_key(node), node["metadata"]["name"]
        if key is None or self._zones.is_everything_lost():
            return None, None
        if lifecycle.is_given_up(node):
            return key, None
        due = self._zones.next_at(name)
        if due is None or due > now:
            return None, due
        self._zones.give_up(name, now)
        return key, None

    def _mark_pods(self, node: str, reader: Reader, now: Instant, outcome: Outcome) -> None:
        """Tell the pods of a node that is not heard of to be not ready."""
        for key in self._pods.on(node):
            pod = reader.get(key)
            if pod is not None and pods.is_ready(pod):
                outcome.writes.append(UpdateStatus(pods.not_ready(pod, now)))
                outcome.events.append(EventRecord(key, "Warning", "NodeNotReady", "Node is not ready"))


def _not_ready_events(key: Key, before: Obj) -> list[EventRecord]:
    if lifecycle.readiness(before) != "True":
        return []
    return [EventRecord(key, "Normal", "NodeNotReady", f"Node {key.name} status is now: NodeNotReady")]
