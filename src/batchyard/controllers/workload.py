"""The lifecycle of Workloads: what happens to them because of their spec, their queues and time alone.

Deactivation, the limit of execution time, stopped queues and their restart, gates, orphans, and why a Workload waits
that the scheduler need not be asked about. One step per reconcile: its write brings the Workload back for the next.
Source: pkg/controller/core/workload_controller.go of Kueue, less queueing and admission checks.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.conditions import find_condition, is_true
from batchyard.api.meta import Key, Obj, annotation, label, with_metadata, with_path
from batchyard.api.times import parse_time
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import SECOND, Instant, seconds
from batchyard.controllers.workload_index import QueueIndex
from batchyard.core.lifecycle import reasons as r
from batchyard.core.lifecycle import waiting
from batchyard.core.lifecycle import workload as lifecycle
from batchyard.core.lifecycle.waiting import Queues
from batchyard.core.reasons import PENDING_EVALUATION
from batchyard.ports.client import EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.ports.controller import EventRecord, Outcome

_NO_STATUS: Final[Obj] = {}


class WorkloadLifecycle:
    """Keeps the conditions of every Workload true to its spec, its queues and the time."""

    name = "workload"
    rank = 0
    kinds = (scheme.WORKLOAD, scheme.LOCAL_QUEUE, scheme.CLUSTER_QUEUE)

    def __init__(self) -> None:
        self._index = QueueIndex()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """A Workload that may need a step; all Workloads of a queue that opened, closed, came or went."""
        kind = event.key.kind
        if kind == scheme.WORKLOAD:
            self._index.note_workload(event)
            looks = event.type is not EventType.DELETED and _needs_look(event.obj, self._index)
            return (event.key,) if looks else ()
        if kind == scheme.LOCAL_QUEUE:
            return self._index.note_local_queue(event)
        if kind == scheme.CLUSTER_QUEUE:
            return self._index.note_cluster_queue(event)
        return ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Take the first step that is due."""
        workload = reader.get(key)
        if workload is None:
            return Outcome()
        if lifecycle.is_finished(workload) or _is_orphan(workload):
            return _end(workload, now)
        step = _activity_step(key, workload, now)
        if step is not None:
            return step
        look = _Look(key, workload, _queues_of(workload, reader), now)
        return next((outcome for step in _QUEUE_STEPS if (outcome := step(look)) is not None), Outcome())


class _Look(NamedTuple):
    """A Workload with the queues it is in, at an instant."""

    key: Key
    workload: Obj
    queues: Queues
    now: Instant


def _needs_look(workload: Obj, index: QueueIndex) -> bool:
    """Whether a step may be due. Most changes are the scheduler's, and need none."""
    view, status = workload_view(workload), workload.get("status") or _NO_STATUS
    if view.finished:
        return "finalizers" in workload["metadata"] and _is_orphan(workload)
    if (
        not view.active
        or "requeueState" in status
        or view.deactivation_target
        or view.requeue_blocked
        or lifecycle.has_admission_gate(workload)
        or _is_orphan(workload)
    ):
        return True
    if view.quota_reserved:
        steady = view.admitted and "maximumExecutionTimeSeconds" not in workload["spec"]
        return not steady or not index.is_open(view)
    verdict = view.waits_for is None or view.waits_for in waiting.VERDICTS
    return not verdict or not index.is_open(view, to_all=True)


def _is_orphan(workload: Obj) -> bool:
    """Its job is gone: it has no owner any more, though it had one, or it is being deleted."""
    metadata = workload["metadata"]
    if metadata.get("ownerReferences"):
        return False
    return "deletionTimestamp" in metadata or bool(label(workload, well_known.JOB_UID))


def _queues_of(workload: Obj, reader: Reader) -> Queues:
    namespace = workload["metadata"].get("namespace", "")
    local_queue = reader.get(Key(scheme.LOCAL_QUEUE, namespace, workload["spec"].get("queueName", "")))
    if local_queue is None:
        return Queues(None, None)
    cluster_queue = reader.get(Key(scheme.CLUSTER_QUEUE, "", local_queue["spec"].get("clusterQueue", "")))
    return Queues(local_queue, cluster_queue, reader.get(Key(scheme.NAMESPACE, "", namespace)))


# --- steps that need no queue ---


