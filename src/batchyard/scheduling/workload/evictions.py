"""Eviction of Workloads: functions that change the status for eviction, requeue backoff and deactivation."""

from typing import Final

from batchyard.api import meta
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import Instant
from batchyard.scheduling.messages import PENDING_EVALUATION, PreemptionReason
from batchyard.scheduling.preemption.shrinking import PARTIALLY_PREEMPTED
from batchyard.scheduling.workload import lifecycle

_NO_STATUS: Final[meta.Obj] = {}

REQUEUED: Final = "Requeued"
DEACTIVATION_TARGET: Final = "DeactivationTarget"

# Reasons of Evicted=True.
EVICTED_BY_PREEMPTION: Final = "Preempted"
EVICTED_DUE_TO_NODE_FAILURES: Final = "NodeFailures"
BACKOFF_FINISHED: Final = "BackoffFinished"

# Reasons of DeactivationTarget=True, besides EVICTED_BY_ADMISSION_CHECK.
MAXIMUM_EXECUTION_TIME_EXCEEDED: Final = "MaximumExecutionTimeExceeded"
_IMMEDIATE_REQUEUE_REASONS: Final = (EVICTED_BY_PREEMPTION, EVICTED_DUE_TO_NODE_FAILURES)


def evict(
    workload: meta.Obj, *, reason: str, message: str, now: Instant, preemption: str | None = None, cause: str = ""
) -> meta.Obj:
    """Return the Workload with Evicted set to True, and if `preemption` (a reason) is given, also Preempted.

    Admission checks are reset to Pending, and the eviction is counted in `status.schedulingStats` with its underlying
    cause (`cause`; '' for none). Preemptions by configured rules are counted together, with the cause of the last.
    """
    draft = meta.StatusDraft(workload, now)
    if preemption is not None:
        draft.set_condition(lifecycle.PREEMPTED, True, preemption, message, sets_observed_generation=False)
    _mark_evicted(draft, lifecycle.Eviction(reason, message, cause))
    return draft.result()


def shrink(workload: meta.Obj, *, message: str, now: Instant, preemption: str) -> meta.Obj:
    """Return the Workload with the condition PartiallyPreempted, with which its job must shrink to its minimum.

    `preemption` is the reason of the preemption. The Workload keeps its quota until the surplus pods have stopped.
    """
    draft = meta.StatusDraft(workload, now)
    draft.set_condition(PARTIALLY_PREEMPTED, True, preemption, message, sets_observed_generation=False)
    return draft.result()


def finish_shrinking(workload: meta.Obj, now: Instant, reason: str = "Shrunk") -> meta.Obj:
    """Return a Workload whose job has shrunk to its minimum, or is evicted, with PartiallyPreempted set to False."""
    draft = meta.StatusDraft(workload, now)
    message = f"Previously: {draft.conditions[PARTIALLY_PREEMPTED]['message']}"
    draft.set_condition(PARTIALLY_PREEMPTED, False, reason, message, sets_observed_generation=False)
    return draft.result()


def hold_back(workload: meta.Obj, requeue_time: Instant, *, is_counted: bool) -> meta.Obj:
    """Return the Workload with `requeueAt` at `requeue_time` or later; `is_counted` increments its requeue count."""
    old = workload.get("status") or _NO_STATUS
    state = dict(old.get("requeueState") or _NO_STATUS)
    if is_counted:
        state["count"] = state.get("count", 0) + 1
    if "requeueAt" not in state or parse_time(state["requeueAt"]) < requeue_time:
        state["requeueAt"] = format_time(requeue_time)
    return workload if state == old.get("requeueState") else {**workload, "status": {**old, "requeueState": state}}


def release_after_eviction(workload: meta.Obj, now: Instant, *, may_requeue: bool = True) -> meta.Obj:
    """Return an evicted Workload without its quota reservation; other Workloads and those without quota are unchanged.

    Requeued becomes True after a preemption or node failure, if `may_requeue`. After other evictions it becomes False:
    the Workload is not queued before a backoff ends or something changes. To be called once the pods have stopped.

    Source: the eviction step of pkg/controller/jobframework/reconciler.go.
    """
    if not meta.is_true(workload, lifecycle.EVICTED) or not lifecycle.has_quota_reservation(workload):
        return workload
    draft = meta.StatusDraft(workload, now)
    evicted_condition = draft.conditions[lifecycle.EVICTED]
    reason, message = evicted_condition["reason"], evicted_condition["message"]
    draft.set_condition(REQUEUED, may_requeue and reason in _IMMEDIATE_REQUEUE_REASONS, reason, message)
    lifecycle.unset_quota_reservation(draft, PENDING_EVALUATION, message)
    return draft.result()


def set_requeued(workload: meta.Obj, reason: str, message: str, now: Instant) -> meta.Obj:
    """Return the Workload with Requeued set to True: it may be queued again after an eviction."""
    draft = meta.StatusDraft(workload, now)
    draft.set_condition(REQUEUED, True, reason, message)
    return draft.result()


