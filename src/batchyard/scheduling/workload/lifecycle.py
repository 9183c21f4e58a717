"""Workload lifecycle: the effect of each event on the status.

Theory of operation. A Workload is in one of four states, given by its conditions (`status`):

    event               pending          quotaReserved        admitted             finished
    ------------------  ---------------  -------------------  -------------------  --------
    reserve_quota       quotaReserved, or admitted if no check is outstanding
    sync_admitted       pending          admitted if all checks are Ready          -
    set_pending         pending          pending              pending              -
    evict, deactivate   unchanged: only marked, the quota stays reserved until the work has stopped
    release_after_...   pending          pending              pending              -
    finish              finished         finished             finished             finished

Two marks are independent of the state: Evicted (stop the work, then release quota) and Requeued (False: do not queue
yet). Eviction takes two steps because quota is free only once the pods are gone.

Rule 1: only the functions of this file change these conditions.
Rule 2: the conditions are the state. Nothing is stored elsewhere, so a restart loses nothing.

Every function takes an object and returns a new one that shares the unchanged parts, or the same object if nothing
changed. Reasons and messages are Kueue's (pkg/workload at v0.20 with its default feature gates).
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.conditions import find_condition, is_true
from batchyard.api.meta import Obj, annotation, with_path
from batchyard.api.status_draft import StatusDraft
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import SECOND, Instant
from batchyard.scheduling.messages import PENDING_EVALUATION
from batchyard.scheduling.workload.checks import are_ready, new_check, reset_check

# --- reasons ---
#
# Condition types of a Workload, and the reasons that other modules branch on.
#
# Source: apis/kueue/v1beta2/workload_types.go of Kueue. Clients read these texts, so they are never changed.


# Condition types.
QUOTA_RESERVED: Final = "QuotaReserved"
ADMITTED: Final = "Admitted"
FINISHED: Final = "Finished"
EVICTED: Final = "Evicted"
PREEMPTED: Final = "Preempted"
REQUEUED: Final = "Requeued"
PODS_READY: Final = "PodsReady"
DEACTIVATION_TARGET: Final = "DeactivationTarget"
BLOCKED_ON_PREEMPTION_GATES: Final = "BlockedOnPreemptionGates"

# Reasons of Evicted=True.
EVICTED_BY_PREEMPTION: Final = "Preempted"
EVICTED_BY_PODS_READY_TIMEOUT: Final = "PodsReadyTimeout"
EVICTED_BY_ADMISSION_CHECK: Final = "AdmissionCheck"
EVICTED_BY_CLUSTER_QUEUE_STOPPED: Final = "ClusterQueueStopped"
EVICTED_BY_LOCAL_QUEUE_STOPPED: Final = "LocalQueueStopped"
EVICTED_DUE_TO_NODE_FAILURES: Final = "NodeFailures"
DEACTIVATED: Final = "Deactivated"

# Reasons of QuotaReserved=False, besides those of batchyard.scheduling.messages.
TOPOLOGY_PLACEMENT_FAILED: Final = "TopologyPlacementFailed"
WAITING_FOR_PODS_READY: Final = "WaitingForPodsReady"
ON_HOLD: Final = "OnHold"
ADMISSION_GATED: Final = "AdmissionGated"

# Reasons of Requeued=True.
REACTIVATED: Final = "Reactivated"
BACKOFF_FINISHED: Final = "BackoffFinished"
CLUSTER_QUEUE_RESTARTED: Final = "ClusterQueueRestarted"
LOCAL_QUEUE_RESTARTED: Final = "LocalQueueRestarted"

# Reasons of DeactivationTarget=True, besides EVICTED_BY_ADMISSION_CHECK.
MAXIMUM_EXECUTION_TIME_EXCEEDED: Final = "MaximumExecutionTimeExceeded"
REQUEUING_LIMIT_EXCEEDED: Final = "RequeuingLimitExceeded"

# Reasons of PodsReady, those of False first.
WAIT_FOR_START: Final = "WaitForStart"
WAIT_FOR_RECOVERY: Final = "WaitForRecovery"
STARTED: Final = "Started"
RECOVERED: Final = "Recovered"

# Reasons of Finished=True.
SUCCEEDED: Final = "Succeeded"
FAILED: Final = "Failed"
FAILED_TO_START: Final = "FailedToStart"
OUT_OF_SYNC: Final = "OutOfSync"
OWNER_NOT_FOUND: Final = "OwnerNotFound"


_NO_STATUS: Final[Mapping[str, Any]] = {}
_REQUEUED_AT_ONCE: Final = (EVICTED_BY_PREEMPTION, EVICTED_DUE_TO_NODE_FAILURES)


class Status(StrEnum):
    """The four states, in Kueue's words."""

    PENDING = "pending"
    QUOTA_RESERVED = "quotaReserved"
    ADMITTED = "admitted"
    FINISHED = "finished"


