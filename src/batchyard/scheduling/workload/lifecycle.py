"""The lifecycle of a Workload: what each event does to its status.

Theory of operation. A Workload is in one of four states, which its conditions tell (`status`):

    event               pending          quotaReserved        admitted             finished
    ------------------  ---------------  -------------------  -------------------  --------
    reserve_quota       quotaReserved, or admitted when no check is waited for
    sync_admitted       pending          admitted if all checks are Ready          -
    set_pending         pending          pending              pending              -
    evict, deactivate   unchanged: only marked, the quota stays reserved until the work has stopped
    release_after_...   pending          pending              pending              -
    finish              finished         finished             finished             finished

Beside the state run two marks: Evicted (stop the work, then release) and Requeued (False: do not queue again yet).
Eviction takes two steps because quota is free only once the pods are gone.

Rule 1: whatever changes these conditions does so through the functions of this file.
Rule 2: the conditions are the state. Nothing is remembered elsewhere, so a restart loses nothing.

Every function takes an object and returns a new one that shares what did not change; the same object when nothing
did. Reasons and messages are Kueue's (pkg/workload at v0.20 with its default feature gates).
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
# The words of a Workload's conditions: their types, and the reasons other layers branch on.
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

# Reasons of QuotaReserved=False, beside those of batchyard.core.reasons.
TOPOLOGY_PLACEMENT_FAILED: Final = "TopologyPlacementFailed"
WAITING_FOR_PODS_READY: Final = "WaitingForPodsReady"
ON_HOLD: Final = "OnHold"
ADMISSION_GATED: Final = "AdmissionGated"

# Reasons of Requeued=True.
REACTIVATED: Final = "Reactivated"
BACKOFF_FINISHED: Final = "BackoffFinished"
CLUSTER_QUEUE_RESTARTED: Final = "ClusterQueueRestarted"
LOCAL_QUEUE_RESTARTED: Final = "LocalQueueRestarted"

# Reasons of DeactivationTarget=True, beside EVICTED_BY_ADMISSION_CHECK.
MAXIMUM_EXECUTION_TIME_EXCEEDED: Final = "MaximumExecutionTimeExceeded"
REQUEUING_LIMIT_EXCEEDED: Final = "RequeuingLimitExceeded"

# Reasons of PodsReady, first those of False.
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
        """The reason of the Evicted condition: a deactivation names its cause in it."""
        if self.reason == DEACTIVATED and self.underlying_cause:
            return f"{self.reason}DueTo{self.underlying_cause}"
        return self.reason

    @property
    def event_reason(self) -> str:
        """The reason of the event about it."""
        return f"EvictedDueTo{self.condition_reason}"


# --- predicates ---


def status(workload: Obj) -> Status:
    """The state a Workload is in."""
    if is_finished(workload):
        return Status.FINISHED
    if is_admitted(workload):
        return Status.ADMITTED
    return Status.QUOTA_RESERVED if has_quota_reservation(workload) else Status.PENDING


def is_finished(workload: Obj) -> bool:
    """Its work is over, for good or ill."""
    return is_true(workload, FINISHED)


def is_admitted(workload: Obj) -> bool:
    """It may run."""
    return is_true(workload, ADMITTED)


def is_evicted(workload: Obj) -> bool:
    """It must stop, or has stopped and was not given quota since."""
    return is_true(workload, EVICTED)


def has_quota_reservation(workload: Obj) -> bool:
    """It holds quota."""
    return is_true(workload, QUOTA_RESERVED)


def admission_of(workload: Obj) -> Mapping[str, Any]:
    """What it was given; nothing where whoever wrote that it holds quota did not write what."""
    return (workload.get("status") or {}).get("admission") or {}


def cluster_queue_of(workload: Obj) -> str:
    """Where it holds quota; '' where nobody said."""
    return admission_of(workload).get("clusterQueue") or ""


def is_active(workload: Obj) -> bool:
    """It is wanted: `spec.active`, true unless said otherwise."""
    return workload["spec"].get("active") is not False


def is_on_hold(workload: Obj) -> bool:
    """Its job gave the quota back on purpose and does not want it again yet."""
    condition = find_condition(workload, QUOTA_RESERVED)
    return condition is not None and condition["status"] == "False" and condition["reason"] == ON_HOLD


def has_admission_gate(workload: Obj) -> bool:
    """An annotation keeps it out of the queue."""
    return bool(annotation(workload, well_known.ADMISSION_GATED_BY))


# --- admission ---


def reserve_quota(
    workload: Obj, admission: Mapping[str, Any], now: Instant, admitted: bool, checks: Sequence[str] | None = None
) -> Obj:
    """Give it quota; with `admitted`, which says that no required check is missing, settle Admitted as well.

    It has the checks that it needs and no others, where they are given; those it has not heard of yet are pending. What
    its pods asked for is no longer reported apart: the admission says it.
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
            # People ask what happened before: the condition keeps what it said.
            draft.set_condition(kind, False, "QuotaReserved", f"Previously: {draft.conditions[kind]['message']}")
    if admitted:
        _sync_admitted(draft)
    return draft.result()


def set_pending(workload: Obj, reason: str, message: str, now: Instant) -> Obj:
    """Take its quota away, if it has any, and say why it has none."""
    draft = StatusDraft(workload, now)
    _unset_quota(draft, reason, message)
    return draft.result()


def without_stale_admission(workload: Obj) -> Obj:
    """Remove an admission that is left without a quota reservation: another client reset the condition alone.

    It would keep the next admission out, for a set admission must not change.
    """
    if has_quota_reservation(workload) or "admission" not in (workload.get("status") or _NO_STATUS):
        return workload
    return with_path(workload, ("status", "admission"), None)


