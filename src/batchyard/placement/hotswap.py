"""Hotswap: fails and deletes the pods of gangs on lost nodes at once, and moves gangs to other nodes.

By default such pods stay for the 300 s toleration, and then until the node is deleted or recovers. Only then does their
Job fail and the gang restart. The controller does at once what an administrator does with the out-of-service taint. The
second half (`HotswapPass`) frees nodes for the restarted gang.

Watch events of nodes and pods have no common order. A pod that was bound to a node after the node was lost, or recently
to an unknown node, is therefore left alone for a short time: the scheduler may know a newer state of the node.
Kubernetes binds pods to a recovered node that still has the NoExecute taint, which all pods tolerate for five minutes.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj, annotation, key_of, label
from batchyard.api.times import parse_time
from batchyard.api.views import pod_lifecycle as lifecycle
from batchyard.api.views.checkpoints import checkpoint_interval, lost_work, running_since
from batchyard.api.views.ownership import owning_jobs
from batchyard.api.views.pods import PodView
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.client import Delete, EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.jobs.jobset.exclusive_placement import is_leader
from batchyard.nodes import conditions as nodes
from batchyard.nodes.pods_by_node import PodsByNode
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.exclusive_followers import FollowerReservations, missing_followers
from batchyard.placement.gang import PlacementClaim, placeholders
from batchyard.placement.gang_preemption import HOTSWAP, EvictionUnit, message
from batchyard.placement.index import pod_key
from batchyard.scheduling.workload import lifecycle as r
from batchyard.scheduling.workload import lifecycle as swaps_lifecycle

#: Maximum delay of a node's watch event after a pod's.
HEARD_WITHIN: Final = 10 * SECOND
BY_HOTSWAP: Final = lifecycle.Disruption("DeletionByHotswap", "Hotswap: node is lost")

_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


class Hotswap:
    """Controller that fails and deletes pods of gangs on lost nodes."""

    name = "hotswap"
    rank = 0
    kinds = (scheme.NODE, scheme.POD)

    def __init__(self) -> None:
        self._pods = PodsByNode()
        #: The known nodes, and whether each is lost.
        self._lost: dict[str, bool] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the pods of a node that was lost, or a changed pod on such a node."""
        key, new = event.key, None if event.type is _DELETED else event.obj
        if key.kind == scheme.POD:
            self._pods.observe(key, event.old, new)
            return (key,) if new is not None and self._may_be_lost(lifecycle.node_of(new)) else ()
        was_lost = self._lost.pop(key.name, True)
        if new is not None:
            self._lost[key.name] = is_lost(new)
        return self._pods.on(key.name) if not was_lost and self._may_be_lost(key.name) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Fail a pod of a gang whose node is lost; once that is written, delete it."""
        pod = reader.get(key)
        name = "" if pod is None else lifecycle.node_of(pod)
        if pod is None or not name or not _is_of_gang(pod):
            return ReconcileResult()
        node = reader.get(Key(scheme.NODE, "", name))
        if (node is not None and not is_lost(node)) or not _is_left_over(pod):
            return ReconcileResult()
        failed = lifecycle.failed(pod, BY_HOTSWAP, now)
        if failed is not pod and now < (heard := _heard_by(node, pod)):
            return ReconcileResult(requeue_at=heard)
        if failed is pod:
            return ReconcileResult([Delete(key, grace=0, uid=pod["metadata"]["uid"])])
        event = EventRecord(key, "Warning", "NodeLost", f"Node {name} is lost: the pod is removed")
        return ReconcileResult([UpdateStatus(failed)], [event])

    def _may_be_lost(self, node: str) -> bool:
        """Whether a node is lost or unknown."""
        return bool(node) and self._lost.get(node, True)


def _is_of_gang(pod: Obj) -> bool:
    """Whether a pod belongs to a Workload, or to a JobSet without a queue, which also restarts as a whole."""
    return bool(annotation(pod, well_known.WORKLOAD) or label(pod, well_known.JOB_SET_UID))


def is_lost(node: Obj) -> bool:
    """Whether the node's kubelet no longer reports."""
    return nodes.readiness(node) == "Unknown" or nodes.has_taint(node, well_known.UNREACHABLE)


def _heard_by(node: Obj | None, pod: Obj) -> Instant:
    """Return when watch events up to the pod's binding have arrived; the binding itself if the loss came later."""
    placed = lifecycle.scheduled_at(pod)
    return placed if node is not None and placed <= _lost_at(node, placed) else placed + HEARD_WITHIN


def _lost_at(node: Obj, fallback: Instant) -> Instant:
    """Return the time at which the node was lost: its Unknown condition or its taint, whichever is later."""
    ready = find_condition(node, nodes.READY)
    marks = [ready["lastTransitionTime"]] if ready is not None and ready["status"] == "Unknown" else []
    marks += [taint.get("timeAdded") for taint in nodes.taints_of(node) if taint["key"] == well_known.UNREACHABLE]
    return max((parse_time(mark) for mark in marks if mark), default=fallback)


def _is_left_over(pod: Obj) -> bool:
    """Whether a pod still needs to be failed or deleted: it is active, was failed here, or is terminating."""
    if not lifecycle.is_terminal(pod):
        return True
    target = find_condition(pod, lifecycle.DISRUPTION_TARGET)
    is_ours = target is not None and target.get("reason") == BY_HOTSWAP.reason
    return (is_ours or lifecycle.is_terminating(pod)) and not lifecycle.is_gone_but_for_finalizers(pod)