class Eviction(NamedTuple):
    """Why a Workload is evicted."""

    reason: str
    message: str
    underlying_cause: str = ""

    @property
    def condition_reason(self) -> str:
        """The reason of the Evicted condition; a deactivation includes its cause."""
        if self.reason == DEACTIVATED and self.underlying_cause:
            return f"{self.reason}DueTo{self.underlying_cause}"
        return self.reason

    @property
    def event_reason(self) -> str:
        """The reason of the Event about it."""
        return f"EvictedDueTo{self.condition_reason}"


# --- predicates ---


def status(workload: Obj) -> Status:
    """Return the state of a Workload."""
    if is_finished(workload):
        return Status.FINISHED
    if is_admitted(workload):
        return Status.ADMITTED
    return Status.QUOTA_RESERVED if has_quota_reservation(workload) else Status.PENDING


def is_finished(workload: Obj) -> bool:
    """Report whether it finished, successfully or not."""
    return is_true(workload, FINISHED)


def is_admitted(workload: Obj) -> bool:
    """Report whether it is admitted."""
    return is_true(workload, ADMITTED)


def is_evicted(workload: Obj) -> bool:
    """Report whether it is evicted and has not got quota since."""
    return is_true(workload, EVICTED)


def has_quota_reservation(workload: Obj) -> bool:
    """Report whether it holds quota."""
    return is_true(workload, QUOTA_RESERVED)


def admission_of(workload: Obj) -> Mapping[str, Any]:
    """Return its admission; empty if another client wrote the condition without it."""
    return (workload.get("status") or {}).get("admission") or {}


def cluster_queue_of(workload: Obj) -> str:
    """Return the ClusterQueue whose quota it holds; '' if none is given."""
    return admission_of(workload).get("clusterQueue") or ""


def is_active(workload: Obj) -> bool:
    """Return `spec.active`, which defaults to true."""
    return workload["spec"].get("active") is not False


def is_on_hold(workload: Obj) -> bool:
    """Report whether its job released the quota on purpose and does not request it yet."""
    condition = find_condition(workload, QUOTA_RESERVED)
    return condition is not None and condition["status"] == "False" and condition["reason"] == ON_HOLD


def has_admission_gate(workload: Obj) -> bool:
    """Report whether an annotation gates its admission."""
    return bool(annotation(workload, well_known.ADMISSION_GATED_BY))


# --- admission ---


