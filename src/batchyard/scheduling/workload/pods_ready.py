"""PodsReady of Workloads: the condition, the deadline for ready pods, and the eviction after the timeout.

All pods of an admitted Workload must be ready within a timeout, and again within a recovery timeout after one was lost.
An annotation of the job can set other timeouts. Pods without a node may have a shorter timeout, `unscheduledTimeout`:
then the condition PodsScheduled records whether all pods were scheduled (`pods_scheduled.py`). If a timeout passes, the
Workload is evicted, and requeued after a backoff that doubles each time up to a maximum. A Workload without a job has
no pods in batchyard, so it has no timeout, unless an annotation plans when simulated pods are ready. The
setting `without_job` applies the timeout to such Workloads too: their own controllers must then set PodsReady, as with
Kueue. Sources: Kueue's jobframework (generatePodsReadyCondition) and workload_controller (reconcileNotReadyTimeout),
the defaults of its configuration, and KEP-13502 and KEP-4803 of Kueue 0.20.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from batchyard.admission_plugins.job_annotations import parse_timeout_seconds
from batchyard.api import scheme, well_known
from batchyard.api.meta import Condition, Obj, StatusDraft, annotation, controller_of, find_condition, key_of, owner_key
from batchyard.api.times import parse_time
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import HOUR, MINUTE, SECOND, Duration, Instant, exponential_backoff
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.lifecycle import is_group_workload

_READY_REASONS: Final = (lifecycle.STARTED, lifecycle.RECOVERED)
_JOB_KINDS: Final = ("Job", "JobSet", "Pod")
#: The condition that all pods of an admission were scheduled, and its reason while some were not.
PODS_SCHEDULED: Final = "PodsScheduled"
WAIT_FOR_SCHEDULING: Final = "WaitForScheduling"
NOT_READY_MESSAGE: Final = "Not all pods are ready or succeeded"
_RECOVERING_MESSAGE: Final = "At least one pod has failed, waiting for recovery"
_ALL_READY_MESSAGE: Final = "All pods reached readiness and the workload is running"


class RequeuingTimestamp(StrEnum):
    """The timestamp that decides the queue order of a Workload evicted by the PodsReady timeout."""

    EVICTION = "Eviction"
    CREATION = "Creation"


@dataclass(frozen=True, slots=True)
class PodsReadyPolicy:
    """Kueue's waitForPodsReady settings: timeouts, requeue order and backoff."""

    #: The timeout from admission until all pods are ready.
    timeout: Duration = 30 * MINUTE
    #: The timeout until all pods are ready again after one was lost; 0 for no timeout, None for `timeout`.
    recovery_timeout: Duration | None = None
    #: Whether no Workload is admitted while the pods of an admitted one are not ready.
    block_admission: bool = False
    requeuing_timestamp: RequeuingTimestamp = RequeuingTimestamp.EVICTION
    #: The number of requeues before deactivation; None for no limit.
    backoff_limit_count: int | None = None
    backoff_base: Duration = MINUTE
    backoff_max: Duration = HOUR
    #: Whether the timeout also applies to Workloads without a Job or JobSet.
    without_job: bool = False
    #: The timeout from admission until all pods are scheduled; 0 for none.
    unscheduled_timeout: Duration = 0
    #: The maximum of the timeouts in a job's annotation; None ignores the annotation.
    timeout_on_workload_max: Duration | None = None

    def timeouts_of(self, workload: Obj) -> "PodsReadyTimeouts":
        """Return the timeouts of a Workload: those in its annotation if it has any, else those of the policy.

        If the annotation has only a timeout, this is also the recovery timeout.
        """
        recovery = self.timeout if self.recovery_timeout is None else self.recovery_timeout
        timeouts = PodsReadyTimeouts(self.timeout, recovery)
        text = None if self.timeout_on_workload_max is None else annotation(workload, well_known.WAIT_FOR_PODS_READY)
        if not text:
            return timeouts
        try:
            timeout_seconds, recovery_seconds = parse_timeout_seconds(text)
        except ValueError:
            return timeouts  # an annotation that no webhook has checked
        timeout = timeout_seconds * SECOND if timeout_seconds else self.timeout
        default_recovery = timeout if timeout_seconds else recovery
        return PodsReadyTimeouts(timeout, default_recovery if recovery_seconds is None else recovery_seconds * SECOND)

    def covers(self, workload: Obj) -> bool:
        """Return whether a Workload's PodsReady timeout applies: it has a Job or JobSet, or `without_job` is set.

        The timeout also applies to a Workload whose annotation plans when its simulated pods are ready.
        """
        return self.without_job or has_pods(workload) or annotation(workload, well_known.PODS_READY) is not None


class PodsReadyTimeouts(NamedTuple):
    """The timeouts of one Workload: from admission, and after a pod was lost (0: none)."""

    timeout: Duration
    recovery: Duration


class PodsReadyDeadline(NamedTuple):
    """The time by which a Workload's pods must be ready, and the timeout it comes from (start or recovery)."""

    cause: str
    at: Instant


def has_pods(workload: Obj) -> bool:
    """Return whether a Workload has pods: a job or a pod controls it, or a group of pods owns it."""
    owner = controller_of(workload)
    if owner is None:
        return is_group_workload(workload)
    return owner["kind"] in _JOB_KINDS or not scheme.is_built_in(owner_key(owner, "").kind)


def admission_time(workload: Obj) -> Instant:
    """Return when a Workload was admitted; the Workload must be admitted."""
    condition = find_condition(workload, lifecycle.ADMITTED)
    assert condition is not None
    return parse_time(condition["lastTransitionTime"])