# --- swaps ---
#
# Hotswap, its second half: the reads and writes of a placement pass that frees nodes for a gang.
#
# batchyard.placement.gang_preemption chooses the victims. A Workload is evicted as in Kueue's preemption: its job is
# suspended, its pods stop, and it is requeued.


class HotswapPass:
    """The lookups of one placement pass, cached."""

    def __init__(self, nodes: ClusterSnapshot, held: FollowerReservations, reader: Reader, now: Instant) -> None:
        held.refresh(reader)
        self._held = held
        self._nodes = nodes
        self._reader = reader
        self._now = now
        #: By gang, or by pod uid for pods without one.
        self._occupants: dict[str, EvictionUnit | None] = {}
        self._gangs: dict[str, list[PodView]] = {}

    def claims_of(self, pods: Iterable[PodView]) -> list[PlacementClaim]:
        """Return the claims of pending pods; a leader claims a whole domain for all missing pods of its Job."""
        return [self._claim_of(pod) for pod in pods]

    def hold(self, claims: Sequence[PlacementClaim], seats: Mapping[str, str]) -> None:
        """Reserve room for the followers of the claims' leaders; release it if `seats` is empty."""
        self._held.hold(claims, seats)

    def occupant_of(self, pod: PodView) -> EvictionUnit | None:
        """Return the unit with which a pod is evicted, and its cost; None if it cannot be evicted."""
        key = pod.gang or pod.uid
        if key not in self._occupants:
            self._occupants[key] = self._of_gang(pod) if pod.gang else self._occupant(pod.key, (pod,))
        return self._occupants[key]

    def evict(self, occupant: EvictionUnit, preemptor: PodView, outcome: ReconcileResult) -> Obj | None:
        """Evict the occupant's Workload and return it; None for a pod without one, which the caller deletes."""
        pod = occupant.pods[0]
        self._occupants[pod.gang or pod.uid] = occupant._replace(is_leaving=True)
        victim = self._workload_of(pod) if pod.gang else None
        if victim is None:
            return None
        by = self._workload_of(preemptor) if preemptor.gang else None
        name, uid, job_uid = preemptor.key, preemptor.uid, ""
        if by is not None:
            view = workload_view(by)
            name, uid, job_uid = view.key, view.uid, view.job_uid
        text = message(name, uid, job_uid, occupant)
        evicted = swaps_lifecycle.evict(
            victim, reason=r.EVICTED_BY_PREEMPTION, message=text, now=self._now, preempted=HOTSWAP
        )
        events = _events(key_of(victim), text, pod_key(preemptor) if by is None else key_of(by))
        outcome.add(UpdateStatus(evicted), events)
        return victim

    # --- lookups ---

    def _claim_of(self, pod: PodView) -> PlacementClaim:
        obj = self._reader.get(pod_key(pod)) if well_known.JOB_KEY in pod.labels else None
        topology_key = None if obj is None else annotation(obj, well_known.EXCLUSIVE_TOPOLOGY)
        if obj is None or not topology_key or not is_leader(obj) or annotation(obj, well_known.NODE_SELECTOR_STRATEGY):
            return PlacementClaim((pod,))
        return PlacementClaim((pod, *placeholders(obj, missing_followers(obj, self._reader))), topology_key)

    def _of_gang(self, pod: PodView) -> EvictionUnit | None:
        workload = self._workload_of(pod)
        if workload is None or swaps_lifecycle.is_finished(workload):
            return None
        if not self._gangs:
            for node in self._nodes:
                for other in node.pods.values():
                    self._gangs.setdefault(other.gang, []).append(other)
        pods = self._gangs.get(pod.gang)
        if pods is None:
            return None  # bound in this pass
        return self._occupant(str(key_of(workload)), pods)._replace(is_leaving=swaps_lifecycle.is_evicted(workload))

    def _occupant(self, name: str, pods: Sequence[PodView]) -> EvictionUnit:
        return EvictionUnit(name, pods, sum(map(self._lost_work, pods)))

    def _lost_work(self, pod: PodView) -> Duration:
        obj = self._reader.get(pod_key(pod))
        started = None if obj is None else running_since(obj)
        if obj is None or started is None:
            return 0
        return lost_work(started, checkpoint_interval(self._with_owners(obj)), self._now)

    def _with_owners(self, pod: Obj) -> Iterable[Obj]:
        """Yield a pod, its Job, and the JobSet that owns it."""
        yield pod
        yield from owning_jobs(pod, self._reader.get)

    def _workload_of(self, pod: PodView) -> Obj | None:
        """Return the Workload of a pod of a gang."""
        obj = self._reader.get(pod_key(pod))
        name = None if obj is None else annotation(obj, well_known.WORKLOAD)
        return None if not name else self._reader.get(Key(scheme.WORKLOAD, pod.namespace, name))


def _events(victim: Key, text: str, preemptor: Key) -> list[EventRecord]:
    """Return the Events of the victim and of the preemptor."""
    return [
        EventRecord(victim, "Normal", "EvictedDueToPreempted", text),
        EventRecord(victim, "Normal", "Preempted", text),
        EventRecord(preemptor, "Normal", "PreemptedWorkload", f"Preempted workload {victim}: {text}"),
    ]