def reserve_quota(
    workload: Obj, admission: Mapping[str, Any], now: Instant, admitted: bool, checks: Sequence[str] | None = None
) -> Obj:
    """Reserve quota for it; if `admitted` (no required check is missing), set Admitted as well.

    If `checks` is given, it gets exactly these checks, and new ones are Pending. `resourceRequests` is removed, because
    the admission contains the usage.
    """
    draft = StatusDraft(workload, now)
    draft.set_field("admission", admission)
    draft.drop_fields("resourceRequests")
    if checks is not None:
        known = {check["name"]: check for check in draft.status.get("admissionChecks") or ()}
        draft.drop_fields("admissionChecks")
        if checks:
            draft.set_field("admissionChecks", [known.get(name) or new_check(name, draft.time) for name in checks])
    cluster_queue = admission["clusterQueue"]
    draft.set_condition(QUOTA_RESERVED, True, "QuotaReserved", f"Quota reserved in ClusterQueue {cluster_queue}")
    for kind in (EVICTED, PREEMPTED, BLOCKED_ON_PREEMPTION_GATES):
        if draft.is_true(kind):
            # The conditions keep their previous message for users.
            draft.set_condition(kind, False, "QuotaReserved", f"Previously: {draft.conditions[kind]['message']}")
    if admitted:
        _sync_admitted(draft)
    return draft.result()


def set_pending(workload: Obj, reason: str, message: str, now: Instant) -> Obj:
    """Remove its quota, if any, and set the reason why it has none."""
    draft = StatusDraft(workload, now)
    _unset_quota(draft, reason, message)
    return draft.result()


def without_stale_admission(workload: Obj) -> Obj:
    """Remove an admission that has no quota reservation because another client reset only the condition.

    It would prevent the next admission, because a set admission is immutable.
    """
    if has_quota_reservation(workload) or "admission" not in (workload.get("status") or _NO_STATUS):
        return workload
    return with_path(workload, ("status", "admission"), None)


def sync_admitted(workload: Obj, now: Instant) -> Obj:
    """Set Admitted from quota, checks and topology; when it ends, add up the execution time."""
    if not (workload.get("status") or _NO_STATUS).get("conditions"):
        return workload
    draft = StatusDraft(workload, now)
    _sync_admitted(draft)
    return draft.result()


def with_resource_requests(workload: Obj, requests: Sequence[Mapping[str, Any]]) -> Obj:
    """Report the requests of its pod sets while it is pending, each as `{"name": ..., "resources": {...}}`."""
    old = workload.get("status") or _NO_STATUS
    if old.get("resourceRequests") == requests:
        return workload
    return {**workload, "status": {**old, "resourceRequests": requests}}


# --- eviction ---


def evict(
    workload: Obj,
    *,
    reason: str,
    message: str,
    now: Instant,
    preempted: str | None = None,
    cause: str = "",
) -> Obj:
    """Mark it as evicted; `preempted` is the reason of its Preempted condition, with the same message."""
    draft = StatusDraft(workload, now)
    if preempted is not None:
        draft.set_condition(PREEMPTED, True, preempted, message, observed=False)
    _evict(draft, Eviction(reason, message, cause))
    return draft.result()


def hold_back(workload: Obj, until: Instant, *, counts: bool) -> Obj:
    """Delay its requeue until an instant, unless a later one is set; `counts` increments the requeue count."""
    old = workload.get("status") or _NO_STATUS
    state = dict(old.get("requeueState") or _NO_STATUS)
    if counts:
        state["count"] = state.get("count", 0) + 1
    if "requeueAt" not in state or parse_time(state["requeueAt"]) < until:
        state["requeueAt"] = format_time(until)
    return workload if state == old.get("requeueState") else {**workload, "status": {**old, "requeueState": state}}


def release_after_eviction(workload: Obj, now: Instant) -> Obj:
    """Release the quota of an evicted Workload that has stopped; only after preemption or node failure it requeues at
    once.

    Source: the eviction step of pkg/controller/jobframework/reconciler.go.
    """
    if not is_true(workload, EVICTED) or not has_quota_reservation(workload):
        return workload
    draft = StatusDraft(workload, now)
    evicted = draft.conditions[EVICTED]
    reason, message = evicted["reason"], evicted["message"]
    draft.set_condition(REQUEUED, reason in _REQUEUED_AT_ONCE, reason, message)
    _unset_quota(draft, PENDING_EVALUATION, message)
    return draft.result()


