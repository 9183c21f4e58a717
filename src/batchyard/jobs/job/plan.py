"""Plan of a Job: the next changes of its pods and status, and its Events.

Source: syncJob in Kubernetes's pkg/controller/job.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.meta import Condition, Obj, find_condition, is_true
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.pods import PENDING, READY, RUNNING, SUCCEEDED
from batchyard.base.instant import Instant
from batchyard.jobs.job.spec import (
    NO_INDEX,
    JobPod,
    JobSpec,
    ObservedJob,
    Rule,
    Spans,
    contains,
    count_noted,
    due_after,
    finished_at,
    first_missing,
    has_failed,
    in_common,
    index_due_after,
    is_counted,
    observe_job,
    parsed,
    policy_decision,
    since_success,
    total,
    union,
    with_indexes,
    written,
)

# --- success policy ---
#
# Evaluates a Job's successPolicy. Source: pkg/controller/job/success_policy.go of Kubernetes.


def rule_met(spec: JobSpec, succeeded: Spans) -> int | None:
    """Return the number of the first rule that the succeeded indexes meet."""
    if succeeded:
        for number, rule in enumerate(spec.success_rules):
            if _is_met(rule, succeeded, spec.completions or 0):
                return number
    return None


# --- completion ---
#
# Completion of a Job: whether it is to end, and why.
#
# The outcome is first recorded as an interim condition, FailureTarget or SuccessCriteriaMet. The Job ends, with Failed
# or Complete, when all its pods have ended and are counted. Source: syncJob in Kubernetes's pkg/controller/job.


def _is_met(rule: Rule, succeeded: Spans, completions: int) -> bool:
    """Report whether all indexes of a rule succeeded, or its required count of them (of all if it lists none)."""
    count, text = rule.get("succeededCount"), rule.get("succeededIndexes")
    if text is None:
        return count is not None and total(succeeded) >= count
    wanted = _parsed_once(text, completions)
    found = in_common(wanted, succeeded)
    return bool(wanted) and (found == total(wanted) or (count is not None and found >= count))


@lru_cache(maxsize=64)
def _parsed_once(text: str, completions: int) -> Spans:
    """Parse the indexes of a rule, up to 64 KB; cached, because a Job is reconciled on every change of its pods."""
    return parsed(text, completions)


FAILURE_TARGET: Final = "FailureTarget"
SUCCESS_CRITERIA_MET: Final = "SuccessCriteriaMet"


class JobOutcome(NamedTuple):
    """The outcome of a Job that is to end."""

    succeeded: bool
    reason: str
    message: str

    @property
    def interim(self) -> str:
        """The type of the interim condition that records it."""
        return SUCCESS_CRITERIA_MET if self.succeeded else FAILURE_TARGET

    @property
    def final(self) -> str:
        """The type of the terminal condition of the Job."""
        return "Complete" if self.succeeded else "Failed"


COMPLETE: Final = JobOutcome(True, "CompletionsReached", "Reached expected number of succeeded pods")
_TOO_MANY_FAILURES: Final = JobOutcome(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
_TOO_LATE: Final = JobOutcome(False, "DeadlineExceeded", "Job was active longer than specified deadline")
_TOO_MANY_INDEXES: Final = JobOutcome(
    False, "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
)
_FAILED_INDEXES: Final = JobOutcome(False, "FailedIndexes", "Job has failed indexes")


def recorded_outcome(standing: ObservedJob) -> JobOutcome | None:
    """Return the recorded outcome. It is final."""
    for succeeded, kind in ((True, SUCCESS_CRITERIA_MET), (False, FAILURE_TARGET)):
        condition = find_condition(standing.status, kind)
        if condition is not None and condition["status"] == "True":
            return JobOutcome(succeeded, condition.get("reason", ""), condition.get("message", ""))
    return None


def new_outcome(standing: ObservedJob, started: Instant | None, now: Instant) -> JobOutcome | None:
    """Return the outcome if the Job is to end now; completion is checked later, after its pods are processed."""
    spec = standing.spec
    message = _failing_message(standing)
    if message is not None:
        return JobOutcome(False, "PodFailurePolicy", message)
    if standing.failed > spec.backoff_limit or _restarted_too_often(standing):
        return _TOO_MANY_FAILURES
    due = deadline(standing, started)
    if due is not None and due <= now:
        return _TOO_LATE
    return _index_verdict(standing) if spec.indexed else None


def deadline(standing: ObservedJob, started: Instant | None) -> Instant | None:
    """Return when the active deadline of the Job expires."""
    spec = standing.spec
    if spec.active_deadline is None or started is None or spec.suspended:
        return None
    return started + spec.active_deadline


def _failing_message(standing: ObservedJob) -> str | None:
    """Return the failure policy's message for the first pod that fails the whole Job."""
    rules = standing.spec.failure_rules
    for pod in standing.pods if rules else ():
        if has_failed(pod, standing.spec) and (message := policy_decision(rules, pod.obj).message) is not None:
            return message
    return None


