"""Workload controller, and the index of the Workloads affected by a change of a queue."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation, find_condition, is_true, label, with_path, without_finalizer
from batchyard.api.times import parse_time
from batchyard.api.views.workload import WorkloadView, cluster_queue_view, workload_view
from batchyard.base.instant import SECOND, Instant, seconds
from batchyard.interfaces.client import EventType, Reader, Update, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.scheduling.messages import PENDING_EVALUATION
from batchyard.scheduling.workload import evictions, lifecycle, pending_reason, pods_ready
from batchyard.scheduling.workload.lifecycle import handed_over, has_former_owner
from batchyard.scheduling.workload.pending_reason import WorkloadQueues, is_inactive, stop_policy
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy

# --- steps ---
#
# Workload reconcile steps, in the order in which they are checked.
#
# They cover deactivation, admission checks, backoff after an eviction, stopped and restarted queues, gates, pending
# reasons that do not depend on the scheduler, and time limits. Each step returns None if nothing is due, or its
# outcome. Source: pkg/controller/core/workload_controller.go of Kueue. Three upstream defects are fixed:
#
# - A Workload with a check in Retry releases its quota at once, as documented there and in KEP-3258, not at the retry
#   time.
# - The retry count of a flavor's check is kept until the next try. - A Workload deactivated for a cause, as after its
# last try, is queued again when a user activates it.


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
    if is_true(workload, evictions.DEACTIVATION_TARGET):
        return _write(Update(with_path(workload, ("spec", "active"), False)))
    return None


def _deactivate(look: WorkloadPass) -> ReconcileResult | None:
    workload = look.workload
    deactivated = evictions.deactivate(workload, look.now)
    if deactivated is workload:
        return None
    outcome = _write(UpdateStatus(deactivated))
    if not lifecycle.is_evicted(workload) and "admission" in (workload.get("status") or ()):
        outcome.events.append(_evicted_event(look.key, evictions.deactivation(workload)))
    return outcome


def _sync_checks(look: WorkloadPass) -> ReconcileResult | None:
    """Set its checks to those that its ClusterQueue requires."""
    queue = look.queues.cluster_queue
    if queue is None or not (lifecycle.checks_of(look.workload) or queue["spec"].get("admissionChecksStrategy")):
        return None
    admission, view = (look.workload.get("status") or _NO_STATUS).get("admission"), cluster_queue_view(queue)
    required = lifecycle.required_checks(view, admission)
    if admission is None:
        required = sorted({*required, *lifecycle.retried_checks(look.workload, view)})
    synced = lifecycle.with_checks(look.workload, required, look.now)
    return None if synced is look.workload else _write(UpdateStatus(synced))


def _failed_checks(look: WorkloadPass) -> ReconcileResult | None:
    """Evict a Workload with a check in Retry until its retry time; deactivate one with a rejected check."""
    workload, now = look.workload, look.now
    if not lifecycle.is_active(workload):
        return None
    retry_at = lifecycle.retry_at(workload)
    held = workload if retry_at is None or retry_at <= now else evictions.hold_back(workload, retry_at, counts=False)
    if lifecycle.has_quota_reservation(workload) and not lifecycle.is_evicted(workload):
        if rejected := lifecycle.in_state(workload, lifecycle.REJECTED):
            return _reject(look, lifecycle.describe_checks(rejected, lifecycle.REJECTED))
        if retrying := lifecycle.in_state(workload, lifecycle.RETRY):
            message = f"Evicted due to {lifecycle.describe_checks(retrying, lifecycle.RETRY)}"
            return _evict(look, held, lifecycle.Eviction(lifecycle.EVICTED_BY_ADMISSION_CHECK, message))
    return None if held is workload else _write(UpdateStatus(held))


def _reject(look: WorkloadPass, message: str) -> ReconcileResult:
    workload = evictions.target_deactivation(look.workload, lifecycle.EVICTED_BY_ADMISSION_CHECK, message, look.now)
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
    return _write(UpdateStatus(evictions.clear_requeue_at(workload)))


def _after_backoff(look: WorkloadPass) -> ReconcileResult | None:
    workload, now = look.workload, look.now
    match _held_back_by(workload):
        case str(reason) if reason.startswith(lifecycle.DEACTIVATED):
            # Any cause counts: Kueue at ff69552e matches only the bare reason, and leaves the others pending forever.
            message = "The workload was reactivated"
            return _write(UpdateStatus(evictions.set_requeued(workload, lifecycle.REACTIVATED, message, now)))
        case lifecycle.EVICTED_BY_PODS_READY_TIMEOUT | lifecycle.EVICTED_BY_ADMISSION_CHECK:
            return _write(UpdateStatus(evictions.finish_backoff(workload, now)))
        case _:
            return None


def _held_back_by(workload: Obj) -> str | None:
    """Return the reason of Requeued=False."""
    requeued = find_condition(workload, evictions.REQUEUED)
    return requeued["reason"] if requeued is not None and requeued["status"] == "False" else None


# --- queues and gates ---


def _local_queue_restart(look: WorkloadPass) -> ReconcileResult | None:
    local_queue = look.queues.local_queue
    if _held_back_by(look.workload) != lifecycle.EVICTED_BY_LOCAL_QUEUE_STOPPED or not _is_open(local_queue):
        return None
    return _requeue(look, lifecycle.LOCAL_QUEUE_RESTARTED, "The LocalQueue was restarted after being stopped")


def _gate(look: WorkloadPass) -> ReconcileResult | None:
    """Update the condition if an admission gate was added or removed."""
    key, workload, now = look.key, look.workload, look.now
    reserved = find_condition(workload, lifecycle.QUOTA_RESERVED)
    is_gated = reserved is not None and reserved["reason"] == lifecycle.ADMISSION_GATED
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
    if _held_back_by(look.workload) != lifecycle.EVICTED_BY_CLUSTER_QUEUE_STOPPED:
        return None
    if not _is_open(look.queues.local_queue) or not _is_open(look.queues.cluster_queue):
        return None  # upstream does not look up the ClusterQueue of a stopped LocalQueue
    return _requeue(look, lifecycle.CLUSTER_QUEUE_RESTARTED, "The ClusterQueue was restarted after being stopped")


def _is_open(queue: Obj | None) -> bool:
    return queue is not None and pending_reason.stop_policy(queue) == "None"


def _requeue(look: WorkloadPass, reason: str, message: str) -> ReconcileResult:
    return _write(UpdateStatus(evictions.set_requeued(look.workload, reason, message, look.now)))


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
    eviction = lifecycle.Eviction(lifecycle.EVICTED_BY_PODS_READY_TIMEOUT, pods_ready.timeout_message(look.workload))
    return _write(UpdateStatus(new), *([_evicted_event(look.key, eviction)] if lifecycle.is_evicted(new) else []))


def _execution_time(look: WorkloadPass) -> ReconcileResult | None:
    """Request deactivation after the maximum execution time over all runs, unless it is already evicted."""
    workload = look.workload
    limit = workload["spec"].get("maximumExecutionTimeSeconds")
    admitted = find_condition(workload, lifecycle.ADMITTED)
    if limit is None or admitted is None or admitted["status"] != "True" or lifecycle.is_evicted(workload):
        return None
    past = workload["status"].get("accumulatedPastExecutionTimeSeconds", 0)
    due = parse_time(admitted["lastTransitionTime"]) + (limit - past) * SECOND
    if due > look.now:
        return ReconcileResult(requeue_at=due)
    message = f"The maximum execution time ({limit}s) exceeded"
    return _write(
        UpdateStatus(evictions.exceed_execution_time(workload, look.now)),
        EventRecord(look.key, "Warning", evictions.MAXIMUM_EXECUTION_TIME_EXCEEDED, message),
    )


# --- helpers of the steps ---


def _evict(look: WorkloadPass, workload: Obj, eviction: lifecycle.Eviction) -> ReconcileResult:
    evicted = evictions.evict(workload, reason=eviction.reason, message=eviction.message, now=look.now)
    return _write(UpdateStatus(evicted), _evicted_event(look.key, eviction))


def _write(write: Write, *events: EventRecord) -> ReconcileResult:
    return ReconcileResult([write], list(events))


def _evicted_event(key: Key, eviction: lifecycle.Eviction) -> EventRecord:
    return EventRecord(key, "Normal", eviction.event_reason, eviction.message)


def _admitted_event(key: Key, workload: Obj, now: Instant) -> EventRecord:
    reserved = find_condition(workload, lifecycle.QUOTA_RESERVED)
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


_MODIFIED: Final = EventType.MODIFIED


class QueueIndex:
    """Workloads by LocalQueue, LocalQueues by ClusterQueue, and the open queues; built only from watch events."""

    def __init__(self) -> None:
        # LocalQueues by namespace and name: team-a/queue.
        self._workloads: dict[str, dict[Key, None]] = {}
        self._local_queues: dict[str, dict[str, None]] = {}
        #: The ClusterQueue of each open LocalQueue.
        self._open_local_queues: dict[str, str] = {}
        #: Open ClusterQueues, each with whether it accepts every namespace.
        self._open_cluster_queues: dict[str, bool] = {}
        #: ClusterQueues that require admission checks.
        self._checking_cluster_queues: dict[str, None] = {}

    def has_checks(self, workload: WorkloadView) -> bool:
        """Report whether the ClusterQueue of its LocalQueue requires admission checks."""
        return self._open_local_queues.get(workload.queue) in self._checking_cluster_queues

    def is_open(self, workload: WorkloadView, *, to_all: bool = False) -> bool:
        """Report whether its queues exist and are open; with `to_all`, also that they accept every namespace."""
        cluster_queue = self._open_local_queues.get(workload.queue)
        takes_all = None if cluster_queue is None else self._open_cluster_queues.get(cluster_queue)
        return takes_all is True or (takes_all is False and not to_all)

    def note_workload(self, event: WatchEvent) -> None:
        """Record a Workload's queue; a finished or deleted Workload is removed."""
        key, view = event.key, workload_view(event.obj)
        before = None if event.old is None else workload_view(event.old).queue
        if before == view.queue and event.type is _MODIFIED and not view.finished:
            return
        if before is not None and before != view.queue:
            self._workloads.get(before, {}).pop(key, None)
        if event.type is EventType.DELETED or view.finished:
            self._workloads.get(view.queue, {}).pop(key, None)
        else:
            self._workloads.setdefault(view.queue, {})[key] = None

    def note_local_queue(self, event: WatchEvent) -> Iterable[Key]:
        """Record a LocalQueue. Return its Workloads if they must be reconciled."""
        place, cluster_queue = f"{event.key.namespace}/{event.key.name}", event.obj["spec"].get("clusterQueue", "")
        gone = event.type is EventType.DELETED
        if gone:
            self._local_queues.get(cluster_queue, {}).pop(place, None)
        else:
            self._local_queues.setdefault(cluster_queue, {})[place] = None
        if gone or _closure(event.obj) != _OPEN:
            self._open_local_queues.pop(place, None)
        else:
            self._open_local_queues[place] = cluster_queue
        return list(self._workloads.get(place, ())) if _matters(event) else ()

    def note_cluster_queue(self, event: WatchEvent) -> Iterable[Key]:
        """Record a ClusterQueue. Return the Workloads of its LocalQueues if they must be reconciled."""
        name = event.key.name
        if event.type is EventType.DELETED or _closure(event.obj) != _OPEN:
            self._open_cluster_queues.pop(name, None)
        else:
            self._open_cluster_queues[name] = event.obj["spec"].get("namespaceSelector") == {}
        if event.type is EventType.DELETED or not event.obj["spec"].get("admissionChecksStrategy"):
            self._checking_cluster_queues.pop(name, None)
        else:
            self._checking_cluster_queues[name] = None
        if not _matters(event):
            return ()
        return [key for place in self._local_queues.get(name, ()) for key in self._workloads.get(place, ())]