def current_observation(workload: Obj) -> Condition | None:
    """Return the condition PodsScheduled of an admitted Workload if it was observed in this admission; else None."""
    condition = find_condition(workload, PODS_SCHEDULED)
    if condition is None or parse_time(condition["lastTransitionTime"]) <= admission_time(workload):
        return None
    is_observation = condition["status"] == "True" or condition["reason"] == WAIT_FOR_SCHEDULING
    return condition if is_observation else None


def _is_waiting_for_scheduling(workload: Obj) -> bool:
    observation = current_observation(workload)
    return observation is not None and observation["status"] == "False"


def set_pods_ready(workload: Obj, are_pods_ready: bool, now: Instant, tracks_scheduling: bool = False) -> Obj:
    """Return the Workload with its PodsReady condition updated; the same object if unchanged.

    With `tracks_scheduling`, the reason is WaitForScheduling before the pods were ready and while some have no node.
    """
    reason, message = _pods_ready_reason(workload, are_pods_ready, tracks_scheduling)
    is_ready = reason in _READY_REASONS
    old = find_condition(workload, lifecycle.PODS_READY)
    if old is not None and (old["status"] == "True", old["reason"]) == (is_ready, reason):
        return workload
    draft = StatusDraft(workload, now)
    draft.set_condition(lifecycle.PODS_READY, is_ready, reason, message)
    return draft.result()


def _pods_ready_reason(workload: Obj, are_pods_ready: bool, tracks_scheduling: bool) -> tuple[str, str]:
    if not lifecycle.is_admitted(workload):
        return lifecycle.WAIT_FOR_START, NOT_READY_MESSAGE
    old = find_condition(workload, lifecycle.PODS_READY)
    old_reason = "" if old is None else old["reason"]
    if are_pods_ready:
        return (
            lifecycle.RECOVERED
            if old_reason in {lifecycle.WAIT_FOR_RECOVERY, lifecycle.RECOVERED}
            else lifecycle.STARTED
        ), _ALL_READY_MESSAGE
    if old_reason in _READY_REASONS or old_reason == lifecycle.WAIT_FOR_RECOVERY:
        return lifecycle.WAIT_FOR_RECOVERY, _RECOVERING_MESSAGE
    if tracks_scheduling and _is_waiting_for_scheduling(workload):
        return WAIT_FOR_SCHEDULING, NOT_READY_MESSAGE
    return lifecycle.WAIT_FOR_START, NOT_READY_MESSAGE


def deadline(workload: Obj, policy: PodsReadyPolicy) -> PodsReadyDeadline | None:
    """Return the time by which a Workload's pods must be ready; None if no PodsReady timeout is running."""
    admission, readiness = find_condition(workload, lifecycle.ADMITTED), find_condition(workload, lifecycle.PODS_READY)
    if not admission or admission["status"] != "True" or lifecycle.is_evicted(workload) or not policy.covers(workload):
        return None
    timeout, recovery_timeout = policy.timeouts_of(workload)
    reason = lifecycle.WAIT_FOR_START if readiness is None else readiness["reason"]
    if reason in {lifecycle.WAIT_FOR_START, WAIT_FOR_SCHEDULING}:
        if reason == WAIT_FOR_SCHEDULING and policy.unscheduled_timeout == 0:
            reason = lifecycle.WAIT_FOR_START
        elif reason == WAIT_FOR_SCHEDULING and _is_waiting_for_scheduling(workload):
            timeout = min(timeout, policy.unscheduled_timeout)
        return PodsReadyDeadline(reason, parse_time(admission["lastTransitionTime"]) + timeout)
    if readiness is None or reason != lifecycle.WAIT_FOR_RECOVERY or not recovery_timeout:
        return None
    return PodsReadyDeadline(reason, parse_time(readiness["lastTransitionTime"]) + recovery_timeout)


def evict_after_timeout(workload: Obj, policy: PodsReadyPolicy, cause: str, now: Instant) -> Obj:
    """Return the Workload evicted with a requeue backoff, or with a request to deactivate it after the last retry.

    `cause` is the cause of the PodsReadyDeadline that has passed.
    """
    attempt_count = ((workload.get("status") or {}).get("requeueState") or {}).get("count", 0) + 1
    if policy.backoff_limit_count is not None and attempt_count > policy.backoff_limit_count:
        message = "exceeding the maximum number of re-queuing retries"
        return evictions.request_deactivation(workload, lifecycle.REQUEUING_LIMIT_EXCEEDED, message, now)
    requeue_time = now + exponential_backoff(policy.backoff_base, policy.backoff_max, attempt_count)
    held_back_workload = evictions.hold_back(workload, requeue_time, is_counted=True)
    reason, message = lifecycle.EVICTED_BY_PODS_READY_TIMEOUT, timeout_message(workload)
    return evictions.evict(held_back_workload, reason=reason, message=message, now=now, cause=cause)


def timeout_message(workload: Obj) -> str:
    """Return the condition message of an eviction by the PodsReady timeout."""
    return f"Exceeded the PodsReady timeout {key_of(workload)}"


# The order of pending Workloads after an eviction by a timeout.


def view_by_creation(obj: Obj) -> WorkloadView:
    """Return a Workload's view in which `queued` is the creation time even after an eviction by PodsReadyTimeout."""
    view = workload_view(obj)
    if view.queued == view.created or not _has_pods_ready_timeout(obj):
        return view
    view_copy = WorkloadView(obj, view)
    view_copy.queued = view_copy.created
    return view_copy


def _has_pods_ready_timeout(obj: Obj) -> bool:
    return any(c["type"] == "Evicted" and c["reason"] == "PodsReadyTimeout" for c in obj["status"]["conditions"])