def _restarted_too_often(standing: ObservedJob) -> bool:
    """Report whether container restarts within pods have used up the backoff limit."""
    if not standing.spec.restarts_in_place:
        return False
    restarts = 0
    for pod in standing.pods:
        if pod.phase in {PENDING, RUNNING}:
            status = pod.obj.get("status") or {}
            for field in ("initContainerStatuses", "containerStatuses"):
                restarts += sum(container.get("restartCount", 0) for container in status.get(field) or ())
    return restarts >= max(standing.spec.backoff_limit, 1)


def _index_verdict(standing: ObservedJob) -> JobOutcome | None:
    """Return the outcome that follows from the failed or succeeded indexes."""
    spec, failed = standing.spec, total(standing.failed_indexes)
    if spec.max_failed_indexes is not None and failed > spec.max_failed_indexes:
        return _TOO_MANY_INDEXES
    if failed and failed + standing.succeeded >= (spec.completions or 0):
        return _FAILED_INDEXES
    rule = rule_met(spec, standing.succeeded_indexes)
    return None if rule is None else JobOutcome(True, "SuccessPolicy", f"Matched rules at index {rule}")


# --- conditions ---
#
# The conditions of a Job, as its controller writes them, with their Events.
#
# Unlike for other kinds, a change of only the reason is a transition too, and False is not recorded for a condition
# that never was True. Source: ensureJobConditionStatus in Kubernetes's pkg/controller/job.


class JobEvent(NamedTuple):
    """An Event about the Job."""

    type: str
    reason: str
    message: str


class JobConditions:
    """The conditions of one status during an update."""

    def __init__(self, status: Mapping[str, Any], now: Instant) -> None:
        #: By type, in the order of the status.
        self._conditions: dict[str, Condition] = {c["type"]: c for c in status.get("conditions") or ()}
        self._time = format_time(now)
        self.reported: list[JobEvent] = []

    def listed(self) -> Sequence[Condition]:
        """Return all conditions."""
        return list(self._conditions.values())

    def set(self, kind: str, holds: bool, reason: str, message: str) -> bool:
        """Set a condition. Return whether it changed."""
        old = self._conditions.get(kind)
        fields = {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}
        if (old is None and not holds) or (old is not None and fields.items() <= old.items()):
            return False
        self._conditions[kind] = {**fields, "lastProbeTime": self._time, "lastTransitionTime": self._time}
        return True

    def set_suspended(self, suspended: bool) -> None:
        """Set the Suspended condition; a Job that was never suspended gets none."""
        reason, message = ("JobSuspended", "Job suspended") if suspended else ("JobResumed", "Job resumed")
        if self.set("Suspended", suspended, reason, message):
            self.reported.append(JobEvent("Normal", reason.removeprefix("Job"), message))

    def end(self, verdict: JobOutcome, *, too_many: bool) -> None:
        """End the Job; `too_many` is whether more pods than needed succeeded."""
        self.set(verdict.final, True, verdict.reason, verdict.message)
        if not verdict.succeeded:
            self.reported.append(JobEvent("Warning", verdict.reason, verdict.message))
            return
        if too_many:
            message = "Too many succeeded pods running after completion count reached"
            self.reported.append(JobEvent("Warning", "TooManySucceededPods", message))
        self.reported.append(JobEvent("Normal", "Completed", "Job completed"))


# --- finalizer tracking ---
#
# Finalizer tracking: counts each terminated pod exactly once, even if writes are lost.
#
# 1. The termination is recorded in the Job's status: the uid under `uncountedTerminatedPods`, or the completed index.
# 2. Then the pod's finalizer is removed.
# 3. Then the counter is incremented, in the write that removes the uid from the record.
#
# Each step depends only on what the previous step wrote, and is repeated if it was lost. Source: Kubernetes's
# pkg/controller/job (trackJobStatusAndRemoveFinalizers, canRemoveFinalizer, cleanUncountedPodsWithoutFinalizers).


#: The maximum number of uids in a status, to limit its size.
UNCOUNTED_MAX: Final = 500


class PodTerminationRecord(Enum):
    """How the termination of a tracked pod is recorded."""

    NOT_YET = auto()  # it is needed, or may still run
    NOTHING = auto()
    SUCCESS = auto()
    FAILURE = auto()


_NOT_YET, _NOTHING, _SUCCESS, _FAILURE = (
    PodTerminationRecord.NOT_YET,
    PodTerminationRecord.NOTHING,
    PodTerminationRecord.SUCCESS,
    PodTerminationRecord.FAILURE,
)  # enum attribute access is slow