class _Closure(NamedTuple):
    """The state of a queue that its Workloads depend on."""

    stop_policy: str
    terminating: bool
    inactive: bool


_OPEN: Final = _Closure("None", False, False)


def _closure(queue: Obj) -> _Closure:
    inactive = queue["kind"] == "ClusterQueue" and is_inactive(queue)
    return _Closure(stop_policy(queue), "deletionTimestamp" in queue["metadata"], inactive)


def _matters(event: WatchEvent) -> bool:
    """Report whether Workloads must be reconciled: the queue appeared, opened, closed, or changed its checks."""
    if event.type is not EventType.MODIFIED or event.old is None:
        return True
    asked, asks = (obj["spec"].get("admissionChecksStrategy") for obj in (event.old, event.obj))
    return asked != asks or _closure(event.old) != _closure(event.obj)


# --- workload ---
#
# The Workload lifecycle: transitions caused by its spec, its queues and time alone.
#
# Each reconcile makes one step (`steps.py`); its write triggers the next one. This module decides when to reconcile,
# and finishes orphans. Source: pkg/controller/core/workload_controller.go of Kueue, less queueing.


class WorkloadLifecycle:
    """Keeps the conditions of every Workload consistent with its spec, its queues and the time."""

    name = "workload"
    rank = 0
    kinds = (scheme.WORKLOAD, scheme.LOCAL_QUEUE, scheme.CLUSTER_QUEUE)

    def __init__(self, pods_ready_policy: PodsReadyPolicy | None = None) -> None:
        self._index = QueueIndex()
        #: None disables the PodsReady timeout.
        self._policy = pods_ready_policy

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return a Workload that may need a step, or all Workloads of a queue that opened, closed, or changed."""
        kind = event.key.kind
        if kind == scheme.WORKLOAD:
            self._index.note_workload(event)
            return (event.key,) if event.type is not EventType.DELETED and self._needs_look(event.obj) else ()
        if kind == scheme.LOCAL_QUEUE:
            return self._index.note_local_queue(event)
        if kind == scheme.CLUSTER_QUEUE:
            return self._index.note_cluster_queue(event)
        return ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Make the first step that is due."""
        workload = reader.get(key)
        if workload is None:
            return ReconcileResult()
        if lifecycle.is_finished(workload) or _is_orphan(workload):
            return _end(workload, now)
        if has_former_owner(workload):
            return ReconcileResult([Update(workload, handed_over(workload))])
        return first_step(WorkloadPass(key, workload, _queues_of(workload, reader), now, self._policy))

    def _needs_look(self, workload: Obj) -> bool:
        """Report whether a step may be due. Most changes come from the scheduler and need none."""
        view, status, index = workload_view(workload), workload.get("status") or _NO_STATUS, self._index
        if view.finished:
            return "finalizers" in workload["metadata"] and _is_orphan(workload)
        if (
            not view.active
            or "requeueState" in status
            or "admissionChecks" in status
            or view.deactivation_target
            or view.requeue_blocked
            or lifecycle.has_admission_gate(workload)
            or _is_orphan(workload)
            or index.has_checks(view)
            or has_former_owner(workload)
        ):
            return True
        if view.quota_reserved:
            limited = "maximumExecutionTimeSeconds" in workload["spec"]
            awaited = self._policy is not None and not view.pods_ready
            return not view.admitted or limited or awaited or not index.is_open(view)
        if "admission" in status:
            return True
        verdict = view.waits_for is None or view.waits_for in pending_reason.VERDICTS
        return not verdict or not index.is_open(view, to_all=True)


