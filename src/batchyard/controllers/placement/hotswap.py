"""Hotswap, its first half: the pods of gangs whose node is lost are failed and removed as soon as that is known.

Without it they stay for the five minutes that pods tolerate it, and then until the node is gone or back, since nobody
else can end them; only then does their Job fail and the gang start anew. This does at once what an administrator does
with the taint out-of-service. The other half, to find the gang another place, is placement's
(batchyard.controllers.placement.swaps).

Nodes and pods are heard of apart from each other. So a pod that was placed on a node after that was lost, or just now
on one that is not known, is left alone for a moment: whoever placed it knew of a node that is back, or new. Kubernetes
places pods on a node that is back while that still has the taint that drives out, which all tolerate for five minutes.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj, annotation, label
from batchyard.api.times import parse_time
from batchyard.base.instant import SECOND, Instant
from batchyard.core.lifecycle import node as nodes
from batchyard.core.lifecycle import pod as lifecycle
from batchyard.core.lifecycle.pods_by_node import PodsByNode
from batchyard.ports.client import Delete, EventType, Reader, UpdateStatus, WatchEvent
from batchyard.ports.controller import EventRecord, Outcome

#: How much later than of a pod one may hear of its node.
HEARD_WITHIN: Final = 10 * SECOND
BY_HOTSWAP: Final = lifecycle.Disruption("DeletionByHotswap", "Hotswap: node is lost")

_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


class Hotswap:
    """See the module."""

    name = "hotswap"
    rank = 0
    kinds = (scheme.NODE, scheme.POD)

    def __init__(self) -> None:
        self._pods = PodsByNode()
        #: The nodes there are, each with whether it is lost.
        self._lost: dict[str, bool] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The pods of a node that is lost, and a pod that changes on one."""
        key, new = event.key, None if event.type is _DELETED else event.obj
        if key.kind == scheme.POD:
            self._pods.observe(key, event.old, new)
            return (key,) if new is not None and self._may_be_lost(lifecycle.node_of(new)) else ()
        was_lost = self._lost.pop(key.name, True)
        if new is not None:
            self._lost[key.name] = is_lost(new)
        return self._pods.on(key.name) if not was_lost and self._may_be_lost(key.name) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Fail a pod of a gang if its node is lost, and remove it when that is written."""
        pod = reader.get(key)
        name = "" if pod is None else lifecycle.node_of(pod)
        if pod is None or not name or not _is_of_gang(pod):
            return Outcome()
        node = reader.get(Key(scheme.NODE, "", name))
        if (node is not None and not is_lost(node)) or not _is_left_over(pod):
            return Outcome()
        failed = lifecycle.failed(pod, BY_HOTSWAP, now)
        if failed is not pod and now < (heard := _heard_by(node, pod)):
            return Outcome(requeue_at=heard)
        if failed is pod:
            return Outcome([Delete(key, grace=0, uid=pod["metadata"]["uid"])])
        event = EventRecord(key, "Warning", "NodeLost", f"Node {name} is lost: the pod is removed")
        return Outcome([UpdateStatus(failed)], [event])

    def _may_be_lost(self, node: str) -> bool:
        """Whether a node is lost, or not known."""
        return bool(node) and self._lost.get(node, True)


def _is_of_gang(pod: Obj) -> bool:
    """Whether a pod is of a Workload, or of a JobSet without a queue: such a JobSet restarts as a whole too."""
    return bool(annotation(pod, well_known.WORKLOAD) or label(pod, well_known.JOB_SET_UID))


def is_lost(node: Obj) -> bool:
    """Whether nobody hears of a node any more."""
    return nodes.readiness(node) == "Unknown" or nodes.has_taint(node, well_known.UNREACHABLE)


def _heard_by(node: Obj | None, pod: Obj) -> Instant:
    """When one has heard what whoever placed the pod knew of its node; long since, if that was before it was lost."""
    placed = lifecycle.scheduled_at(pod)
    return placed if node is not None and placed <= _lost_at(node, placed) else placed + HEARD_WITHIN


def _lost_at(node: Obj, unless_told: Instant) -> Instant:
    """Since when a lost node has not been heard of, or has had the taint."""
    ready = find_condition(node, nodes.READY)
    marks = [ready["lastTransitionTime"]] if ready is not None and ready["status"] == "Unknown" else []
    marks += [taint.get("timeAdded") for taint in nodes.taints_of(node) if taint["key"] == well_known.UNREACHABLE]
    return max((parse_time(mark) for mark in marks if mark), default=unless_told)


def _is_left_over(pod: Obj) -> bool:
    """Whether a pod has not ended; or is still to be deleted, since it was failed here or was to go anyway."""
    if not lifecycle.is_terminal(pod):
        return True
    target = find_condition(pod, lifecycle.DISRUPTION_TARGET)
    is_ours = target is not None and target.get("reason") == BY_HOTSWAP.reason
    return (is_ours or lifecycle.is_terminating(pod)) and not lifecycle.is_gone_but_for_finalizers(pod)