def finish_backoff(workload: meta.Obj, now: Instant) -> meta.Obj:
    """Return the Workload without `requeueAt` and with Requeued set to True, because its requeue backoff has ended."""
    released_workload = clear_requeue_at(workload)
    return set_requeued(released_workload, BACKOFF_FINISHED, "The workload backoff was finished", now)


def clear_requeue_at(workload: meta.Obj) -> meta.Obj:
    """Return the Workload without `status.requeueState.requeueAt`; its requeue count is kept."""
    old = workload.get("status") or _NO_STATUS
    requeue_state = old.get("requeueState")
    if not requeue_state or "requeueAt" not in requeue_state:
        return workload
    new_requeue_state = {name: value for name, value in requeue_state.items() if name != "requeueAt"}
    return meta.with_path(workload, ("status", "requeueState"), new_requeue_state or None)


def request_deactivation(workload: meta.Obj, reason: str, message: str, now: Instant) -> meta.Obj:
    """Return the Workload with DeactivationTarget set to True, which requests its deactivation."""
    draft = meta.StatusDraft(workload, now)
    draft.set_condition(DEACTIVATION_TARGET, True, reason, message)
    return draft.result()


def request_deactivation_after_execution_time(workload: meta.Obj, now: Instant) -> meta.Obj:
    """Return the Workload with its deactivation requested and its accumulated execution time reset."""
    draft = meta.StatusDraft(workload, now)
    message = "exceeding the maximum execution time"
    draft.set_condition(DEACTIVATION_TARGET, True, MAXIMUM_EXECUTION_TIME_EXCEEDED, message)
    draft.drop_fields("accumulatedPastExecutionTimeSeconds")
    return draft.result()


def deactivate(workload: meta.Obj, now: Instant) -> meta.Obj:
    """Return an inactive Workload (`spec.active` is false) as evicted; DeactivationTarget, if set, gives the cause.

    Its requeue state and DeactivationTarget are removed. The same object is returned if the Workload is already evicted
    and has no requeue state.
    """
    draft = meta.StatusDraft(workload, now)
    is_evicted = draft.is_true(lifecycle.EVICTED)
    if is_evicted and "requeueState" not in draft.status:
        return workload
    eviction = eviction_for_deactivation(workload)
    draft.drop_fields("requeueState")
    draft.drop_condition(DEACTIVATION_TARGET)
    if not is_evicted:
        _mark_evicted(draft, eviction)
    return draft.result()


def eviction_for_deactivation(workload: meta.Obj) -> lifecycle.Eviction:
    """Return reason and message for evicting a deactivated Workload, with the cause from DeactivationTarget, if any."""
    target = meta.find_condition(workload, DEACTIVATION_TARGET)
    message = "The workload is deactivated"
    if target is None:
        return lifecycle.Eviction(lifecycle.DEACTIVATED, message)
    return lifecycle.Eviction(lifecycle.DEACTIVATED, f"{message} due to {target['message']}", target["reason"])


def _mark_evicted(draft: meta.StatusDraft, eviction: lifecycle.Eviction) -> None:
    reason, message = eviction.condition_reason, eviction.message
    draft.set_condition(lifecycle.EVICTED, True, reason, message)
    if draft.is_true(lifecycle.BLOCKED_ON_PREEMPTION_GATES):
        draft.set_condition(lifecycle.BLOCKED_ON_PREEMPTION_GATES, False, reason, message)
    draft.drop_fields("clusterName", "nominatedClusterNames", "unhealthyNodes")
    _reset_checks(draft)
    _count_eviction(draft, eviction)


def _reset_checks(draft: meta.StatusDraft) -> None:
    status = draft.status
    if status.get("admissionChecks"):
        checks = [lifecycle.reset_check(check, draft.timestamp) for check in status["admissionChecks"]]
        draft.set_field("admissionChecks", checks)
    if status.get("preemptionGates"):
        closed_gate_fields = {"position": "Closed", "lastTransitionTime": draft.timestamp}
        draft.set_field("preemptionGates", [{**gate, **closed_gate_fields} for gate in status["preemptionGates"]])


def _count_eviction(draft: meta.StatusDraft, eviction: lifecycle.Eviction) -> None:
    scheduling_stats = draft.status.get("schedulingStats") or _NO_STATUS
    eviction_counts = list(scheduling_stats.get("evictions") or ())
    reason, cause = eviction.reason, eviction.underlying_cause
    is_by_rules = bool(cause) and reason == EVICTED_BY_PREEMPTION
    if is_by_rules:
        reason = PreemptionReason.CONFIGURABLE
    for index, old in enumerate(eviction_counts):
        if old["reason"] == reason and (is_by_rules or old["underlyingCause"] == cause):
            eviction_counts[index] = {**old, "underlyingCause": cause, "count": old["count"] + 1}
            break
    else:
        eviction_counts.append({"reason": reason, "underlyingCause": cause, "count": 1})
    draft.set_field("schedulingStats", {**scheduling_stats, "evictions": eviction_counts})
