"""Pod garbage collection, and the index of pods by node.

The collector deletes pods on missing nodes, and terminating pods on out-of-service nodes or without a node. Such a pod
is first set to Failed, so that its Job counts it, and then deleted without grace period. A missing node has some time
to appear. If there are too many ended pods, the oldest are deleted. Source: pkg/controller/podgc.

FailureRecovery is the controller of Kueue's feature gate FailureRecoveryPolicy.
"""

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, find_condition, with_path
from batchyard.api.times import parse_time
from batchyard.api.views import pods
from batchyard.api.views.pods import bound_node
from batchyard.base.instant import MINUTE, SECOND, Instant
from batchyard.interfaces.client import Delete, EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.nodes.conditions import has_taint, readiness


class PodsByNode:
    """The keys of pods by node, in the order in which their bindings were observed."""

    __slots__ = ("_by_node",)

    def __init__(self) -> None:
        self._by_node: dict[str, dict[Key, None]] = {}

    def observe(self, key: Key, old: Obj | None, new: Obj | None) -> None:
        """Process a change of a pod; `old` is None for a new pod, `new` is None for a deleted pod."""
        if old is not None and new is not None and new["spec"] is old["spec"]:
            return
        old_node = "" if old is None else bound_node(old)
        new_node = "" if new is None else bound_node(new)
        if old_node == new_node:
            return
        if old_node:
            self._remove_pod_key(old_node, key)
        if new_node:
            self._by_node.setdefault(new_node, {})[key] = None

    def pod_keys_on(self, node: str) -> Sequence[Key]:
        """Return the keys of the pods on a node."""
        return tuple(self._by_node.get(node, ()))

    def _remove_pod_key(self, node: str, key: Key) -> None:
        pods = self._by_node.get(node)
        if pods is None or key not in pods:
            return  # the index may lack a pod that changed before a restart
        del pods[key]
        if not pods:
            del self._by_node[node]


#: How long a node may be missing before its pods are deleted.
MISSING_NODE_GRACE: Final = 40 * SECOND
#: The maximum number of ended pods. Source: kube-controller-manager, --terminated-pod-gc-threshold.
ENDED_PODS_MAX: Final = 12_500

_DELETED: Final = EventType.DELETED  # enum member access is slow


class PodGarbageCollector:
    """Controller that deletes pods that no kubelet can end, and the oldest ended pods if there are too many."""

    name = "pod-garbage-collector"
    rank = 0
    kinds = (scheme.NODE, scheme.POD)

    def __init__(self, ended_pods_max: int = ENDED_PODS_MAX) -> None:
        self._pods = PodsByNode()
        self._ended = EndedPods(ended_pods_max)
        self._nodes: dict[str, None] = {}
        #: By name of a missing node that pods are bound to: since when the node is missing.
        self._missing_since: dict[str, Instant] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the keys of pods to check: terminating, on missing or out-of-service nodes, or surplus ended pods."""
        key, new = event.key, None if event.type is _DELETED else event.obj
        if key.kind == scheme.POD:
            self._pods.observe(key, event.old, new)
            changed_pod_keys = (key,) if new is not None and self._may_be_lost(new, now) else ()
            return (*changed_pod_keys, *self._ended.observe(key, new))
        if new is None:
            self._nodes.pop(key.name, None)
            orphaned_pod_keys = self._pods.pod_keys_on(key.name)
            if orphaned_pod_keys:
                self._missing_since[key.name] = now
            return orphaned_pod_keys
        self._nodes[key.name] = None
        self._missing_since.pop(key.name, None)
        return self._pods.pod_keys_on(key.name) if _is_out_of_service(new) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Fail and delete a pod that no kubelet can end; delete an ended pod that exceeds the limit of ended pods."""
        pod = reader.get(key)
        if pod is None or pods.has_only_finalizers_left(pod):
            return ReconcileResult()
        if self._ended.is_surplus(key):
            return ReconcileResult([Delete(key, grace_period_seconds=0, uid=pod["metadata"]["uid"])])
        name = pods.bound_node(pod)
        node = reader.get(Key(scheme.NODE, "", name)) if name else None
        if name and node is None:
            removal_due_at = self._missing_since.get(name, now) + MISSING_NODE_GRACE
            if removal_due_at <= now:
                return _remove_pod(pod, pods.DISRUPTION_BY_POD_GC, now)
            return ReconcileResult(requeue_at=removal_due_at)
        is_node_gone = node is None or _is_out_of_service(node)
        return _remove_pod(pod, None, now) if is_node_gone and pods.is_terminating(pod) else ReconcileResult()

    def _may_be_lost(self, pod: Obj, now: Instant) -> bool:
        """Return whether a pod may have no kubelet that can end it; record when its node was first missing."""
        name = pods.bound_node(pod)
        if not name or name in self._nodes:
            return pods.is_terminating(pod)
        self._missing_since.setdefault(name, now)
        return True


