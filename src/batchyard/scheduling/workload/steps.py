"""Workload reconcile steps, in the order in which they are checked.

They cover deactivation, admission checks, backoff after an eviction, stopped and restarted queues, gates, pending
reasons that do not depend on the scheduler, and time limits. Each step returns None if nothing is due, or its outcome.
Source: pkg/controller/core/workload_controller.go of Kueue. Three upstream defects are fixed:

- A Workload with a check in Retry releases its quota at once, as documented there and in KEP-3258, not at the retry
  time.
- The retry count of a flavor's check is kept until the next try.
- A Workload deactivated for a cause, as after its last try, is queued again when a user activates it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.conditions import find_condition, is_true
from batchyard.api.meta import Key, Obj, annotation, with_path
from batchyard.api.times import parse_time
from batchyard.api.views.queues import cluster_queue_view
from batchyard.base.instant import SECOND, Instant, seconds
from batchyard.interfaces.client import Update, UpdateStatus, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.scheduling.messages import PENDING_EVALUATION
from batchyard.scheduling.workload import checks, lifecycle, pending_reason, pods_ready
from batchyard.scheduling.workload import lifecycle as r
from batchyard.scheduling.workload.pending_reason import WorkloadQueues
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy

_NO_STATUS: Final[Obj] = {}


class WorkloadPass(NamedTuple):
    """A Workload with its queues, at an instant."""

    key: Key
    workload: Obj
    queues: WorkloadQueues
    now: Instant
    policy: PodsReadyPolicy | None


def first_step(look: WorkloadPass) -> ReconcileResult:
    """Return the outcome of the first step that is due."""
    return next((outcome for step in _STEPS if (outcome := step(look)) is not None), ReconcileResult())


# --- activity, checks and backoff ---


def _activity(look: WorkloadPass) -> ReconcileResult | None:
    """Evict an inactive Workload, or deactivate a Workload with a deactivation target."""
    workload = look.workload
    if not lifecycle.is_active(workload):
        return _deactivate(look)
    if is_true(workload, r.DEACTIVATION_TARGET):
        return _write(Update(with_path(workload, ("spec", "active"), False)))
    return None


def _deactivate(look: WorkloadPass) -> ReconcileResult | None:
    workload = look.workload
    deactivated = lifecycle.deactivate(workload, look.now)
    if deactivated is workload:
        return None
    outcome = _write(UpdateStatus(deactivated))
    if not lifecycle.is_evicted(workload) and "admission" in (workload.get("status") or ()):
        outcome.events.append(_evicted_event(look.key, lifecycle.deactivation(workload)))
    return outcome


def _sync_checks(look: WorkloadPass) -> ReconcileResult | None:
    """Set its checks to those that its ClusterQueue requires."""
    queue = look.queues.cluster_queue
    if queue is None or not (checks.checks_of(look.workload) or queue["spec"].get("admissionChecksStrategy")):
        return None
    admission, view = (look.workload.get("status") or _NO_STATUS).get("admission"), cluster_queue_view(queue)
    required = checks.required_checks(view, admission)
    if admission is None:
        required = sorted({*required, *checks.retried_checks(look.workload, view)})
    synced = checks.with_checks(look.workload, required, look.now)
    return None if synced is look.workload else _write(UpdateStatus(synced))


def _failed_checks(look: WorkloadPass) -> ReconcileResult | None:
    """Evict a Workload with a check in Retry until its retry time; deactivate one with a rejected check."""
    workload, now = look.workload, look.now
    if not lifecycle.is_active(workload):
        return None
    retry_at = checks.retry_at(workload)
    held = workload if retry_at is None or retry_at <= now else lifecycle.hold_back(workload, retry_at, counts=False)
    if lifecycle.has_quota_reservation(workload) and not lifecycle.is_evicted(workload):
        if rejected := checks.in_state(workload, checks.REJECTED):
            return _reject(look, checks.describe_checks(rejected, checks.REJECTED))
        if retrying := checks.in_state(workload, checks.RETRY):
            message = f"Evicted due to {checks.describe_checks(retrying, checks.RETRY)}"
            return _evict(look, held, lifecycle.Eviction(r.EVICTED_BY_ADMISSION_CHECK, message))
    return None if held is workload else _write(UpdateStatus(held))


def _reject(look: WorkloadPass, message: str) -> ReconcileResult:
    workload = lifecycle.target_deactivation(look.workload, r.EVICTED_BY_ADMISSION_CHECK, message, look.now)
    event = EventRecord(look.key, "Warning", "AdmissionCheckRejected", f"Deactivated due to {message}")
    return _write(UpdateStatus(workload), event)


def _waiting(look: WorkloadPass) -> ReconcileResult | None:
    """Wait for the end of a backoff; then set Requeued to True."""
    if not lifecycle.is_active(look.workload):
        return None
    return _backoff(look) or _after_backoff(look)


def _backoff(look: WorkloadPass) -> ReconcileResult | None:
    workload = look.workload
    requeue_at = ((workload.get("status") or {}).get("requeueState") or {}).get("requeueAt")
    if requeue_at is None:
        return None
    due = parse_time(requeue_at)
    if due > look.now:
        return ReconcileResult(requeue_at=due)
    if lifecycle.status(workload) is not lifecycle.Status.PENDING:
        return None
    return _write(UpdateStatus(lifecycle.clear_requeue_at(workload)))


def _after_backoff(look: WorkloadPass) -> ReconcileResult | None:
    workload, now = look.workload, look.now
    match _held_back_by(workload):
        case str(reason) if reason.startswith(r.DEACTIVATED):
            # Any cause counts: Kueue at ff69552e matches only the bare reason, and leaves the others pending forever.
            message = "The workload was reactivated"
            return _write(UpdateStatus(lifecycle.set_requeued(workload, r.REACTIVATED, message, now)))
        case r.EVICTED_BY_PODS_READY_TIMEOUT | r.EVICTED_BY_ADMISSION_CHECK:
            return _write(UpdateStatus(lifecycle.finish_backoff(workload, now)))
        case _:
            return None


def _held_back_by(workload: Obj) -> str | None:
    """Return the reason of Requeued=False."""
    requeued = find_condition(workload, r.REQUEUED)
    return requeued["reason"] if requeued is not None and requeued["status"] == "False" else None


# --- queues and gates ---


def _local_queue_restart(look: WorkloadPass) -> ReconcileResult | None:
    local_queue = look.queues.local_queue
    if _held_back_by(look.workload) != r.EVICTED_BY_LOCAL_QUEUE_STOPPED or not _is_open(local_queue):
        return None
    return _requeue(look, r.LOCAL_QUEUE_RESTARTED, "The LocalQueue was restarted after being stopped")


def _gate(look: WorkloadPass) -> ReconcileResult | None:
    """Update the condition if an admission gate was added or removed."""
    key, workload, now = look.key, look.workload, look.now
    reserved = find_condition(workload, r.QUOTA_RESERVED)
    is_gated = reserved is not None and reserved["reason"] == r.ADMISSION_GATED
    if lifecycle.has_admission_gate(workload) == is_gated:
        return None
    if is_gated:
        message = "AdmissionGatedBy cleared, waiting for quota reservation"
        return _write(
            UpdateStatus(lifecycle.set_pending(workload, PENDING_EVALUATION, message, now)),
            EventRecord(key, "Normal", "AdmissionGateCleared", "Admission gate cleared, workload is now admissible"),
        )
    gate = annotation(workload, well_known.ADMISSION_GATED_BY)
    return _write(
        UpdateStatus(lifecycle.set_pending(workload, *pending_reason.gated(workload), now)),
        EventRecord(key, "Normal", "AdmissionGated", f"Workload admission is gated by: {gate}"),
    )


def _cluster_queue_restart(look: WorkloadPass) -> ReconcileResult | None:
    if _held_back_by(look.workload) != r.EVICTED_BY_CLUSTER_QUEUE_STOPPED:
        return None
    if not _is_open(look.queues.local_queue) or not _is_open(look.queues.cluster_queue):
        return None  # upstream does not look up the ClusterQueue of a stopped LocalQueue
    return _requeue(look, r.CLUSTER_QUEUE_RESTARTED, "The ClusterQueue was restarted after being stopped")


def _is_open(queue: Obj | None) -> bool:
    return queue is not None and pending_reason.stop_policy(queue) == "None"


def _requeue(look: WorkloadPass, reason: str, message: str) -> ReconcileResult:
    return _write(UpdateStatus(lifecycle.set_requeued(look.workload, reason, message, look.now)))


def _conditions(look: WorkloadPass) -> ReconcileResult | None:
    """Set the pending reason of a Workload without quota; admit one with quota whose checks are all Ready."""
    workload, now = look.workload, look.now
    if lifecycle.is_admitted(workload):
        return None
    new = workload
    if not lifecycle.has_quota_reservation(workload):
        why = pending_reason.reason_for_pending(workload, look.queues)
        if why is not None:
            new = lifecycle.set_pending(workload, *why, now)
        new = lifecycle.without_stale_admission(new)
    new = lifecycle.sync_admitted(new, now)
    if new is workload:
        return None
    events = [_admitted_event(look.key, new, now)] if lifecycle.is_admitted(new) else []
    return _write(UpdateStatus(new), *events)


def _local_queue_stop(look: WorkloadPass) -> ReconcileResult | None:
    return _drain(look, look.queues.local_queue, "LocalQueue")


def _reservation(look: WorkloadPass) -> ReconcileResult | None:
    """Release the quota of a Workload that is not admitted yet when one of its queues closes."""
    workload = look.workload
    if lifecycle.is_admitted(workload) or not lifecycle.has_quota_reservation(workload):
        return None
    blocker = pending_reason.reservation_blocker(workload, look.queues)
    return None if blocker is None else _write(UpdateStatus(lifecycle.set_pending(workload, *blocker, look.now)))


def _cluster_queue_stop(look: WorkloadPass) -> ReconcileResult | None:
    return _drain(look, look.queues.cluster_queue, "ClusterQueue")


def _drain(look: WorkloadPass, queue: Obj | None, kind: str) -> ReconcileResult | None:
    if pending_reason.stop_policy(queue) != "HoldAndDrain":
        return None
    if not lifecycle.is_admitted(look.workload) or lifecycle.is_evicted(look.workload):
        return None
    return _evict(look, look.workload, lifecycle.Eviction(f"{kind}Stopped", f"The {kind} is stopped"))


# --- time limits ---


def _deadlines(look: WorkloadPass) -> ReconcileResult | None:
    """Apply the PodsReady timeout and the maximum execution time."""
    waits = []
    for limit in (_ready_in_time, _execution_time):
        outcome = limit(look)
        if outcome is not None and outcome.writes:
            return outcome
        if outcome is not None and outcome.requeue_at is not None:
            waits.append(outcome.requeue_at)
    return ReconcileResult(requeue_at=min(waits)) if waits else None


def _ready_in_time(look: WorkloadPass) -> ReconcileResult | None:
    """Evict Workloads over the PodsReady timeout; deactivate them after backoffLimitCount."""
    deadline = None if look.policy is None else pods_ready.deadline(look.workload, look.policy)
    if look.policy is None or deadline is None:
        return None
    if deadline.at > look.now:
        return ReconcileResult(requeue_at=deadline.at)
    new = pods_ready.evict_after_timeout(look.workload, look.policy, deadline.cause, look.now)
    eviction = lifecycle.Eviction(r.EVICTED_BY_PODS_READY_TIMEOUT, pods_ready.timeout_message(look.workload))
    return _write(UpdateStatus(new), *([_evicted_event(look.key, eviction)] if lifecycle.is_evicted(new) else []))


def _execution_time(look: WorkloadPass) -> ReconcileResult | None:
    """Request deactivation after the maximum execution time over all runs, unless it is already evicted."""
    workload = look.workload
    limit = workload["spec"].get("maximumExecutionTimeSeconds")
    admitted = find_condition(workload, r.ADMITTED)
    if limit is None or admitted is None or admitted["status"] != "True" or lifecycle.is_evicted(workload):
        return None
    past = workload["status"].get("accumulatedPastExecutionTimeSeconds", 0)
    due = parse_time(admitted["lastTransitionTime"]) + (limit - past) * SECOND
    if due > look.now:
        return ReconcileResult(requeue_at=due)
    message = f"The maximum execution time ({limit}s) exceeded"
    return _write(
        UpdateStatus(lifecycle.exceed_execution_time(workload, look.now)),
        EventRecord(look.key, "Warning", r.MAXIMUM_EXECUTION_TIME_EXCEEDED, message),
    )


# --- helpers of the steps ---


def _evict(look: WorkloadPass, workload: Obj, eviction: lifecycle.Eviction) -> ReconcileResult:
    evicted = lifecycle.evict(workload, reason=eviction.reason, message=eviction.message, now=look.now)
    return _write(UpdateStatus(evicted), _evicted_event(look.key, eviction))


def _write(write: Write, *events: EventRecord) -> ReconcileResult:
    return ReconcileResult([write], list(events))


def _evicted_event(key: Key, eviction: lifecycle.Eviction) -> EventRecord:
    return EventRecord(key, "Normal", eviction.event_reason, eviction.message)


def _admitted_event(key: Key, workload: Obj, now: Instant) -> EventRecord:
    reserved = find_condition(workload, r.QUOTA_RESERVED)
    assert reserved is not None
    waited = round(seconds(now - parse_time(reserved["lastTransitionTime"])))
    cluster_queue = lifecycle.cluster_queue_of(workload)
    message = f"Admitted by ClusterQueue {cluster_queue}, wait time since reservation was {waited}s"
    return EventRecord(key, "Normal", "Admitted", message)


_STEPS: Final[tuple[Callable[[WorkloadPass], ReconcileResult | None], ...]] = (
    _activity,
    _sync_checks,
    _failed_checks,
    _waiting,
    _local_queue_restart,
    _gate,
    _cluster_queue_restart,
    _conditions,
    _local_queue_stop,
    _reservation,
    _cluster_queue_stop,
    _deadlines,
)
