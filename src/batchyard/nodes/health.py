"""The health of nodes: who is not heard of, and the taints that say so.

A node whose kubelet's last beat is too old is told unknown, and its pods not ready. Its conditions become taints: such
that keep pods off at once, and such that drive pods out one node after the other, as its zone fares
(batchyard.nodes.zone_disruption). Source: pkg/controller/nodelifecycle; it looks every 5 s, we when it is due.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.views import pod_lifecycle
from batchyard.api.views import pod_lifecycle as pods
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, Outcome
from batchyard.nodes import conditions as lifecycle
from batchyard.nodes import leases
from batchyard.nodes.conditions import Taint, execution_taints
from batchyard.nodes.pods_by_node import PodsByNode
from batchyard.nodes.zone_disruption import Zones

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
            return (Key(scheme.NODE, "", key.name),) if key.namespace == leases.LEASE_NAMESPACE else ()
        if not self._zones.observe(key.name, new):
            return (key,)
        return [key, *[Key(scheme.NODE, "", name) for name in self._zones.unready()]]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Tell what is known of a node, and taint it."""
        node = reader.get(key)
        if node is None:
            return Outcome()
        unheard_from = leases.unheard_from(node, reader.get(leases.lease_key(key.name)))
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


# --- taint eviction ---
#
# Pods that a taint of their node drives out: deleted when they tolerate it no longer.
#
# First the pod is told why, then it is deleted. Source: pkg/controller/tainteviction; it counts from when it saw a
# taint,
# here counts when the taint came (`timeAdded`), so that a restart does not begin anew.


# a member is slow to look up by name


class TaintEviction:
    """See the module."""

    name = "taint-eviction"
    rank = 0
    kinds = (scheme.NODE, scheme.POD)

    def __init__(self) -> None:
        self._pods = PodsByNode()
        #: The NoExecute taints of the nodes that have some.
        self._taints: dict[str, Sequence[Taint]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The pods of a node whose taints change, and those that come to or change on a node with taints."""
        key, new = event.key, None if event.type is _DELETED else event.obj
        if key.kind == scheme.POD:
            self._pods.observe(key, event.old, new)
            return (key,) if new is not None and pod_lifecycle.node_of(new) in self._taints else ()
        before = self._taints.pop(key.name, ())
        after = () if new is None else execution_taints(new)
        if after:
            self._taints[key.name] = after
        return self._pods.on(key.name) if list(before) != list(after) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Delete a pod that may stay no longer, or wait until then."""
        pod = reader.get(key)
        taints = () if pod is None else self._taints.get(pod_lifecycle.node_of(pod), ())
        if pod is None or not taints or pod_lifecycle.is_terminating(pod):
            return Outcome()
        due = pod_lifecycle.driven_out_at(pod, taints)
        if due is None or due > now:
            return Outcome(requeue_at=due)
        marked = pod_lifecycle.disrupted(pod, pod_lifecycle.BY_TAINT, now)
        if marked is not pod:
            return Outcome([UpdateStatus(marked)])
        event = EventRecord(key, "Normal", "TaintManagerEviction", f"Marking for deletion Pod {key}")
        return Outcome([Delete(key, uid=pod["metadata"]["uid"])], [event])