class EndedPods:
    """The ended pods, and which of them exceed the limit: evicted pods first, then the oldest."""

    def __init__(self, ended_pods_max: int) -> None:
        self._count_max = ended_pods_max
        self._pods: dict[Key, None] = {}
        self._by_age: list[tuple[bool, str, Key]] = []  # a heap, which includes deleted pods
        self._surplus_pods: dict[Key, None] = {}

    def observe(self, key: Key, pod: Obj | None) -> Iterator[Key]:
        """Record a changed or deleted pod; yield the ended pods that exceed the limit from now on.

        The pod is recorded when the result is iterated.
        """
        if pod is None:
            self._pods.pop(key, None)
            self._surplus_pods.pop(key, None)
        elif key not in self._pods and key not in self._surplus_pods and pods.is_terminal(pod):
            self._pods[key] = None
            is_evicted = (pod.get("status") or {}).get("reason") == "Evicted"
            heappush(self._by_age, (not is_evicted, pod["metadata"]["creationTimestamp"], key))
        while len(self._pods) > self._count_max:
            oldest_key = heappop(self._by_age)[2]
            if oldest_key in self._pods:
                del self._pods[oldest_key]
                self._surplus_pods[oldest_key] = None
                yield oldest_key

    def is_surplus(self, key: Key) -> bool:
        """Return whether an ended pod is among those that exceed the limit of ended pods."""
        return key in self._surplus_pods


def _is_out_of_service(node: Obj) -> bool:
    return has_taint(node, well_known.OUT_OF_SERVICE) and readiness(node) != "True"


def _remove_pod(pod: Obj, disruption: pods.Disruption | None, now: Instant) -> ReconcileResult:
    failed_pod = pods.with_failed_phase(pod, disruption, now)
    if failed_pod is not pod:
        return ReconcileResult([UpdateStatus(failed_pod)])
    metadata = pod["metadata"]
    key = Key(scheme.POD, metadata.get("namespace") or "", metadata["name"])
    return ReconcileResult([Delete(key, grace_period_seconds=0, uid=metadata["uid"])])


# Failure recovery: pods that opted in are deleted by force if they cannot stop because their node is unreachable.
#
# Source: pkg/controller/failurerecovery of Kueue.


#: How long after the end of its grace period a terminating pod is deleted by force.
FORCEFUL_TERMINATION_GRACE: Final = MINUTE
_FAILURE_RECOVERY: Final = "KueueFailureRecovery"
_FORCEFULLY_DELETED: Final = "KueueForcefullyDeleted"


class FailureRecovery:
    """Controller that fails and deletes terminating pods with the opt-in annotation on unreachable nodes."""

    name = "failure-recovery"
    rank = 0
    kinds = (scheme.NODE, scheme.POD)

    def __init__(self) -> None:
        self._pods = PodsByNode()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of a pod that may now be deleted by force, or those of all pods of a node that got lost."""
        key, old, new = event.key, event.old, None if event.type is _DELETED else event.obj
        if key.kind == scheme.POD:
            self._pods.observe(key, old, new)
            is_new = new is not None and _may_be_forced(new) and (old is None or not _may_be_forced(old))
            return (key,) if is_new else ()
        was_lost = old is not None and has_taint(old, well_known.UNREACHABLE)
        is_lost = new is not None and has_taint(new, well_known.UNREACHABLE)
        return self._pods.pod_keys_on(key.name) if is_lost and not was_lost else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Fail and delete a terminating pod whose grace period ended a minute ago, if its node is unreachable."""
        pod = reader.get(key)
        if pod is None or not _may_be_forced(pod):
            return ReconcileResult()
        due_at = parse_time(pod["metadata"]["deletionTimestamp"]) + FORCEFUL_TERMINATION_GRACE
        if now < due_at:
            return ReconcileResult(requeue_at=due_at)
        node = reader.get(Key(scheme.NODE, "", bound_node(pod)))
        if node is None or not has_taint(node, well_known.UNREACHABLE):
            return ReconcileResult()
        message = _forced_termination_message(pod)
        delete = Delete(key, grace_period_seconds=0, uid=pod["metadata"]["uid"])
        if find_condition(pod, _FAILURE_RECOVERY) is not None:  # the status was written, but the deletion failed
            return ReconcileResult([] if pods.has_only_finalizers_left(pod) else [delete])
        event = EventRecord(key, "Warning", _FORCEFULLY_DELETED, message)
        return ReconcileResult([UpdateStatus(_with_recovery_condition(pod, message)), delete], [event])


def _may_be_forced(pod: Obj) -> bool:
    return pods.is_terminating(pod) and annotation(pod, well_known.SAFE_TO_FORCEFULLY_DELETE) == "true"


def _with_recovery_condition(pod: Obj, message: str) -> Obj:
    condition = {"type": _FAILURE_RECOVERY, "status": "True", "reason": _FORCEFULLY_DELETED, "message": message}
    status = pod.get("status") or {}
    failed_pod = with_path(pod, ("status", "conditions"), [*(status.get("conditions") or ()), condition])
    return failed_pod if pods.is_terminal(pod) else with_path(failed_pod, ("status", "phase"), "Failed")


def _forced_termination_message(pod: Obj) -> str:
    """Return Kueue's message; Kueue counts the grace period of the pod in nanoseconds, as Go formats durations."""
    nanoseconds = f"{pod['metadata'].get('deletionGracePeriodSeconds') or 0:09d}".rstrip("0")
    grace = f"1m0.{nanoseconds}s" if nanoseconds else "1m0s"
    annotation_name = well_known.SAFE_TO_FORCEFULLY_DELETE
    return (
        f"Pod forcefully terminated after {grace} grace period due to unreachable node `{bound_node(pod)}` "
        f"(triggered by `{annotation_name}` annotation)"
    )
