"""Node health: detects nodes without heartbeats, and maintains their taints.

If the last heartbeat of a kubelet is too old, its node's conditions become Unknown, and its pods unready. Conditions
become taints: NoSchedule at once, and NoExecute one node after the other, depending on the state of the zone
(batchyard.nodes.zone_disruption). Source: pkg/controller/nodelifecycle, which polls every 5 s; here checks are timed.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.views import pod_lifecycle
from batchyard.api.views import pod_lifecycle as pods
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Delete, EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.nodes import conditions as lifecycle
from batchyard.nodes import leases
from batchyard.nodes.conditions import Taint, execution_taints
from batchyard.nodes.pods_by_node import PodsByNode
from batchyard.nodes.zone_disruption import Zones

_DELETED: Final = EventType.DELETED  # enum member access is slow


class NodeHealth:
    """Maintains conditions and taints of nodes, with their pods and zones."""

    name = "node-health"
    rank = 0
    kinds = (scheme.NODE, scheme.LEASE, scheme.POD)

    def __init__(self) -> None:
        self._pods = PodsByNode()
        self._zones = Zones()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the node, or that of a Lease; also all unready nodes if the state of a zone changes."""
        key, new = event.key, None if event.type is _DELETED else event.obj
        if key.kind == scheme.POD:
            self._pods.observe(key, event.old, new)
            return ()
        if key.kind == scheme.LEASE:
            return (Key(scheme.NODE, "", key.name),) if key.namespace == leases.LEASE_NAMESPACE else ()
        if not self._zones.observe(key.name, new):
            return (key,)
        return [key, *[Key(scheme.NODE, "", name) for name in self._zones.unready()]]

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Update the conditions of a node, or its taints."""
        node = reader.get(key)
        if node is None:
            return ReconcileResult()
        unheard_from = leases.lost_at(node, reader.get(leases.lease_key(key.name)))
        if unheard_from is not None and now >= unheard_from:
            unheard = lifecycle.with_lost_heartbeats(node, now)
            if unheard is not node:
                return ReconcileResult([UpdateStatus(unheard)], _not_ready_events(key, node))
            unheard_from = None
        outcome = self._tainted(node, now)
        if lifecycle.readiness(node) == "Unknown":
            self._mark_pods(key.name, reader, now, outcome)
        waits = [at for at in (unheard_from, outcome.requeue_at) if at is not None]
        outcome.requeue_at = min(waits, default=None)
        return outcome

    def _tainted(self, node: Obj, now: Instant) -> ReconcileResult:
        """Update the taints of a node, or requeue for when its NoExecute taint is due."""
        key, due = self._driven_out_by(node, now)
        tainted = lifecycle.with_taints(node, key, now)
        writes: list[Write] = [Update(tainted)] if tainted is not node else []
        return ReconcileResult(writes, requeue_at=due)

    def _driven_out_by(self, node: Obj, now: Instant) -> tuple[str | None, Instant | None]:
        """Return the key of the NoExecute taint if the node may get it now; else when it may."""
        key, name = lifecycle.execution_key(node), node["metadata"]["name"]
        if key is None or self._zones.is_everything_lost():
            return None, None
        if lifecycle.has_execution_taint(node):
            return key, None
        due = self._zones.next_at(name)
        if due is None or due > now:
            return None, due
        self._zones.give_up(name, now)
        return key, None

    def _mark_pods(self, node: str, reader: Reader, now: Instant, outcome: ReconcileResult) -> None:
        """Set the pods of a node without heartbeats to unready."""
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
# Deletes pods that no longer tolerate a NoExecute taint of their node.
#
# A pod gets its DisruptionTarget condition first, and is then deleted. Source: pkg/controller/tainteviction, which
# counts from when it observed a taint. Here toleration times count from `timeAdded`, so that a restart does not reset
# them.


class TaintEviction:
    """Deletes pods from tainted nodes when their toleration ends."""

    name = "taint-eviction"
    rank = 0
    kinds = (scheme.NODE, scheme.POD)

    def __init__(self) -> None:
        self._pods = PodsByNode()
        #: The NoExecute taints by node.
        self._taints: dict[str, Sequence[Taint]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the pods of a node whose taints change, and pods that change on a tainted node."""
        key, new = event.key, None if event.type is _DELETED else event.obj
        if key.kind == scheme.POD:
            self._pods.observe(key, event.old, new)
            return (key,) if new is not None and pod_lifecycle.node_of(new) in self._taints else ()
        before = self._taints.pop(key.name, ())
        after = () if new is None else execution_taints(new)
        if after:
            self._taints[key.name] = after
        return self._pods.on(key.name) if list(before) != list(after) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Delete a pod whose toleration has ended, or requeue for then."""
        pod = reader.get(key)
        taints = () if pod is None else self._taints.get(pod_lifecycle.node_of(pod), ())
        if pod is None or not taints or pod_lifecycle.is_terminating(pod):
            return ReconcileResult()
        due = pod_lifecycle.driven_out_at(pod, taints)
        if due is None or due > now:
            return ReconcileResult(requeue_at=due)
        marked = pod_lifecycle.disrupted(pod, pod_lifecycle.BY_TAINT, now)
        if marked is not pod:
            return ReconcileResult([UpdateStatus(marked)])
        event = EventRecord(key, "Normal", "TaintManagerEviction", f"Marking for deletion Pod {key}")
        return ReconcileResult([Delete(key, uid=pod["metadata"]["uid"])], [event])
