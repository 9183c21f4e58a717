"""Workload lifecycle controller: its reconcile steps, and an index of the Workloads that a queue change affects."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, find_condition, is_true, label, with_path, without_finalizer
from batchyard.api.times import parse_time
from batchyard.api.views.workload import WorkloadView, cluster_queue_view, workload_view
from batchyard.base.instant import SECOND, Instant, duration_seconds
from batchyard.interfaces.client import EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules
from batchyard.scheduling.messages import ADMISSION_GATED, PENDING_EVALUATION
from batchyard.scheduling.workload import evictions, lifecycle, pending_reason, pods_ready
from batchyard.scheduling.workload.lifecycle import has_former_owner, transfer_field_ownership
from batchyard.scheduling.workload.pending_reason import WorkloadQueues, is_inactive, stop_policy
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy

# Workload reconcile steps, in the order in which they are checked.
#
# They cover deactivation, admission checks, backoff after an eviction, stopped and restarted queues, gates, pending
# reasons that do not depend on the scheduler, and time limits. Each step returns None if nothing is due, or its
# outcome. Source: pkg/controller/core/workload_controller.go of Kueue. Two upstream defects are fixed:
#
# - The retry count of a flavor's check is kept until the next try.
# - A Workload deactivated for a cause, such as after its last try, is queued again when a user activates it.


_NO_STATUS: Final[Obj] = {}


class WorkloadReconcile(NamedTuple):
    """The inputs of one reconcile of a Workload: the object, its queues, the current time, the policy and the rules."""

    key: Key
    workload: Obj
    queues: WorkloadQueues
    now: Instant
    policy: PodsReadyPolicy | None
    rules: DecisionRules = DEFAULT_RULES


def run_first_due_step(context: WorkloadReconcile) -> ReconcileResult:
    """Return the outcome of the first reconcile step that has something to do; an empty result if none has."""
    return next((outcome for step in _RECONCILE_STEPS if (outcome := step(context)) is not None), ReconcileResult())


def _check_whether_active(context: WorkloadReconcile) -> ReconcileResult | None:
    workload = context.workload
    if not lifecycle.is_active(workload):
        return _deactivate_workload(context)
    if is_true(workload, evictions.DEACTIVATION_TARGET):
        return _write_outcome(Update(with_path(workload, ("spec", "active"), False)))
    return None


def _deactivate_workload(context: WorkloadReconcile) -> ReconcileResult | None:
    workload = context.workload
    new_workload = evictions.deactivate(workload, context.now)
    if new_workload is workload:
        return None
    outcome = _write_outcome(UpdateStatus(new_workload))
    if not lifecycle.is_evicted(workload) and "admission" in (workload.get("status") or ()):
        outcome.events.append(_evicted_event(context.key, evictions.eviction_for_deactivation(workload)))
    return outcome


def _sync_checks(context: WorkloadReconcile) -> ReconcileResult | None:
    queue = context.queues.cluster_queue
    if queue is None or not (
        lifecycle.checks_of(context.workload) or (queue.get("spec") or {}).get("admissionChecksStrategy")
    ):
        return None
    admission, view = (context.workload.get("status") or _NO_STATUS).get("admission"), cluster_queue_view(queue)
    required_checks = lifecycle.required_checks(view, admission)
    if admission is None:
        required_checks = sorted({*required_checks, *lifecycle.retried_checks(context.workload, view)})
    new_workload = lifecycle.with_required_checks(context.workload, required_checks, context.now)
    return None if new_workload is context.workload else _write_outcome(UpdateStatus(new_workload))


def _handle_failed_checks(context: WorkloadReconcile) -> ReconcileResult | None:
    """Return the writes that evict a Workload with quota if one of its admission checks is in state Retry.

    If a check is in state Rejected, request the deactivation of the Workload instead. The time of the next retry is
    stored in `requeueState`, also for a Workload without quota. Until this time, the Workload keeps its quota, also if
    another check is Rejected. Return None if nothing must be written.
    """
    workload, now = context.workload, context.now
    if not lifecycle.is_active(workload):
        return None
    retry_at = lifecycle.retry_at(workload)
    if retry_at is not None and retry_at > now:
        held_workload = evictions.hold_back(workload, retry_at, is_counted=False)
        if held_workload is not workload:
            return _write_outcome(UpdateStatus(held_workload))
    requeue_at = _requeue_time(workload)
    if requeue_at is not None and requeue_at > now:
        return None
    if lifecycle.has_quota_reservation(workload) and not lifecycle.is_evicted(workload):
        if rejected := lifecycle.checks_in_state(workload, lifecycle.REJECTED):
            return _request_deactivation(context, lifecycle.describe_checks(rejected, lifecycle.REJECTED))
        if retrying := lifecycle.checks_in_state(workload, lifecycle.RETRY):
            message = f"Evicted due to {lifecycle.describe_checks(retrying, lifecycle.RETRY)}"
            return _evict(context, workload, lifecycle.Eviction(lifecycle.EVICTED_BY_ADMISSION_CHECK, message))
    return None


def _request_deactivation(context: WorkloadReconcile, message: str) -> ReconcileResult:
    new = evictions.request_deactivation(context.workload, lifecycle.EVICTED_BY_ADMISSION_CHECK, message, context.now)
    event = EventRecord(context.key, "Warning", "AdmissionCheckRejected", f"Deactivated due to {message}")
    return _write_outcome(UpdateStatus(new), event)


def _wait_for_backoff(context: WorkloadReconcile) -> ReconcileResult | None:
    if not lifecycle.is_active(context.workload):
        return None
    return _wait_for_requeue_time(context) or _requeue_after_backoff(context)


def _wait_for_requeue_time(context: WorkloadReconcile) -> ReconcileResult | None:
    workload = context.workload
    requeue_at = _requeue_time(workload)
    if requeue_at is None:
        return None
    if requeue_at > context.now:
        return ReconcileResult(requeue_at=requeue_at)
    if lifecycle.status(workload) is not lifecycle.Status.PENDING:
        return None
    return _write_outcome(UpdateStatus(evictions.clear_requeue_at(workload)))


def _requeue_time(workload: Obj) -> Instant | None:
    requeue_at = ((workload.get("status") or _NO_STATUS).get("requeueState") or _NO_STATUS).get("requeueAt")
    return None if requeue_at is None else parse_time(requeue_at)


def _requeue_after_backoff(context: WorkloadReconcile) -> ReconcileResult | None:
    workload, now = context.workload, context.now
    match _requeue_block_reason(workload):
        case str(reason) if reason.startswith(lifecycle.DEACTIVATED):
            # Any cause counts: Kueue at ff69552e matches only the bare reason, and leaves the others pending forever.
            message = "The workload was reactivated"
            return _write_outcome(UpdateStatus(evictions.set_requeued(workload, lifecycle.REACTIVATED, message, now)))
        case lifecycle.EVICTED_BY_PODS_READY_TIMEOUT | lifecycle.EVICTED_BY_ADMISSION_CHECK:
            return _write_outcome(UpdateStatus(evictions.finish_backoff(workload, now)))
        case _:
            return None


def _requeue_block_reason(workload: Obj) -> str | None:
    condition = find_condition(workload, evictions.REQUEUED)
    return condition["reason"] if condition is not None and condition["status"] == "False" else None


def _handle_local_queue_restart(context: WorkloadReconcile) -> ReconcileResult | None:
    local_queue = context.queues.local_queue
    if _requeue_block_reason(context.workload) != lifecycle.EVICTED_BY_LOCAL_QUEUE_STOPPED or not _is_unstopped(
        local_queue
    ):
        return None
    return _requeue(context, lifecycle.LOCAL_QUEUE_RESTARTED, "The LocalQueue was restarted after being stopped")


def _sync_admission_gate(context: WorkloadReconcile) -> ReconcileResult | None:
    key, workload, now = context.key, context.workload, context.now
    reserved_condition = find_condition(workload, lifecycle.QUOTA_RESERVED)
    is_gated = reserved_condition is not None and reserved_condition["reason"] == ADMISSION_GATED
    if lifecycle.has_admission_gate(workload) == is_gated:
        return None
    if is_gated:
        message = "AdmissionGatedBy cleared, waiting for quota reservation"
        return _write_outcome(
            UpdateStatus(lifecycle.set_pending(workload, PENDING_EVALUATION, message, now)),
            EventRecord(key, "Normal", "AdmissionGateCleared", "Admission gate cleared, workload is now admissible"),
        )
    reason = pending_reason.reason_for_pending(workload, context.queues)
    if reason is None or reason.reason != ADMISSION_GATED:
        return None  # a missing or stopped queue comes first: otherwise the two reasons replace each other for ever
    gate = annotation(workload, well_known.ADMISSION_GATED_BY)
    return _write_outcome(
        UpdateStatus(lifecycle.set_pending(workload, *reason, now)),
        EventRecord(key, "Normal", "AdmissionGated", f"Workload admission is gated by: {gate}"),
    )


def _handle_cluster_queue_restart(context: WorkloadReconcile) -> ReconcileResult | None:
    if _requeue_block_reason(context.workload) != lifecycle.EVICTED_BY_CLUSTER_QUEUE_STOPPED:
        return None
    if not _is_unstopped(context.queues.local_queue) or not _is_unstopped(context.queues.cluster_queue):
        return None  # upstream does not look up the ClusterQueue of a stopped LocalQueue
    return _requeue(context, lifecycle.CLUSTER_QUEUE_RESTARTED, "The ClusterQueue was restarted after being stopped")


def _is_unstopped(queue: Obj | None) -> bool:
    return queue is not None and pending_reason.stop_policy(queue) == "None"


def _requeue(context: WorkloadReconcile, reason: str, message: str) -> ReconcileResult:
    return _write_outcome(UpdateStatus(evictions.set_requeued(context.workload, reason, message, context.now)))


def _sync_conditions(context: WorkloadReconcile) -> ReconcileResult | None:
    workload, now = context.workload, context.now
    if lifecycle.is_admitted(workload) and not _has_rejected_check_while_evicted(context):
        return None
    new = workload
    if not lifecycle.has_quota_reservation(workload):
        reason = pending_reason.reason_for_pending(workload, context.queues)
        if reason is not None:
            new = lifecycle.set_pending(workload, *reason, now)
        new = lifecycle.without_stale_admission(new)
    new = lifecycle.sync_admitted(new, now)
    if new is workload:
        return None
    events = [_admitted_event(context.key, new, now)] if lifecycle.is_admitted(new) else []
    return _write_outcome(UpdateStatus(new), *events)


def _has_rejected_check_while_evicted(context: WorkloadReconcile) -> bool:
    """Return whether an evicted Workload has a check in state Rejected: since Kueue 0.20, it is not Admitted then."""
    workload = context.workload
    is_evicted = context.rules.is_current and lifecycle.is_evicted(workload)
    return is_evicted and bool(lifecycle.checks_in_state(workload, lifecycle.REJECTED))


def _drain_local_queue(context: WorkloadReconcile) -> ReconcileResult | None:
    return _evict_if_draining(context, context.queues.local_queue, "LocalQueue")


def _release_reservation(context: WorkloadReconcile) -> ReconcileResult | None:
    workload = context.workload
    if lifecycle.is_admitted(workload) or not lifecycle.has_quota_reservation(workload):
        return None
    blocker = pending_reason.reservation_blocker(workload, context.queues)
    if blocker is None:
        return None
    return _write_outcome(UpdateStatus(lifecycle.set_pending(workload, *blocker, context.now)))


def _drain_cluster_queue(context: WorkloadReconcile) -> ReconcileResult | None:
    return _evict_if_draining(context, context.queues.cluster_queue, "ClusterQueue")


def _evict_if_draining(context: WorkloadReconcile, queue: Obj | None, kind: str) -> ReconcileResult | None:
    if pending_reason.stop_policy(queue) != "HoldAndDrain":
        return None
    if not lifecycle.is_admitted(context.workload) or lifecycle.is_evicted(context.workload):
        return None
    return _evict(context, context.workload, lifecycle.Eviction(f"{kind}Stopped", f"The {kind} is stopped"))


def _check_time_limits(context: WorkloadReconcile) -> ReconcileResult | None:
    requeue_times = []
    for check_limit in (_check_pods_ready_timeout, _check_execution_time):
        outcome = check_limit(context)
        if outcome is not None and outcome.writes:
            return outcome
        if outcome is not None and outcome.requeue_at is not None:
            requeue_times.append(outcome.requeue_at)
    return ReconcileResult(requeue_at=min(requeue_times)) if requeue_times else None


def _check_pods_ready_timeout(context: WorkloadReconcile) -> ReconcileResult | None:
    deadline = None if context.policy is None else pods_ready.deadline(context.workload, context.policy)
    if context.policy is None or deadline is None:
        return None
    if deadline.at > context.now:
        return ReconcileResult(requeue_at=deadline.at)
    new = pods_ready.evict_after_timeout(context.workload, context.policy, deadline.cause, context.now)
    eviction = lifecycle.Eviction(lifecycle.EVICTED_BY_PODS_READY_TIMEOUT, pods_ready.timeout_message(context.workload))
    events = [_evicted_event(context.key, eviction)] if lifecycle.is_evicted(new) else []
    return _write_outcome(UpdateStatus(new), *events)


def _check_execution_time(context: WorkloadReconcile) -> ReconcileResult | None:
    workload = context.workload
    limit_seconds = workload["spec"].get("maximumExecutionTimeSeconds")
    admission = find_condition(workload, lifecycle.ADMITTED)
    if limit_seconds is None or admission is None or admission["status"] != "True" or lifecycle.is_evicted(workload):
        return None
    past_seconds = workload["status"].get("accumulatedPastExecutionTimeSeconds", 0)
    due = parse_time(admission["lastTransitionTime"]) + (limit_seconds - past_seconds) * SECOND
    if due > context.now:
        return ReconcileResult(requeue_at=due)
    message = f"The maximum execution time ({limit_seconds}s) exceeded"
    return _write_outcome(
        UpdateStatus(evictions.request_deactivation_after_execution_time(workload, context.now)),
        EventRecord(context.key, "Warning", evictions.MAXIMUM_EXECUTION_TIME_EXCEEDED, message),
    )


def _evict(context: WorkloadReconcile, workload: Obj, eviction: lifecycle.Eviction) -> ReconcileResult:
    evicted_workload = evictions.evict(workload, reason=eviction.reason, message=eviction.message, now=context.now)
    return _write_outcome(UpdateStatus(evicted_workload), _evicted_event(context.key, eviction))


def _write_outcome(write: Write, *events: EventRecord) -> ReconcileResult:
    return ReconcileResult([write], list(events))


def _evicted_event(key: Key, eviction: lifecycle.Eviction) -> EventRecord:
    return EventRecord(key, "Normal", eviction.event_reason, eviction.message)


def _admitted_event(key: Key, workload: Obj, now: Instant) -> EventRecord:
    reserved_condition = find_condition(workload, lifecycle.QUOTA_RESERVED)
    assert reserved_condition is not None
    wait_seconds = round(duration_seconds(now - parse_time(reserved_condition["lastTransitionTime"])))
    cluster_queue = lifecycle.cluster_queue_of(workload)
    message = f"Admitted by ClusterQueue {cluster_queue}, wait time since reservation was {wait_seconds}s"
    return EventRecord(key, "Normal", "Admitted", message)


_RECONCILE_STEPS: Final[tuple[Callable[[WorkloadReconcile], ReconcileResult | None], ...]] = (
    _check_whether_active,
    _sync_checks,
    _handle_failed_checks,
    _wait_for_backoff,
    _handle_local_queue_restart,
    _sync_admission_gate,
    _handle_cluster_queue_restart,
    _sync_conditions,
    _drain_local_queue,
    _release_reservation,
    _drain_cluster_queue,
    _check_time_limits,
)


_MODIFIED: Final = EventType.MODIFIED


class QueueIndex:
    """Index of Workloads by LocalQueue, of LocalQueues by ClusterQueue, and of the open queues.

    A queue is open if it is neither stopped nor being deleted; a ClusterQueue must also be active.
    """

    def __init__(self) -> None:
        # LocalQueues are identified by namespace and name: team-a/queue.
        self._workloads: dict[str, dict[Key, None]] = {}
        self._local_queues: dict[str, dict[str, None]] = {}
        #: The ClusterQueue of each open LocalQueue.
        self._open_local_queues: dict[str, str] = {}
        #: Open ClusterQueues, each with whether it accepts every namespace.
        self._open_cluster_queues: dict[str, bool] = {}
        #: ClusterQueues that require admission checks.
        self._checking_cluster_queues: dict[str, None] = {}

    def has_checks(self, workload: WorkloadView) -> bool:
        """Return whether a Workload's LocalQueue is open and its ClusterQueue requires admission checks."""
        return self._open_local_queues.get(workload.queue) in self._checking_cluster_queues

    def is_open(self, workload: WorkloadView, *, to_all_namespaces: bool = False) -> bool:
        """Return whether a Workload's LocalQueue and ClusterQueue both accept Workloads.

        With `to_all_namespaces`, the ClusterQueue must also select every namespace.
        """
        cluster_queue = self._open_local_queues.get(workload.queue)
        accepts_all = None if cluster_queue is None else self._open_cluster_queues.get(cluster_queue)
        return accepts_all is True or (accepts_all is False and not to_all_namespaces)

    def record_workload(self, event: WatchEvent) -> None:
        """Update the index from a Workload's watch event; finished and deleted Workloads are removed."""
        key, view = event.key, workload_view(event.obj)
        old_queue = None if event.old is None else workload_view(event.old).queue
        if old_queue == view.queue and event.type is _MODIFIED and not view.finished:
            return
        if old_queue is not None and old_queue != view.queue:
            self._workloads.get(old_queue, {}).pop(key, None)
        if event.type is EventType.DELETED or view.finished:
            self._workloads.get(view.queue, {}).pop(key, None)
        else:
            self._workloads.setdefault(view.queue, {})[key] = None

    def record_local_queue(self, event: WatchEvent) -> Iterable[Key]:
        """Update the index from a LocalQueue's watch event; return the keys of Workloads that the change affects."""
        queue_key, cluster_queue = (
            f"{event.key.namespace}/{event.key.name}",
            (event.obj.get("spec") or {}).get("clusterQueue", ""),
        )
        is_deleted = event.type is EventType.DELETED
        if is_deleted:
            self._local_queues.get(cluster_queue, {}).pop(queue_key, None)
        else:
            self._local_queues.setdefault(cluster_queue, {})[queue_key] = None
        if is_deleted or _queue_state(event.obj) != _OPEN_QUEUE_STATE:
            self._open_local_queues.pop(queue_key, None)
        else:
            self._open_local_queues[queue_key] = cluster_queue
        return list(self._workloads.get(queue_key, ())) if _affects_workloads(event) else ()

    def record_cluster_queue(self, event: WatchEvent) -> Iterable[Key]:
        """Update the index from a ClusterQueue's watch event; return the keys of Workloads that the change affects."""
        name = event.key.name
        if event.type is EventType.DELETED or _queue_state(event.obj) != _OPEN_QUEUE_STATE:
            self._open_cluster_queues.pop(name, None)
        else:
            self._open_cluster_queues[name] = (event.obj.get("spec") or {}).get("namespaceSelector") == {}
        if event.type is EventType.DELETED or not (event.obj.get("spec") or {}).get("admissionChecksStrategy"):
            self._checking_cluster_queues.pop(name, None)
        else:
            self._checking_cluster_queues[name] = None
        if not _affects_workloads(event):
            return ()
        return [key for queue_key in self._local_queues.get(name, ()) for key in self._workloads.get(queue_key, ())]