def sync_admitted(workload: Obj, now: Instant) -> Obj:
    """Make Admitted what quota, checks and topology say; add up the time it ran when that ends."""
    if not (workload.get("status") or _NO_STATUS).get("conditions"):
        return workload
    draft = StatusDraft(workload, now)
    _sync_admitted(draft)
    return draft.result()


def with_resource_requests(workload: Obj, requests: Sequence[Mapping[str, Any]]) -> Obj:
    """Report what its pod sets ask for, each `{"name": ..., "resources": {...}}`, while it waits."""
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
    """Mark it to be stopped; `preempted` is the reason of its Preempted condition, with the same message."""
    draft = StatusDraft(workload, now)
    if preempted is not None:
        draft.set_condition(PREEMPTED, True, preempted, message, observed=False)
    _evict(draft, Eviction(reason, message, cause))
    return draft.result()


def hold_back(workload: Obj, until: Instant, *, counts: bool) -> Obj:
    """Keep it from queueing again before an instant, unless a later one is set; `counts` it as one more try."""
    old = workload.get("status") or _NO_STATUS
    state = dict(old.get("requeueState") or _NO_STATUS)
    if counts:
        state["count"] = state.get("count", 0) + 1
    if "requeueAt" not in state or parse_time(state["requeueAt"]) < until:
        state["requeueAt"] = format_time(until)
    return workload if state == old.get("requeueState") else {**workload, "status": {**old, "requeueState": state}}


def release_after_eviction(workload: Obj, now: Instant) -> Obj:
    """Give its quota back once an evicted one has stopped; it queues again at once only if it lost its place to others.

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
    """Say that it may queue again after an eviction, and why."""
    draft = StatusDraft(workload, now)
    draft.set_condition(REQUEUED, True, reason, message)
    return draft.result()


def finish_backoff(workload: Obj, now: Instant) -> Obj:
    """Let it queue again after the wait that followed a timeout or a check's retry."""
    waited = clear_requeue_at(workload)
    return set_requeued(waited, BACKOFF_FINISHED, "The workload backoff was finished", now)


def clear_requeue_at(workload: Obj) -> Obj:
    """Forget until when it had to wait; how often it waited stays known."""
    old = workload.get("status") or _NO_STATUS
    state = old.get("requeueState")
    if not state or "requeueAt" not in state:
        return workload
    left = {name: value for name, value in state.items() if name != "requeueAt"}
    return with_path(workload, ("status", "requeueState"), left or None)


# --- deactivation and end ---


def target_deactivation(workload: Obj, reason: str, message: str, now: Instant) -> Obj:
    """Ask for its deactivation."""
    draft = StatusDraft(workload, now)
    draft.set_condition(DEACTIVATION_TARGET, True, reason, message)
    return draft.result()


def exceed_execution_time(workload: Obj, now: Instant) -> Obj:
    """Ask for the deactivation of one that ran too long, and start its count anew."""
    draft = StatusDraft(workload, now)
    draft.set_condition(
        DEACTIVATION_TARGET, True, MAXIMUM_EXECUTION_TIME_EXCEEDED, "exceeding the maximum execution time"
    )
    draft.drop_fields("accumulatedPastExecutionTimeSeconds")
    return draft.result()


def deactivate(workload: Obj, now: Instant) -> Obj:
    """Evict one that is not wanted any more, and forget its waiting; the cause is that of DeactivationTarget."""
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
    """Why a deactivated Workload is evicted: its DeactivationTarget tells the cause, if it has one."""
    target = find_condition(workload, DEACTIVATION_TARGET)
    message = "The workload is deactivated"
    if target is None:
        return Eviction(DEACTIVATED, message)
    return Eviction(DEACTIVATED, f"{message} due to {target['message']}", target["reason"])


def finish(workload: Obj, reason: str, message: str, now: Instant) -> Obj:
    """End it; what is finished stays as it is."""
    if is_finished(workload):
        return workload
    draft = StatusDraft(workload, now)
    draft.set_condition(FINISHED, True, reason, message)
    return draft.result()


# --- what the transitions share ---


def _evict(draft: StatusDraft, eviction: Eviction) -> None:
    reason, message = eviction.condition_reason, eviction.message
    draft.set_condition(EVICTED, True, reason, message)
    if draft.is_true(BLOCKED_ON_PREEMPTION_GATES):
        draft.set_condition(BLOCKED_ON_PREEMPTION_GATES, False, reason, message)
    draft.drop_fields("clusterName", "nominatedClusterNames", "unhealthyNodes")
    _reset_checks(draft)
    _count_eviction(draft, eviction)


def _reset_checks(draft: StatusDraft) -> None:
    """Checks start anew after an eviction, keeping how often they were retried; preemption gates close."""
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
        return  # a Workload nobody looked at yet has neither condition
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
# The field ownership of a Workload's status, handed over from earlier releases to the manager that Kueue applies by.
#
# Earlier releases replaced the whole status as manager `batchyard`. A server-side apply as `kueue-admission` removes
# only
# what that manager applied before, so what the other one set would stay. Source: client-go, util/csaupgrade.


#: The manager, operation and subresource of statuses that earlier releases wrote.
_FORMER: Final = ("batchyard", "Update", "status")
_PRESENT: Final = ("kueue-admission", "Apply", "status")


def has_former_owner(workload: Obj) -> bool:
    """Whether an entry of an earlier release owns fields of the status."""
    return any(_identity(entry) == _FORMER for entry in workload["metadata"].get("managedFields") or ())


def handed_over(workload: Obj) -> Sequence[Obj]:
    """The `managedFields` in which `kueue-admission` applied what an earlier release wrote."""
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
    """The fields that either set has."""
    return {**one, **{name: _union(one.get(name) or {}, inner) for name, inner in other.items()}}