def releasable(standing: ObservedJob, verdict: JobOutcome | None) -> list[JobPod]:
    """Return the tracked pods whose termination is recorded under that outcome: their finalizer may be removed."""
    ends = [(pod, _end(pod, standing, verdict)) for pod in standing.pods if pod.tracked]
    return [pod for pod, end in ends if end is not _NOT_YET and _is_recorded(pod, end, standing)]


def recorded(standing: ObservedJob, verdict: JobOutcome | None) -> dict[str, Any]:
    """Return the status fields about terminated pods, with all due terminations recorded."""
    ends = {pod.uid: _end(pod, standing, verdict) for pod in standing.pods if pod.tracked}
    spec, uncounted = standing.spec, standing.status.get("uncountedTerminatedPods") or {}
    fields: dict[str, Any] = {}
    listed: list[list[str]] = []
    for field, kind in (("succeeded", _SUCCESS), ("failed", _FAILURE)):
        known = dict.fromkeys(uncounted.get(field) or ())
        kept = [uid for uid in known if uid in ends]
        fields[field] = standing.status.get(field, 0) + len(known) - len(kept)
        listed.append(kept + [uid for uid, end in ends.items() if end is kind and uid not in known])
    if spec.indexed:  # each index is its own record
        listed[0] = []
        fields |= {"succeeded": standing.succeeded, "completedIndexes": written(standing.succeeded_indexes)}
    if spec.backoff_limit_per_index is not None:
        fields["failedIndexes"] = written(standing.failed_indexes)
    return {**fields, "uncountedTerminatedPods": _bounded(*listed)}


def _end(pod: JobPod, standing: ObservedJob, verdict: JobOutcome | None) -> PodTerminationRecord:
    """Return how the termination of a tracked pod is to be recorded."""
    spec = standing.spec
    has_place = not spec.indexed or spec.has_index(pod.index)
    if pod.phase == SUCCEEDED:
        return _SUCCESS if has_place and pod.uid not in standing.uncounted_failed else _NOTHING
    failed = has_failed(pod, spec)
    if verdict is None and not standing.leaving:
        predecessor = standing.predecessors.get(pod.index)
        if not failed or (predecessor is not None and predecessor.uid == pod.uid):
            return _NOT_YET
    if failed or (verdict is not None and not verdict.succeeded):  # a failing Job terminates its pods
        return _FAILURE if has_place and is_counted(spec.failure_rules, pod.obj) else _NOTHING
    return _NOTHING


def _is_recorded(pod: JobPod, end: PodTerminationRecord, standing: ObservedJob) -> bool:
    """Report whether the status records this termination of a pod."""
    if end is _FAILURE:
        return pod.uid in standing.uncounted_failed
    if end is _SUCCESS:
        if standing.spec.indexed:
            return contains(standing.recorded_indexes, pod.index)
        return pod.uid in standing.uncounted_succeeded
    return True