class _QueueState(NamedTuple):
    stop_policy: str
    terminating: bool
    inactive: bool


_OPEN_QUEUE_STATE: Final = _QueueState("None", False, False)


def _queue_state(queue: Obj) -> _QueueState:
    is_queue_inactive = queue["kind"] == "ClusterQueue" and is_inactive(queue)
    return _QueueState(stop_policy(queue), "deletionTimestamp" in queue["metadata"], is_queue_inactive)


def _affects_workloads(event: WatchEvent) -> bool:
    if event.type is not EventType.MODIFIED or event.old is None:
        return True
    old_checks, new_checks = ((obj.get("spec") or {}).get("admissionChecksStrategy") for obj in (event.old, event.obj))
    return old_checks != new_checks or _queue_state(event.old) != _queue_state(event.obj)


# The Workload lifecycle: transitions caused by its spec, its queues and time alone.
#
# Each reconcile runs one of the steps above; the write of that step triggers the next reconcile. The controller decides
# when to reconcile, and finishes orphans. Source: pkg/controller/core/workload_controller.go of Kueue.


class WorkloadLifecycle:
    """Controller that keeps the conditions of Workloads consistent with their spec, their queues and the time."""

    name = "workload"
    rank = 0
    kinds = (scheme.WORKLOAD, scheme.LOCAL_QUEUE, scheme.CLUSTER_QUEUE)

    def __init__(self, pods_ready_policy: PodsReadyPolicy | None = None, rules: DecisionRules = DEFAULT_RULES) -> None:
        self._index = QueueIndex()
        self._rules = rules
        #: None disables the PodsReady timeout.
        self._policy = pods_ready_policy

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the keys of the Workloads to reconcile after an event of a Workload, LocalQueue or ClusterQueue."""
        kind = event.key.kind
        if kind == scheme.WORKLOAD:
            self._index.record_workload(event)
            return (event.key,) if event.type is not EventType.DELETED and self._needs_reconcile(event.obj) else ()
        if kind == scheme.LOCAL_QUEUE:
            return self._index.record_local_queue(event)
        return self._index.record_cluster_queue(event)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Finish or release an orphaned Workload; otherwise transfer its field ownership, or run the first due step."""
        workload = reader.get(key)
        if workload is None:
            return ReconcileResult()
        if self._rules.preemption_gates and not self._is_orphaned(workload):
            gated_workload = lifecycle.with_preemption_gates(workload, now)
            if gated_workload is not workload:
                return _write_outcome(UpdateStatus(gated_workload))
        if lifecycle.is_finished(workload) or self._is_orphaned(workload):
            return _finish_orphaned_workload(workload, now) if self._is_orphaned(workload) else ReconcileResult()
        if has_former_owner(workload):
            return ReconcileResult([Update(workload, transfer_field_ownership(workload))])
        queues = _queues_of(workload, reader)
        return run_first_due_step(WorkloadReconcile(key, workload, queues, now, self._policy, self._rules))

    def _needs_reconcile(self, workload: Obj) -> bool:
        """Return whether a changed Workload may need a reconcile; most changes by the scheduler need none."""
        view, status, queue_index = workload_view(workload), workload.get("status") or _NO_STATUS, self._index
        if self._rules.preemption_gates and ("preemptionGates" in workload["spec"] or "preemptionGates" in status):
            return True
        if view.finished:
            return "finalizers" in workload["metadata"] and self._is_orphaned(workload)
        if (
            not view.active
            or "requeueState" in status
            or "admissionChecks" in status
            or view.deactivation_target
            or view.requeue_blocked
            or lifecycle.has_admission_gate(workload)
            or self._is_orphaned(workload)
            or queue_index.has_checks(view)
            or has_former_owner(workload)
        ):
            return True
        if view.quota_reserved:
            has_time_limit = "maximumExecutionTimeSeconds" in workload["spec"]
            awaits_ready_pods = self._policy is not None and not view.pods_ready
            return not view.admitted or has_time_limit or awaits_ready_pods or not queue_index.is_open(view)
        if "admission" in status:
            return True
        has_scheduler_reason = view.pending_reason is None or view.pending_reason in pending_reason.SCHEDULER_REASONS
        return not has_scheduler_reason or not queue_index.is_open(view, to_all_namespaces=True)

    def _is_orphaned(self, workload: Obj) -> bool:
        """Return whether a Workload has no owner, and is being deleted or belonged to a job.

        Without the gate FinishOrphanedWorkloads, only Workloads that are being deleted count.
        """
        metadata = workload["metadata"]
        if metadata.get("ownerReferences"):
            return False
        was_owned = self._rules.finishes_orphans and bool(label(workload, well_known.JOB_UID))
        return "deletionTimestamp" in metadata or was_owned


def _queues_of(workload: Obj, reader: Reader) -> WorkloadQueues:
    namespace = workload["metadata"].get("namespace", "")
    local_queue = reader.get(Key(scheme.LOCAL_QUEUE, namespace, workload["spec"].get("queueName", "")))
    if local_queue is None:
        return WorkloadQueues(None, None)
    cluster_queue = reader.get(Key(scheme.CLUSTER_QUEUE, "", (local_queue.get("spec") or {}).get("clusterQueue", "")))
    return WorkloadQueues(local_queue, cluster_queue, reader.get(Key(scheme.NAMESPACE, "", namespace)))


def _finish_orphaned_workload(workload: Obj, now: Instant) -> ReconcileResult:
    metadata = workload["metadata"]
    if "deletionTimestamp" not in metadata and not lifecycle.is_finished(workload):
        message = "The workload's owner no longer exists"
        return ReconcileResult([UpdateStatus(lifecycle.finish(workload, lifecycle.OWNER_NOT_FOUND, message, now))])
    released_workload = without_finalizer(workload, well_known.RESOURCE_IN_USE)
    return ReconcileResult() if released_workload is workload else ReconcileResult([Update(released_workload)])
