"""ReplicaSet controller: creates and deletes pods until the desired number of pods is active, and reports their counts.

ReplicationControllers have the same controller. Sources: pkg/controller/{replicaset,replication} of Kubernetes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cmp_to_key, partial
from math import log2
from typing import Any, Final

from batchyard.api import meta, scheme
from batchyard.api.errors import ApiError, NamespaceTerminating
from batchyard.api.views.pods import PENDING, RUNNING, bound_node, is_ready, is_terminal, is_terminating, phase
from batchyard.apps import children
from batchyard.apps.children import BURST_REPLICAS, ChildIndex
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Create, Delete, EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult

_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
_PHASE_RANKS: Final[Mapping[str, int]] = {PENDING: 0, "Unknown": 1, RUNNING: 2}
_REPLICA_FAILURE: Final = "ReplicaFailure"


class ReplicaSetController:
    """Controller that reconciles ReplicaSets, or ReplicationControllers, with their pods."""

    rank = 0

    def __init__(self, kind: str = scheme.REPLICA_SET) -> None:
        self.name = "replicaset-controller" if kind == scheme.REPLICA_SET else "replicationcontroller-controller"
        self.kinds = (kind, scheme.POD)
        self._pods = ChildIndex(kind, scheme.POD)
        #: The error of the last rejected creation or deletion of a pod, by ReplicaSet.
        self._errors: dict[meta.Key, str] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[meta.Key]:
        """Return the key of a changed ReplicaSet, or of the ReplicaSets that control or may adopt a changed pod."""
        if event.key.kind == scheme.POD:
            return self._pods.observe_child(event)
        self._pods.observe_parent(event)
        if event.type is EventType.DELETED:
            self._errors.pop(event.key, None)
        return (event.key,)

    def reconcile(self, key: meta.Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Adopt and release pods, then create or delete pods, and update the status of the ReplicaSet."""
        replica_set = reader.get(key)
        if replica_set is None:
            return ReconcileResult()
        claim = self._pods.claim(replica_set, reader)
        if claim.writes:
            return ReconcileResult(list(claim.writes), independent=True)
        active_pods = [pod for pod in claim.children if children.is_active(pod)]
        error = self._errors.get(key)
        outcome = ReconcileResult(independent=True)
        if "deletionTimestamp" not in replica_set["metadata"]:
            self._change_pods(outcome, replica_set, active_pods, reader, now)
        status = new_status(replica_set, claim.children, error, now)
        if status != replica_set.get("status"):
            outcome.writes.append(UpdateStatus(meta.with_status(replica_set, status)))
        outcome.requeue_at = children.next_availability(active_pods, _min_ready_seconds(replica_set), now)
        return outcome

    def _change_pods(
        self,
        outcome: ReconcileResult,
        replica_set: meta.Obj,
        active_pods: Sequence[meta.Obj],
        reader: Reader,
        now: Instant,
    ) -> None:
        key, missing_count = meta.key_of(replica_set), children.replicas_of(replica_set) - len(active_pods)
        if missing_count == 0:
            self._errors.pop(key, None)
            return
        if missing_count > 0:
            # After a rejected creation, one creation tests whether the reason still exists.
            pod_count = 1 if key in self._errors else min(missing_count, BURST_REPLICAS)
            template = replica_set["spec"].get("template") or {}
            new_pods = [children.pod_from_template(replica_set, template)] * pod_count
            for pod in children.with_generated_names(new_pods, replica_set, reader, now):
                outcome.add(Create(pod), [children.pod_event(key, "Create", pod)])
        else:
            related_pods = related_active_pods(replica_set, reader)
            excess_count = min(-missing_count, BURST_REPLICAS)
            for pod in pods_to_delete(active_pods, related_pods, excess_count, now):
                deletion_event = children.pod_event(key, "Delete", pod)
                outcome.add(Delete(meta.key_of(pod), uid=pod["metadata"]["uid"]), [deletion_event])
        outcome.on_result = partial(self._record_result, key)
        outcome.event_if_rejected = partial(_rejection_event, key)

    def _record_result(self, key: meta.Key, write: Write, error: ApiError | None) -> bool:
        if isinstance(write, Create | Delete):
            if error is None:
                return self._errors.pop(key, None) is not None
            if not isinstance(error, NamespaceTerminating):
                self._errors[key] = str(error)
        return False


def _rejection_event(key: meta.Key, write: Write, error: ApiError) -> EventRecord | None:
    if not isinstance(write, Create | Delete):
        return None
    return children.failed_pod_event(key, is_creation=isinstance(write, Create), error=error)


def _min_ready_seconds(replica_set: meta.Obj) -> int:
    return replica_set["spec"].get("minReadySeconds") or 0