def _end(workload: Obj, now: Instant) -> Outcome:
    """Finish an orphan, so that its quota is free; then let it go."""
    metadata = workload["metadata"]
    if not _is_orphan(workload):
        return Outcome()
    if "deletionTimestamp" not in metadata and not lifecycle.is_finished(workload):
        message = "The workload's owner no longer exists"
        return _write(UpdateStatus(lifecycle.finish(workload, r.OWNER_NOT_FOUND, message, now)))
    finalizers = metadata.get("finalizers") or ()
    if well_known.RESOURCE_IN_USE not in finalizers:
        return Outcome()
    kept = [name for name in finalizers if name != well_known.RESOURCE_IN_USE]
    return _write(Update(with_metadata(workload, finalizers=kept or None)))


def _activity_step(key: Key, workload: Obj, now: Instant) -> Outcome | None:
    """Deactivation, reactivation, and the wait after an eviction."""
    if not lifecycle.is_active(workload):
        return _deactivate(key, workload, now)
    if is_true(workload, r.DEACTIVATION_TARGET):
        return _write(Update(with_path(workload, ("spec", "active"), False)))
    return _backoff_step(workload, now) or _requeue_step(workload, now)


def _deactivate(key: Key, workload: Obj, now: Instant) -> Outcome | None:
    deactivated = lifecycle.deactivate(workload, now)
    if deactivated is workload:
        return None
    outcome = _write(UpdateStatus(deactivated))
    if not lifecycle.is_evicted(workload) and "admission" in (workload.get("status") or ()):
        outcome.events.append(_evicted_event(key, lifecycle.deactivation(workload)))
    return outcome


def _backoff_step(workload: Obj, now: Instant) -> Outcome | None:
    requeue_at = ((workload.get("status") or {}).get("requeueState") or {}).get("requeueAt")
    if requeue_at is None:
        return None
    due = parse_time(requeue_at)
    if due > now:
        return Outcome(requeue_at=due)
    if lifecycle.status(workload) is not lifecycle.Status.PENDING:
        return None
    return _write(UpdateStatus(lifecycle.clear_requeue_at(workload)))


def _requeue_step(workload: Obj, now: Instant) -> Outcome | None:
    match _held_back_by(workload):
        case r.DEACTIVATED:
            message = "The workload was reactivated"
            return _write(UpdateStatus(lifecycle.set_requeued(workload, r.REACTIVATED, message, now)))
        case r.EVICTED_BY_PODS_READY_TIMEOUT | r.EVICTED_BY_ADMISSION_CHECK:
            return _write(UpdateStatus(lifecycle.finish_backoff(workload, now)))
        case _:
            return None


def _held_back_by(workload: Obj) -> str | None:
    """The reason of Requeued=False."""
    requeued = find_condition(workload, r.REQUEUED)
    return requeued["reason"] if requeued is not None and requeued["status"] == "False" else None


# --- steps that look at the queues ---


def _local_queue_restart(look: _Look) -> Outcome | None:
    local_queue = look.queues.local_queue
    if _held_back_by(look.workload) != r.EVICTED_BY_LOCAL_QUEUE_STOPPED or not _is_open(local_queue):
        return None
    return _requeue(look, r.LOCAL_QUEUE_RESTARTED, "The LocalQueue was restarted after being stopped")


def _gate(look: _Look) -> Outcome | None:
    """An admission gate appeared or went away."""
    key, workload, now = look.key, look.workload, look.now
    reserved = find_condition(workload, r.QUOTA_RESERVED)
    said = reserved is not None and reserved["reason"] == r.ADMISSION_GATED
    if lifecycle.has_admission_gate(workload) == said:
        return None
    if said:
        message = "AdmissionGatedBy cleared, waiting for quota reservation"
        return _write(
            UpdateStatus(lifecycle.set_pending(workload, PENDING_EVALUATION, message, now)),
            EventRecord(key, "Normal", "AdmissionGateCleared", "Admission gate cleared, workload is now admissible"),
        )
    gate = annotation(workload, well_known.ADMISSION_GATED_BY)
    return _write(
        UpdateStatus(lifecycle.set_pending(workload, *waiting.gated(workload), now)),
        EventRecord(key, "Normal", "AdmissionGated", f"Workload admission is gated by: {gate}"),
    )


def _cluster_queue_restart(look: _Look) -> Outcome | None:
    cluster_queue = look.queues.cluster_queue
    if _held_back_by(look.workload) != r.EVICTED_BY_CLUSTER_QUEUE_STOPPED or not _is_open(cluster_queue):
        return None
    return _requeue(look, r.CLUSTER_QUEUE_RESTARTED, "The ClusterQueue was restarted after being stopped")