def _is_orphan(workload: Obj) -> bool:
    """Report whether its job is gone: it has lost its owner, or it is being deleted without one."""
    metadata = workload["metadata"]
    if metadata.get("ownerReferences"):
        return False
    return "deletionTimestamp" in metadata or bool(label(workload, well_known.JOB_UID))


def _queues_of(workload: Obj, reader: Reader) -> WorkloadQueues:
    namespace = workload["metadata"].get("namespace", "")
    local_queue = reader.get(Key(scheme.LOCAL_QUEUE, namespace, workload["spec"].get("queueName", "")))
    if local_queue is None:
        return WorkloadQueues(None, None)
    cluster_queue = reader.get(Key(scheme.CLUSTER_QUEUE, "", local_queue["spec"].get("clusterQueue", "")))
    return WorkloadQueues(local_queue, cluster_queue, reader.get(Key(scheme.NAMESPACE, "", namespace)))


def _end(workload: Obj, now: Instant) -> ReconcileResult:
    """Finish an orphan so that its quota is released, then remove its finalizer."""
    metadata = workload["metadata"]
    if not _is_orphan(workload):
        return ReconcileResult()
    if "deletionTimestamp" not in metadata and not lifecycle.is_finished(workload):
        message = "The workload's owner no longer exists"
        return ReconcileResult([UpdateStatus(lifecycle.finish(workload, lifecycle.OWNER_NOT_FOUND, message, now))])
    released = without_finalizer(workload, well_known.RESOURCE_IN_USE)
    return ReconcileResult() if released is workload else ReconcileResult([Update(released)])