def new_status(replica_set: meta.Obj, pods: Sequence[meta.Obj], error: str | None, now: Instant) -> Mapping[str, Any]:
    """Return the status of a ReplicaSet with these pods; `error` is that of the last rejected write of a pod."""
    old_status, active_pods = replica_set.get("status") or {}, [pod for pod in pods if children.is_active(pod)]
    template_labels = ((replica_set["spec"].get("template") or {}).get("metadata") or {}).get("labels") or {}
    min_ready_seconds = _min_ready_seconds(replica_set)
    status: dict[str, Any] = {
        "replicas": len(active_pods),
        "fullyLabeledReplicas": sum(
            template_labels.items() <= (p["metadata"].get("labels") or {}).items() for p in active_pods
        ),
        "readyReplicas": sum(map(is_ready, active_pods)),
        "availableReplicas": sum(children.is_available(pod, min_ready_seconds, now) for pod in active_pods),
        "terminatingReplicas": sum(is_terminating(pod) and not is_terminal(pod) for pod in pods),
        "observedGeneration": replica_set["metadata"].get("generation", 0),
    }
    optional_fields = ("fullyLabeledReplicas", "readyReplicas", "availableReplicas")
    status = {field: value for field, value in status.items() if value or field not in optional_fields}
    if replica_set["kind"] == "ReplicationController":
        del status["terminatingReplicas"]  # it has no such field
    conditions = _conditions(replica_set, len(active_pods), error, now)
    kept_fields = {field: value for field, value in old_status.items() if field not in _COMPUTED_FIELDS}
    return {**kept_fields, **status, **({"conditions": conditions} if conditions else {})}


_COMPUTED_FIELDS: Final = frozenset(
    {
        *("replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "terminatingReplicas"),
        *("observedGeneration", "conditions"),
    }
)


def _conditions(replica_set: meta.Obj, active_count: int, error: str | None, now: Instant) -> Sequence[meta.Condition]:
    conditions: Sequence[meta.Condition] = (replica_set.get("status") or {}).get("conditions") or []
    excess_count = active_count - children.replicas_of(replica_set)
    if error is None:
        return children.without_condition(conditions, _REPLICA_FAILURE)
    if meta.find_condition({"conditions": conditions}, _REPLICA_FAILURE) is not None or not excess_count:
        return conditions
    reason = "FailedCreate" if excess_count < 0 else "FailedDelete"
    return [*conditions, children.status_condition(_REPLICA_FAILURE, "True", reason, error, now)]


# The order in which a scaled-down ReplicaSet deletes its pods.


def related_active_pods(replica_set: meta.Obj, reader: Reader) -> Sequence[meta.Obj]:
    """Return the active pods of all ReplicaSets with the same controller, or of this ReplicaSet if it has none."""
    owner, namespace = meta.controller_of(replica_set), replica_set["metadata"].get("namespace", "")
    siblings = [replica_set] if owner is None else reader.owned_by(owner["uid"], namespace)
    return [
        pod
        for sibling in siblings
        if meta.group_kind(sibling) == meta.group_kind(replica_set)
        for pod in reader.owned_by(sibling["metadata"]["uid"], namespace)
        if meta.group_kind(pod) == scheme.POD and children.is_active(pod)
    ]


def pods_to_delete(
    active_pods: Sequence[meta.Obj], related_pods: Iterable[meta.Obj], delete_count: int, now: Instant
) -> Sequence[meta.Obj]:
    """Return the pods that a ReplicaSet deletes first.

    Pods come first if they are unassigned, pending, not ready, cheap to delete (annotation
    `controller.kubernetes.io/pod-deletion-cost`), on a node with many related pods, ready for a shorter time, restarted
    more often, or newer, in this order. Times count by their order of magnitude.
    """
    if delete_count >= len(active_pods):
        return active_pods
    counts_by_node = Counter(bound_node(pod) for pod in related_pods)
    compare = partial(_compare_pods, counts_by_node, now)
    return sorted(active_pods, key=cmp_to_key(compare))[:delete_count]


def _compare_pods(counts_by_node: Mapping[str, int], now: Instant, first: meta.Obj, second: meta.Obj) -> int:
    first_keys, second_keys = _deletion_keys(first, counts_by_node), _deletion_keys(second, counts_by_node)
    if first_keys != second_keys:
        return -1 if first_keys < second_keys else 1
    if is_ready(first):
        order = _compare_ages(children.ready_since(first) or 0, children.ready_since(second) or 0, now)
        if order is not None:
            return order or _compare_uids(first, second)
    restart_order = _restart_count(second) - _restart_count(first)
    if restart_order:
        return restart_order
    order = _compare_ages(children.creation_time(first), children.creation_time(second), now)
    return 0 if order is None else order or _compare_uids(first, second)


def _deletion_keys(pod: meta.Obj, counts_by_node: Mapping[str, int]) -> tuple[int, ...]:
    node = bound_node(pod)
    cost = meta.parse_integer(meta.annotation(pod, _DELETION_COST) or "0", bits=32) or 0
    return (bool(node), _PHASE_RANKS.get(phase(pod), 0), is_ready(pod), cost, -counts_by_node.get(node, 0))


def _compare_ages(first: Instant, second: Instant, now: Instant) -> int | None:
    """Compare two times by the binary order of magnitude of their ages; None if the times are equal."""
    return None if first == second else _age_magnitude(first, now) - _age_magnitude(second, now)


def _age_magnitude(at: Instant, now: Instant) -> int:
    age_nanoseconds = (now - at) * 1000
    return int(log2(age_nanoseconds)) if age_nanoseconds > 0 else -1


def _compare_uids(first: meta.Obj, second: meta.Obj) -> int:
    return -1 if first["metadata"]["uid"] < second["metadata"]["uid"] else 1


def _restart_count(pod: meta.Obj) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return max((status.get("restartCount") or 0 for status in statuses), default=0)