def set_requeued(workload: Obj, reason: str, message: str, now: Instant) -> Obj:
    """Set that it may be queued again after an eviction, with the reason."""
    draft = StatusDraft(workload, now)
    draft.set_condition(REQUEUED, True, reason, message)
    return draft.result()


def finish_backoff(workload: Obj, now: Instant) -> Obj:
    """Requeue it after the backoff of a timeout or a check's retry."""
    waited = clear_requeue_at(workload)
    return set_requeued(waited, BACKOFF_FINISHED, "The workload backoff was finished", now)


def clear_requeue_at(workload: Obj) -> Obj:
    """Remove its requeue time; its requeue count is kept."""
    old = workload.get("status") or _NO_STATUS
    state = old.get("requeueState")
    if not state or "requeueAt" not in state:
        return workload
    left = {name: value for name, value in state.items() if name != "requeueAt"}
    return with_path(workload, ("status", "requeueState"), left or None)


# --- deactivation and end ---


def target_deactivation(workload: Obj, reason: str, message: str, now: Instant) -> Obj:
    """Request its deactivation."""
    draft = StatusDraft(workload, now)
    draft.set_condition(DEACTIVATION_TARGET, True, reason, message)
    return draft.result()


def exceed_execution_time(workload: Obj, now: Instant) -> Obj:
    """Request deactivation after the maximum execution time, and reset the accumulated time."""
    draft = StatusDraft(workload, now)
    draft.set_condition(
        DEACTIVATION_TARGET, True, MAXIMUM_EXECUTION_TIME_EXCEEDED, "exceeding the maximum execution time"
    )
    draft.drop_fields("accumulatedPastExecutionTimeSeconds")
    return draft.result()


def deactivate(workload: Obj, now: Instant) -> Obj:
    """Evict a deactivated Workload, and reset its requeue state; the cause is that of DeactivationTarget."""
    draft = StatusDraft(workload, now)
    evicted = draft.is_true(EVICTED)
    if evicted and "requeueState" not in draft.status:
        return workload
    eviction = deactivation(workload)
    draft.drop_fields("requeueState")
    draft.drop_condition(DEACTIVATION_TARGET)
    if not evicted:
        _evict(draft, eviction)
    return draft.result()


def deactivation(workload: Obj) -> Eviction:
    """Return why a deactivated Workload is evicted; its DeactivationTarget contains the cause, if any."""
    target = find_condition(workload, DEACTIVATION_TARGET)
    message = "The workload is deactivated"
    if target is None:
        return Eviction(DEACTIVATED, message)
    return Eviction(DEACTIVATED, f"{message} due to {target['message']}", target["reason"])


def finish(workload: Obj, reason: str, message: str, now: Instant) -> Obj:
    """Finish it; a finished Workload is unchanged."""
    if is_finished(workload):
        return workload
    draft = StatusDraft(workload, now)
    draft.set_condition(FINISHED, True, reason, message)
    return draft.result()


# --- helpers of the transitions ---


def _evict(draft: StatusDraft, eviction: Eviction) -> None:
    reason, message = eviction.condition_reason, eviction.message
    draft.set_condition(EVICTED, True, reason, message)
    if draft.is_true(BLOCKED_ON_PREEMPTION_GATES):
        draft.set_condition(BLOCKED_ON_PREEMPTION_GATES, False, reason, message)
    draft.drop_fields("clusterName", "nominatedClusterNames", "unhealthyNodes")
    _reset_checks(draft)
    _count_eviction(draft, eviction)


def _reset_checks(draft: StatusDraft) -> None:
    """Reset checks after an eviction, keeping their retry counts, and close preemption gates."""
    status = draft.status
    if status.get("admissionChecks"):
        draft.set_field("admissionChecks", [reset_check(check, draft.time) for check in status["admissionChecks"]])
    if status.get("preemptionGates"):
        closed = {"position": "Closed", "lastTransitionTime": draft.time}
        draft.set_field("preemptionGates", [{**gate, **closed} for gate in status["preemptionGates"]])


