"""Plan of a Job: the next changes of its pods and status, and its Events.

Source: syncJob in Kubernetes's pkg/controller/job.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.api.times import format_time, parse_time
from batchyard.base.instant import Instant
from batchyard.jobs.job.completion import (
    COMPLETE,
    JobConditions,
    JobEvent,
    JobOutcome,
    deadline,
    new_outcome,
    recorded_outcome,
)
from batchyard.jobs.job.finalizer_tracking import recorded, releasable
from batchyard.jobs.job.observed import JobPod, ObservedJob, observe_job
from batchyard.jobs.job.parallelism import PodChanges, plan_pod_changes

#: Fields that a status has even if they are empty.
_KEPT_IF_EMPTY: Final = ("ready", "terminating", "uncountedTerminatedPods", "failedIndexes")


class JobPlan(NamedTuple):
    """The next changes of a Job."""

    #: Pods whose finalizer is removed, because their termination is recorded.
    release: Sequence[JobPod] = ()
    change: PodChanges = PodChanges()
    #: The desired status; None to leave it unchanged.
    status: Mapping[str, Any] | None = None
    reported: Sequence[JobEvent] = ()
    wake_at: Instant | None = None


def plan_job(job: Obj, pods: Sequence[JobPod], failures: Iterable[Instant], now: Instant) -> JobPlan:
    """Return the plan of an unfinished Job; `failures` are the times of failures of untracked pods.

    Either pods are released or the status is written, never both. A finalizer is thus removed only after the record
    that it protects is known to be written, even if a write is lost. The release triggers the next reconcile.
    """
    state = observe_job(job, pods)
    verdict = recorded_outcome(state)
    release = releasable(state, verdict)
    if release:
        return JobPlan(release=release)
    started = _started(state, now)
    if verdict is None:
        verdict = new_outcome(state, started, now)
    change = _change(state, verdict, failures, now)
    if verdict is None and _is_complete(state, change):
        verdict = COMPLETE
    due = (change.wake_at, deadline(state, started) if verdict is None else None)
    wake_at = min((instant for instant in due if instant is not None), default=None)
    status, reported = _status(state, verdict, change, started, now)
    return JobPlan(change=change, status=status, reported=reported, wake_at=wake_at)


def _started(state: ObservedJob, now: Instant) -> Instant | None:
    """Return since when the Job is active; a resumed Job restarts, and a suspended one has no start time."""
    if state.spec.suspended:
        return None
    text = state.status.get("startTime")
    return now if not text or is_true(state.status, "Suspended") else parse_time(text)


def _change(state: ObservedJob, verdict: JobOutcome | None, failures: Iterable[Instant], now: Instant) -> PodChanges:
    """Return the change of pods. Those deleted by a failing Job count as failures; others do not."""
    if verdict is not None:
        return PodChanges(dismiss=state.active) if verdict.succeeded else PodChanges(delete=state.active)
    return PodChanges() if state.leaving else plan_pod_changes(state, failures, now)


def _is_complete(state: ObservedJob, change: PodChanges) -> bool:
    """Report whether enough pods succeeded and none is active."""
    if change.create or len(state.active) > len(change.dismiss):
        return False
    return state.succeeded >= (1 if state.spec.completions is None else state.spec.completions)


def _status(
    state: ObservedJob, verdict: JobOutcome | None, change: PodChanges, started: Instant | None, now: Instant
) -> tuple[Mapping[str, Any], Sequence[JobEvent]]:
    """Return the status after the change, and the Events about it."""
    conditions = JobConditions(state.status, now)
    status = {**state.status, **recorded(state, verdict), **_counts(state, change, started)}
    if started is not None:
        status["startTime"] = format_time(started)
    if verdict is not None:
        conditions.set(verdict.interim, True, verdict.reason, verdict.message)
        if _nothing_is_left(state):
            conditions.end(verdict, too_many=state.succeeded > _most(state))
            status["completionTime"] = format_time(now) if verdict.succeeded else None
    elif not state.leaving:
        conditions.set_suspended(state.spec.suspended)
        if state.spec.suspended:
            status["startTime"] = None
    status["conditions"] = conditions.listed()
    return {name: value for name, value in status.items() if value or name in _KEPT_IF_EMPTY}, conditions.reported


def _counts(state: ObservedJob, change: PodChanges, started: Instant | None) -> dict[str, Any]:
    """Return the counts of active, ready and terminating pods.

    When a Job starts, the pods to be created are counted as active in the same write. Later only existing ones count,
    because new ones may be rejected.
    """
    gone = {pod.uid for pod in (*change.dismiss, *change.delete)}
    kept = [pod for pod in state.active if pod.uid not in gone]
    starts = started is not None and state.status.get("startTime") != format_time(started)
    terminating = sum(pod.terminating for pod in state.pods) + len(change.delete)
    terminating += sum(
        bool(pod.obj["spec"].get("nodeName")) for pod in change.dismiss
    )  # unscheduled pods are removed at once
    return {
        "active": len(kept) + (len(change.create) if starts else 0),
        "ready": sum(pod.ready for pod in kept),
        "terminating": terminating,
    }


def _most(state: ObservedJob) -> int:
    """Return how many pods may succeed."""
    return state.succeeded if state.spec.completions is None else state.spec.completions


def _nothing_is_left(state: ObservedJob) -> bool:
    """Report whether all pods have ended and are counted."""
    return not any(pod.tracked or not pod.ended for pod in state.pods)