def _bounded(succeeded: Sequence[str], failed: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the uids for the status, up to the limit; the other pods stay tracked until there is space."""
    listed = {"succeeded": succeeded[:UNCOUNTED_MAX], "failed": failed[: max(0, UNCOUNTED_MAX - len(succeeded))]}
    return {field: uids for field, uids in listed.items() if uids}


# --- parallelism ---
#
# Parallelism of a Job: how many pods it should have, which are surplus, and which may be created now.
#
# Missing pods are created in one batch, up to the limit of Kubernetes, because a Job may want more pods than fit while
# others wait. Kubernetes starts with one and doubles, to protect its API server from many rejected writes.
# Sources: Kubernetes's pkg/controller/job (manageJob, activePodsForRemoval, firstPendingIndexes) and pkg/controller
# (ActivePods, the order in which pods are given up).


#: The number of pods created in one batch. Their events trigger the next one.
CREATED_MAX: Final = 500
_PHASES: Final = {PENDING: 0, RUNNING: 2}  # one on a lost node is between them


@dataclass(frozen=True, slots=True)
class NewPod:
    """A pod to create."""

    index: int = NO_INDEX
    #: The counted and ignored failures of its index; None if they are not counted.
    failures: int | None = None
    ignored: int = 0


class PodChanges(NamedTuple):
    """A change of the number of pods."""

    create: Sequence[NewPod] = ()
    #: Surplus pods, which do not count as failures.
    dismiss: Sequence[JobPod] = ()
    #: Pods deleted with the Job, which count as failures.
    delete: Sequence[JobPod] = ()
    wake_at: Instant | None = None


def plan_pod_changes(standing: ObservedJob, failures: Iterable[Instant], now: Instant) -> PodChanges:
    """Return the change for a continuing Job; `failures` are the times of failures of untracked pods."""
    if standing.spec.suspended:
        return PodChanges(dismiss=standing.active)
    wanted = _wanted(standing)
    surplus = _surplus(standing, max(0, len(standing.active) - wanted))
    if surplus:
        return PodChanges(dismiss=surplus)
    missing = min(wanted - len(standing.active) - len(_awaited(standing)), CREATED_MAX)
    if missing <= 0:
        return PodChanges()
    if standing.spec.backoff_limit_per_index is not None:
        return _indexes_due(standing, _missing_indexes(standing, missing), now)
    waits_until = due_after(_failures(standing, failures))
    if waits_until > now:
        return PodChanges(wake_at=waits_until)
    indexes = _missing_indexes(standing, missing) if standing.spec.indexed else [NO_INDEX] * missing
    return PodChanges(create=[NewPod(index) for index in indexes])


def _wanted(standing: ObservedJob) -> int:
    """Return the desired number of active pods."""
    spec = standing.spec
    if spec.completions is not None:
        return max(0, min(spec.parallelism, spec.completions - standing.succeeded))
    return len(standing.active) if standing.succeeded else spec.parallelism


def _surplus(standing: ObservedJob, at_least: int) -> list[JobPod]:
    """Return the surplus pods: `at_least` of them, and all with an invalid or duplicate index."""
    if not at_least and _all_have_places(standing):
        return []
    kept, surplus = sorted(standing.active, key=_worth), []
    if standing.spec.indexed:
        best = {pod.index: pod for pod in kept if standing.spec.has_index(pod.index)}
        surplus = [pod for pod in kept if best.get(pod.index) is not pod]
        kept = [pod for pod in kept if best.get(pod.index) is pod]
    return surplus + kept[: max(0, at_least - len(surplus))]


def _all_have_places(standing: ObservedJob) -> bool:
    """Report whether each active pod has a valid index of its own."""
    if not standing.spec.indexed:
        return True
    indexes = {pod.index for pod in standing.active if standing.spec.has_index(pod.index)}
    return len(indexes) == len(standing.active)


def _worth(pod: JobPod) -> tuple[bool, int, bool, Instant, int, Instant]:
    """Return the sort key for surplus pods: the least advanced first, then the newest."""
    status = pod.obj.get("status") or {}
    ready = find_condition(status, READY) if pod.ready else None
    restarts = max((c.get("restartCount", 0) for c in status.get("containerStatuses") or ()), default=0)
    return (
        bool(pod.obj["spec"].get("nodeName")),
        _PHASES.get(pod.phase, 1),
        ready is not None,
        -parse_time(ready["lastTransitionTime"]) if ready is not None else 0,
        -restarts,
        -parse_time(pod.obj["metadata"]["creationTimestamp"]),
    )


def _missing_indexes(standing: ObservedJob, count: int) -> list[int]:
    """Return the first indexes that neither succeeded, nor finally failed, nor have a pod."""
    spec = standing.spec
    placed = [pod.index for pod in (*standing.active, *_awaited(standing)) if spec.has_index(pod.index)]
    taken = with_indexes(standing.succeeded_indexes, placed)
    return first_missing(union(taken, standing.failed_indexes), count, spec.completions or 0)


def _awaited(standing: ObservedJob) -> list[JobPod]:
    """Return the terminating pods that are replaced only when they have ended."""
    return [pod for pod in standing.pods if pod.terminating] if standing.spec.waits_for_the_end else []


def _failures(standing: ObservedJob, failures: Iterable[Instant]) -> list[Instant]:
    """Return the times of failures since the last success."""
    tracked = [pod for pod in standing.pods if pod.tracked and not pod.active]
    if standing.spec.indexed:
        tracked = [pod for pod in tracked if standing.spec.has_index(pod.index)]
    failed = [finished_at(pod.obj) for pod in tracked if has_failed(pod, standing.spec)]
    return since_success([*failures, *failed], [finished_at(p.obj) for p in tracked if p.phase == SUCCEEDED])


def _indexes_due(standing: ObservedJob, indexes: Sequence[int], now: Instant) -> PodChanges:
    """Return new pods for the indexes whose own backoff is over."""
    create: list[NewPod] = []
    waits: list[Instant] = []
    for index in indexes:
        predecessor = standing.predecessors.get(index)
        due = 0 if predecessor is None else index_due_after(predecessor.obj)
        if due <= now:
            create.append(_successor(index, predecessor, standing))
        else:
            waits.append(due)
    return PodChanges(create=create, wake_at=min(waits, default=None))


def _successor(index: int, failed: JobPod | None, standing: ObservedJob) -> NewPod:
    """Return the next pod of an index, with the failure counts of the previous ones."""
    if failed is None:
        return NewPod(index, 0)
    counted = is_counted(standing.spec.failure_rules, failed.obj)
    failures = count_noted(failed.obj, well_known.INDEX_FAILURES) + counted
    ignored = count_noted(failed.obj, well_known.INDEX_IGNORED_FAILURES) + (not counted)
    return NewPod(index, failures, ignored)


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