def _count_eviction(draft: StatusDraft, eviction: Eviction) -> None:
    stats = draft.status.get("schedulingStats") or _NO_STATUS
    counts = list(stats.get("evictions") or ())
    for place, old in enumerate(counts):
        if old["reason"] == eviction.reason and old["underlyingCause"] == eviction.underlying_cause:
            counts[place] = {**old, "count": old["count"] + 1}
            break
    else:
        counts.append({"reason": eviction.reason, "underlyingCause": eviction.underlying_cause, "count": 1})
    draft.set_field("schedulingStats", {**stats, "evictions": counts})


def _unset_quota(draft: StatusDraft, reason: str, message: str) -> None:
    draft.set_condition(QUOTA_RESERVED, False, reason, message)
    draft.drop_fields("admission")
    _sync_admitted(draft)


def _sync_admitted(draft: StatusDraft) -> None:
    old = draft.conditions.get(ADMITTED)
    if old is None and QUOTA_RESERVED not in draft.conditions:
        return  # a new Workload has neither condition
    admitted, reason, message = _admission_state(draft)
    draft.set_condition(ADMITTED, admitted, reason, message)
    if old is not None and old["status"] == "True" and not admitted:
        ran = (draft.now - parse_time(old["lastTransitionTime"])) // SECOND
        past = draft.status.get("accumulatedPastExecutionTimeSeconds", 0)
        draft.set_field("accumulatedPastExecutionTimeSeconds", past + ran)


def _admission_state(draft: StatusDraft) -> tuple[bool, str, str]:
    if not draft.is_true(QUOTA_RESERVED):
        return False, "NoReservation", "The workload has no reservation"
    checks = draft.status.get("admissionChecks")
    if checks and not are_ready(checks):
        return False, "UnsatisfiedAdmissionChecks", "The workload has not all checks ready"
    if _awaits_topology(draft.status):
        return False, "PendingDelayedTopologyRequests", "There are pending delayed topology requests"
    return True, "Admitted", "The workload is admitted"


def _awaits_topology(status: Mapping[str, Any]) -> bool:
    return any(
        assignment.get("delayedTopologyRequest") == "Pending" and "topologyAssignment" not in assignment
        for assignment in (status.get("admission") or _NO_STATUS).get("podSetAssignments") or ()
    )


# --- field ownership ---
#
# Transfers the field ownership of a Workload's status from earlier releases to the manager that Kueue applies with.
#
# Earlier releases replaced the whole status as manager `batchyard`. A server-side apply as `kueue-admission` removes
# only fields that the same manager applied before, so the fields of the other one would stay. Source: client-go,
# util/csaupgrade.


#: The manager, operation and subresource of statuses written by earlier releases.
_FORMER: Final = ("batchyard", "Update", "status")
_PRESENT: Final = ("kueue-admission", "Apply", "status")


def has_former_owner(workload: Obj) -> bool:
    """Report whether an entry of an earlier release owns fields of the status."""
    return any(_identity(entry) == _FORMER for entry in workload["metadata"].get("managedFields") or ())


def handed_over(workload: Obj) -> Sequence[Obj]:
    """Return the `managedFields` with the fields of earlier releases transferred to `kueue-admission`."""
    entries = workload["metadata"].get("managedFields") or ()
    ours = [entry for entry in entries if _identity(entry) in {_FORMER, _PRESENT}]
    owned: dict[str, Any] = {}
    for entry in ours:
        owned = _union(owned, entry.get("fieldsV1") or {})
    manager, operation, part = _PRESENT
    applied = {**ours[-1], "manager": manager, "operation": operation, "subresource": part, "fieldsV1": owned}
    return [*(entry for entry in entries if _identity(entry) not in {_FORMER, _PRESENT}), applied]


def _identity(entry: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return entry.get("manager"), entry.get("operation"), entry.get("subresource")


def _union(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the union of two field sets."""
    return {**one, **{name: _union(one.get(name) or {}, inner) for name, inner in other.items()}}