def _is_open(queue: Obj | None) -> bool:
    return queue is not None and waiting.stop_policy(queue) == "None"


def _requeue(look: _Look, reason: str, message: str) -> Outcome:
    return _write(UpdateStatus(lifecycle.set_requeued(look.workload, reason, message, look.now)))


def _conditions(look: _Look) -> Outcome | None:
    """Say why one without quota waits; admit one with quota whose checks have all become ready."""
    workload, now = look.workload, look.now
    if lifecycle.is_admitted(workload):
        return None
    new = workload
    if not lifecycle.has_quota_reservation(workload):
        why = waiting.why_waiting(workload, look.queues)
        if why is not None:
            new = lifecycle.set_pending(workload, *why, now)
    new = lifecycle.sync_admitted(new, now)
    if new is workload:
        return None
    events = [_admitted_event(look.key, new, now)] if lifecycle.is_admitted(new) else []
    return _write(UpdateStatus(new), *events)


def _local_queue_stop(look: _Look) -> Outcome | None:
    return _drain(look, look.queues.local_queue, "LocalQueue")


def _reservation(look: _Look) -> Outcome | None:
    """One that holds quota but is not admitted yet gives it back when a queue of it closes."""
    workload = look.workload
    if lifecycle.is_admitted(workload) or not lifecycle.has_quota_reservation(workload):
        return None
    blocker = waiting.reservation_blocker(workload, look.queues)
    return None if blocker is None else _write(UpdateStatus(lifecycle.set_pending(workload, *blocker, look.now)))


def _cluster_queue_stop(look: _Look) -> Outcome | None:
    return _drain(look, look.queues.cluster_queue, "ClusterQueue")


def _drain(look: _Look, queue: Obj | None, kind: str) -> Outcome | None:
    if waiting.stop_policy(queue) != "HoldAndDrain":
        return None
    if not lifecycle.is_admitted(look.workload) or lifecycle.is_evicted(look.workload):
        return None
    eviction = lifecycle.Eviction(f"{kind}Stopped", f"The {kind} is stopped")
    evicted = lifecycle.evict(look.workload, reason=eviction.reason, message=eviction.message, now=look.now)
    return _write(UpdateStatus(evicted), _evicted_event(look.key, eviction))


def _execution_time(look: _Look) -> Outcome | None:
    """One that ran longer than it may, earlier runs included, is to be deactivated. One that stops already is not."""
    workload = look.workload
    limit = workload["spec"].get("maximumExecutionTimeSeconds")
    admitted = find_condition(workload, r.ADMITTED)
    if limit is None or admitted is None or admitted["status"] != "True" or lifecycle.is_evicted(workload):
        return None
    past = workload["status"].get("accumulatedPastExecutionTimeSeconds", 0)
    due = parse_time(admitted["lastTransitionTime"]) + (limit - past) * SECOND
    if due > look.now:
        return Outcome(requeue_at=due)
    message = f"The maximum execution time ({limit}s) exceeded"
    return _write(
        UpdateStatus(lifecycle.exceed_execution_time(workload, look.now)),
        EventRecord(look.key, "Warning", r.MAXIMUM_EXECUTION_TIME_EXCEEDED, message),
    )


#: In the order in which they are due.
_QUEUE_STEPS: Final[tuple[Callable[[_Look], Outcome | None], ...]] = (
    _local_queue_restart,
    _gate,
    _cluster_queue_restart,
    _conditions,
    _local_queue_stop,
    _reservation,
    _cluster_queue_stop,
    _execution_time,
)


def _write(write: Write, *events: EventRecord) -> Outcome:
    return Outcome([write], list(events))


def _evicted_event(key: Key, eviction: lifecycle.Eviction) -> EventRecord:
    return EventRecord(key, "Normal", eviction.event_reason, eviction.message)


def _admitted_event(key: Key, workload: Obj, now: Instant) -> EventRecord:
    reserved = find_condition(workload, r.QUOTA_RESERVED)
    assert reserved is not None
    waited = round(seconds(now - parse_time(reserved["lastTransitionTime"])))
    cluster_queue = workload["status"]["admission"]["clusterQueue"]
    message = f"Admitted by ClusterQueue {cluster_queue}, wait time since reservation was {waited}s"
    return EventRecord(key, "Normal", "Admitted", message)
