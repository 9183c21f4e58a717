"""Plan of a Job: the changes of its pods and status and the Events that the next reconcile writes.

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
    PolicyRule,
    Spans,
    backoff_end,
    count_common,
    count_from_annotation,
    failures_since_success,
    finished_at,
    format_indexes,
    has_failed,
    index_backoff_end,
    index_count,
    index_union,
    is_counted,
    observe_job,
    parse_indexes,
    policy_decision,
    spans_contain,
    unused_indexes,
    with_indexes,
)

# Evaluation of a Job's successPolicy. Source: pkg/controller/job/success_policy.go of Kubernetes.


def matching_success_rule_index(spec: JobSpec, succeeded_indexes: Spans) -> int | None:
    """Return the position of the first rule of the Job's success policy that the succeeded indexes meet, or None."""
    if succeeded_indexes:
        for number, rule in enumerate(spec.success_rules):
            if _is_rule_met(rule, succeeded_indexes, spec.completions or 0):
                return number
    return None


# Completion of a Job: whether the Job must end, and why.
#
# The outcome is first recorded as an interim condition, FailureTarget or SuccessCriteriaMet. The Job ends, with Failed
# or Complete, when all its pods have ended and are counted. Source: syncJob in Kubernetes's pkg/controller/job.


def _is_rule_met(rule: PolicyRule, succeeded_indexes: Spans, completions: int) -> bool:
    count, indexes_text = rule.get("succeededCount"), rule.get("succeededIndexes")
    if indexes_text is None:
        return count is not None and index_count(succeeded_indexes) >= count
    rule_indexes = _parse_rule_indexes(indexes_text, completions)
    met_count = count_common(rule_indexes, succeeded_indexes)
    return bool(rule_indexes) and (met_count == index_count(rule_indexes) or (count is not None and met_count >= count))


@lru_cache(maxsize=64)
def _parse_rule_indexes(text: str, completions: int) -> Spans:
    """Parse the `succeededIndexes` of a success policy rule; cached, because each reconcile of the Job needs them."""
    return parse_indexes(text, completions)


FAILURE_TARGET: Final = "FailureTarget"
SUCCESS_CRITERIA_MET: Final = "SuccessCriteriaMet"


class JobOutcome(NamedTuple):
    """How a Job must end: success or failure, with reason and message."""

    succeeded: bool
    reason: str
    message: str

    @property
    def interim_condition_type(self) -> str:
        """The type of the condition set until all pods of the Job have ended: SuccessCriteriaMet or FailureTarget."""
        return SUCCESS_CRITERIA_MET if self.succeeded else FAILURE_TARGET

    @property
    def final_condition_type(self) -> str:
        """The type of the terminal condition of the Job: Complete or Failed."""
        return "Complete" if self.succeeded else "Failed"


COMPLETE: Final = JobOutcome(True, "CompletionsReached", "Reached expected number of succeeded pods")
_TOO_MANY_FAILURES: Final = JobOutcome(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
_DEADLINE_EXCEEDED: Final = JobOutcome(False, "DeadlineExceeded", "Job was active longer than specified deadline")
_TOO_MANY_FAILED_INDEXES: Final = JobOutcome(
    False, "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
)
_FAILED_INDEXES: Final = JobOutcome(False, "FailedIndexes", "Job has failed indexes")


def recorded_outcome(job: ObservedJob) -> JobOutcome | None:
    """Return the outcome in the Job's SuccessCriteriaMet or FailureTarget condition, or None if neither is True."""
    for succeeded, kind in ((True, SUCCESS_CRITERIA_MET), (False, FAILURE_TARGET)):
        condition = find_condition(job.status, kind)
        if condition is not None and condition["status"] == "True":
            return JobOutcome(succeeded, condition.get("reason", ""), condition.get("message", ""))
    return None


def new_outcome(job: ObservedJob, active_since: Instant | None, now: Instant) -> JobOutcome | None:
    """Return the outcome of a Job that must end now, or None; the completion count is not checked here."""
    spec = job.spec
    message = _fail_job_message(job)
    if message is not None:
        return JobOutcome(False, "PodFailurePolicy", message)
    if job.failed_count > spec.backoff_limit or _exceeds_restart_limit(job):
        return _TOO_MANY_FAILURES
    deadline_at = deadline(job, active_since)
    if deadline_at is not None and deadline_at <= now:
        return _DEADLINE_EXCEEDED
    return _index_outcome(job) if spec.indexed else None


def deadline(job: ObservedJob, active_since: Instant | None) -> Instant | None:
    """Return when the activeDeadlineSeconds of the Job expire; None without a deadline or if the Job is suspended."""
    spec = job.spec
    if spec.active_deadline is None or active_since is None or spec.suspended:
        return None
    return active_since + spec.active_deadline


def _fail_job_message(job: ObservedJob) -> str | None:
    """Return the message for the first failed pod that a FailJob rule of the pod failure policy matches, or None."""
    rules = job.spec.failure_rules
    for pod in job.pods if rules else ():
        if has_failed(pod, job.spec) and (message := policy_decision(rules, pod.obj).message) is not None:
            return message
    return None


def _exceeds_restart_limit(job: ObservedJob) -> bool:
    if not job.spec.restarts_in_place:
        return False
    restart_count = 0
    for pod in job.pods:
        if pod.phase in {PENDING, RUNNING}:
            status = pod.obj.get("status") or {}
            for field in ("initContainerStatuses", "containerStatuses"):
                restart_count += sum(container.get("restartCount", 0) for container in status.get(field) or ())
    return restart_count >= max(job.spec.backoff_limit, 1)


def _index_outcome(job: ObservedJob) -> JobOutcome | None:
    spec, failed_count = job.spec, index_count(job.failed_indexes)
    if spec.max_failed_indexes is not None and failed_count > spec.max_failed_indexes:
        return _TOO_MANY_FAILED_INDEXES
    if failed_count and failed_count + job.succeeded_count >= (spec.completions or 0):
        return _FAILED_INDEXES
    rule = matching_success_rule_index(spec, job.succeeded_indexes)
    return None if rule is None else JobOutcome(True, "SuccessPolicy", f"Matched rules at index {rule}")


# The conditions of a Job, as its controller writes them, with their Events.
#
# Unlike for other kinds, a change of only the reason updates the transition time, and a condition that was never True
# is not set to False. Source: ensureJobConditionStatus in Kubernetes's pkg/controller/job.


class JobEvent(NamedTuple):
    """The type, reason and message of an Event about a Job."""

    type: str
    reason: str
    message: str


class JobConditions:
    """The conditions of a Job's status during one status update, and the Events about their changes."""

    def __init__(self, status: Mapping[str, Any], now: Instant) -> None:
        #: The conditions by type, in the order of the status.
        self._conditions: dict[str, Condition] = {c["type"]: c for c in status.get("conditions") or ()}
        self._time = format_time(now)
        self.events: list[JobEvent] = []

    def as_list(self) -> Sequence[Condition]:
        """Return all conditions of the Job as a list for its status."""
        return list(self._conditions.values())

    def set(self, condition_type: str, holds: bool, reason: str, message: str) -> bool:
        """Set a condition of the Job to True, or an existing one to False.

        Return whether the condition's status, reason or message changed.
        """
        old = self._conditions.get(condition_type)
        fields = {"type": condition_type, "status": "True" if holds else "False", "reason": reason, "message": message}
        if (old is None and not holds) or (old is not None and fields.items() <= old.items()):
            return False
        self._conditions[condition_type] = {**fields, "lastProbeTime": self._time, "lastTransitionTime": self._time}
        return True

    def set_suspended(self, suspended: bool) -> None:
        """Set the Job's Suspended condition to True or False; a never suspended Job gets no False condition."""
        reason, message = ("JobSuspended", "Job suspended") if suspended else ("JobResumed", "Job resumed")
        if self.set("Suspended", suspended, reason, message):
            self.events.append(JobEvent("Normal", reason.removeprefix("Job"), message))

    def end(self, outcome: JobOutcome, *, has_too_many_successes: bool) -> None:
        """Set the Job's Complete or Failed condition; record its Events, and a warning if `has_too_many_successes`."""
        self.set(outcome.final_condition_type, True, outcome.reason, outcome.message)
        if not outcome.succeeded:
            self.events.append(JobEvent("Warning", outcome.reason, outcome.message))
            return
        if has_too_many_successes:
            message = "Too many succeeded pods running after completion count reached"
            self.events.append(JobEvent("Warning", "TooManySucceededPods", message))
        self.events.append(JobEvent("Normal", "Completed", "Job completed"))


# Finalizer tracking counts each terminated pod exactly once, even if writes are lost.
#
# 1. The termination is recorded in the Job's status: the uid under `uncountedTerminatedPods`, or the completed index.
# 2. Then the pod's finalizer is removed.
# 3. Then the counter is incremented, in the write that removes the uid from the record.
#
# Each step depends only on what the previous step wrote, and is repeated if it was lost. Source: Kubernetes's
# pkg/controller/job (trackJobStatusAndRemoveFinalizers, canRemoveFinalizer, cleanUncountedPodsWithoutFinalizers).


#: The maximum number of uids in a status, to limit its size.
UNCOUNTED_UIDS_MAX: Final = 500


class PodTerminationRecord(Enum):
    """How a Job's status records the termination of a pod that has the Job finalizer."""

    NOT_YET = auto()  # the pod is still needed or may still run
    NOTHING = auto()  # the pod's end does not count
    SUCCESS = auto()
    FAILURE = auto()


_RECORD_NOT_YET, _RECORD_NOTHING, _RECORD_SUCCESS, _RECORD_FAILURE = (
    PodTerminationRecord.NOT_YET,
    PodTerminationRecord.NOTHING,
    PodTerminationRecord.SUCCESS,
    PodTerminationRecord.FAILURE,
)  # enum attribute access is slow


def releasable_pods(job: ObservedJob, outcome: JobOutcome | None) -> list[JobPod]:
    """Return the pods whose Job finalizer may be removed: the Job's status records their end, or need not record it."""
    termination_records = [(pod, _termination_record(pod, job, outcome)) for pod in job.pods if pod.tracked]
    return [pod for pod, end in termination_records if end is not _RECORD_NOT_YET and _is_recorded(pod, end, job)]


def termination_fields(job: ObservedJob, outcome: JobOutcome | None) -> dict[str, Any]:
    """Return the Job status fields that count ended pods and record new terminations; at most 500 uids are recorded."""
    records = {pod.uid: _termination_record(pod, job, outcome) for pod in job.pods if pod.tracked}
    spec, uncounted_uids = job.spec, job.status.get("uncountedTerminatedPods") or {}
    status_fields: dict[str, Any] = {}
    uid_lists: list[list[str]] = []
    for field, kind in (("succeeded", _RECORD_SUCCESS), ("failed", _RECORD_FAILURE)):
        known_uids = dict.fromkeys(uncounted_uids.get(field) or ())
        tracked_uids = [uid for uid in known_uids if uid in records]
        status_fields[field] = job.status.get(field, 0) + len(known_uids) - len(tracked_uids)
        uid_lists.append(tracked_uids + [uid for uid, end in records.items() if end is kind and uid not in known_uids])
    if spec.indexed:  # completedIndexes records the successes
        uid_lists[0] = []
        status_fields |= {"succeeded": job.succeeded_count, "completedIndexes": format_indexes(job.succeeded_indexes)}
    if spec.backoff_limit_per_index is not None:
        status_fields["failedIndexes"] = format_indexes(job.failed_indexes)
    return {**status_fields, "uncountedTerminatedPods": _limit_uids(*uid_lists)}


def _termination_record(pod: JobPod, job: ObservedJob, outcome: JobOutcome | None) -> PodTerminationRecord:
    if pod.active and outcome is None and not job.is_deleted:
        return _RECORD_NOT_YET
    spec = job.spec
    has_valid_index = not spec.indexed or spec.has_index(pod.index)
    if pod.phase == SUCCEEDED:
        return _RECORD_SUCCESS if has_valid_index and pod.uid not in job.uncounted_failed else _RECORD_NOTHING
    is_failed = has_failed(pod, spec)
    if outcome is None and not job.is_deleted:
        predecessor = job.predecessors.get(pod.index)
        if not is_failed or (predecessor is not None and predecessor.uid == pod.uid):
            return _RECORD_NOT_YET
    if is_failed or (outcome is not None and not outcome.succeeded):  # a failing Job terminates its pods
        return _RECORD_FAILURE if has_valid_index and is_counted(spec.failure_rules, pod.obj) else _RECORD_NOTHING
    return _RECORD_NOTHING


def _is_recorded(pod: JobPod, record: PodTerminationRecord, job: ObservedJob) -> bool:
    if record is _RECORD_FAILURE:
        return pod.uid in job.uncounted_failed
    if record is _RECORD_SUCCESS:
        if job.spec.indexed:
            return spans_contain(job.recorded_indexes, pod.index)
        return pod.uid in job.uncounted_succeeded
    return True


def _limit_uids(succeeded_uids: Sequence[str], failed_uids: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return `uncountedTerminatedPods` with at most 500 uids; pods whose uid is left out keep their finalizer."""
    failed_uids_max = max(0, UNCOUNTED_UIDS_MAX - len(succeeded_uids))
    uids_by_field = {"succeeded": succeeded_uids[:UNCOUNTED_UIDS_MAX], "failed": failed_uids[:failed_uids_max]}
    return {field: uids for field, uids in uids_by_field.items() if uids}


# Parallelism of a Job: the desired number of pods, the surplus pods, and the pods to create now.
#
# Missing pods are created in one batch, up to Kubernetes's limit. Kubernetes starts with one pod and doubles the batch,
# to protect its API server from many rejected writes.
# Sources: Kubernetes's pkg/controller/job (manageJob, activePodsForRemoval, firstPendingIndexes) and pkg/controller
# (ActivePods, the deletion order of pods).


#: The maximum number of pods in one batch; their events trigger the next batch.
CREATED_MAX: Final = 500
_PHASE_ORDER: Final = {PENDING: 0, RUNNING: 2}  # a pod on a lost node is between them


@dataclass(frozen=True, slots=True)
class NewPod:
    """A pod to create: its completion index and how often earlier pods of the index failed."""

    index: int = NO_INDEX
    #: The numbers of counted and ignored failures of the index; None if the Job does not count failures by index.
    failure_count: int | None = None
    ignored_count: int = 0


class PodChanges(NamedTuple):
    """The pods that a Job creates and deletes now, and when to reconcile it again (None: only after an event)."""

    to_create: Sequence[NewPod] = ()
    #: Pods to delete that do not count as failures.
    to_dismiss: Sequence[JobPod] = ()
    #: Pods that a failing Job deletes, which count as failures.
    to_delete: Sequence[JobPod] = ()
    wake_at: Instant | None = None


def plan_pod_changes(job: ObservedJob, failure_times: Iterable[Instant], now: Instant) -> PodChanges:
    """Return the pods to create and delete for an unfinished Job, and when a backoff ends.

    `failure_times` are the times at which pods without the Job finalizer failed.
    """
    if job.spec.suspended:
        return PodChanges(to_dismiss=job.active_pods)
    desired_count = _desired_active_count(job)
    surplus_pods = _surplus_pods(job, max(0, len(job.active_pods) - desired_count))
    if surplus_pods:
        return PodChanges(to_dismiss=surplus_pods)
    missing_count = min(desired_count - len(job.active_pods) - len(_awaited_terminating_pods(job)), CREATED_MAX)
    if missing_count <= 0:
        return PodChanges()
    if job.spec.backoff_limit_per_index is not None:
        return _pods_after_backoff(job, _missing_indexes(job, missing_count), now)
    retry_time = backoff_end(_failures_since_success(job, failure_times))
    if retry_time > now:
        return PodChanges(wake_at=retry_time)
    indexes = _missing_indexes(job, missing_count) if job.spec.indexed else [NO_INDEX] * missing_count
    return PodChanges(to_create=[NewPod(index) for index in indexes])


def _desired_active_count(job: ObservedJob) -> int:
    """Return how many active pods the Job should have. Without completions, it creates none after its first success."""
    spec = job.spec
    if spec.completions is not None:
        return max(0, min(spec.parallelism, spec.completions - job.succeeded_count))
    return len(job.active_pods) if job.succeeded_count else spec.parallelism


def _surplus_pods(job: ObservedJob, surplus_count_min: int) -> list[JobPod]:
    """Return active pods to delete: at least `surplus_count_min`, including all with an invalid or duplicate index."""
    if not surplus_count_min and _have_distinct_indexes(job):
        return []
    candidate_pods, surplus_pods = sorted(job.active_pods, key=_deletion_order), []
    if job.spec.indexed:
        best_pod_by_index = {pod.index: pod for pod in candidate_pods if job.spec.has_index(pod.index)}
        surplus_pods = [pod for pod in candidate_pods if best_pod_by_index.get(pod.index) is not pod]
        candidate_pods = [pod for pod in candidate_pods if best_pod_by_index.get(pod.index) is pod]
    return surplus_pods + candidate_pods[: max(0, surplus_count_min - len(surplus_pods))]


def _have_distinct_indexes(job: ObservedJob) -> bool:
    if not job.spec.indexed:
        return True
    indexes = {pod.index for pod in job.active_pods if job.spec.has_index(pod.index)}
    return len(indexes) == len(job.active_pods)


def _deletion_order(pod: JobPod) -> tuple[bool, int, bool, Instant, int, Instant]:
    """Return the sort key of a Job's surplus pods: unscheduled, pending and unready pods are deleted first."""
    status = pod.obj.get("status") or {}
    condition = find_condition(status, READY) if pod.ready else None
    restart_count = max((c.get("restartCount", 0) for c in status.get("containerStatuses") or ()), default=0)
    return (
        bool(pod.obj["spec"].get("nodeName")),
        _PHASE_ORDER.get(pod.phase, 1),
        condition is not None,
        -parse_time(condition["lastTransitionTime"]) if condition is not None else 0,
        -restart_count,
        -parse_time(pod.obj["metadata"]["creationTimestamp"]),
    )


def _missing_indexes(job: ObservedJob, count: int) -> list[int]:
    spec = job.spec
    pod_indexes = [
        pod.index for pod in (*job.active_pods, *_awaited_terminating_pods(job)) if spec.has_index(pod.index)
    ]
    used_indexes = with_indexes(job.succeeded_indexes, pod_indexes)
    return unused_indexes(index_union(used_indexes, job.failed_indexes), count, spec.completions or 0)


def _awaited_terminating_pods(job: ObservedJob) -> list[JobPod]:
    return [pod for pod in job.pods if pod.terminating] if job.spec.replaces_after_end else []


def _failures_since_success(job: ObservedJob, failure_times: Iterable[Instant]) -> list[Instant]:
    """Return when pods of the Job failed since its last success, for the backoff: the latest 7 times, sorted.

    `failure_times` are the times at which pods without the Job finalizer failed.
    """
    pods = [pod for pod in job.pods if pod.tracked and not pod.active]
    if job.spec.indexed:
        pods = [pod for pod in pods if job.spec.has_index(pod.index)]
    new_failure_times = [finished_at(pod.obj) for pod in pods if has_failed(pod, job.spec)]
    success_times = [finished_at(pod.obj) for pod in pods if pod.phase == SUCCEEDED]
    return failures_since_success([*failure_times, *new_failure_times], success_times)


def _pods_after_backoff(job: ObservedJob, indexes: Sequence[int], now: Instant) -> PodChanges:
    pods_to_create: list[NewPod] = []
    backoff_ends: list[Instant] = []
    for index in indexes:
        predecessor = job.predecessors.get(index)
        creation_due_at = 0 if predecessor is None else index_backoff_end(predecessor.obj)
        if creation_due_at <= now:
            pods_to_create.append(_successor_pod(index, predecessor, job))
        else:
            backoff_ends.append(creation_due_at)
    return PodChanges(to_create=pods_to_create, wake_at=min(backoff_ends, default=None))


def _successor_pod(index: int, failed_pod: JobPod | None, job: ObservedJob) -> NewPod:
    if failed_pod is None:
        return NewPod(index, 0)
    counts_failure = is_counted(job.spec.failure_rules, failed_pod.obj)
    failure_count = count_from_annotation(failed_pod.obj, well_known.INDEX_FAILURES) + counts_failure
    ignored_count = count_from_annotation(failed_pod.obj, well_known.INDEX_IGNORED_FAILURES) + (not counts_failure)
    return NewPod(index, failure_count, ignored_count)


#: Fields that stay in the status even if they are empty.
_ALWAYS_WRITTEN_FIELDS: Final = ("ready", "terminating", "uncountedTerminatedPods", "failedIndexes")


class JobPlan(NamedTuple):
    """The next writes for a Job: finalizers to remove, pods to create and delete, its status, and Events."""

    #: Pods whose finalizer must be removed, because the status records their termination.
    pods_to_release: Sequence[JobPod] = ()
    pod_changes: PodChanges = PodChanges()
    #: The desired status; None to leave it unchanged.
    status: Mapping[str, Any] | None = None
    events: Sequence[JobEvent] = ()
    wake_at: Instant | None = None


def plan_job(job: Obj, pods: Sequence[JobPod], failure_times: Iterable[Instant], now: Instant) -> JobPlan:
    """Return the next writes for an unfinished Job.

    `failure_times` are the times at which pods without the Job finalizer failed. A plan either releases pods or writes
    the status, never both. So a finalizer is removed only after the status that records the termination is known to be
    written. The release triggers the next reconcile.
    """
    observed_job = observe_job(job, pods)
    outcome = recorded_outcome(observed_job)
    pods_to_release = releasable_pods(observed_job, outcome)
    if pods_to_release:
        return JobPlan(pods_to_release=pods_to_release)
    active_since = _active_since(observed_job, now)
    if outcome is None:
        outcome = new_outcome(observed_job, active_since, now)
    pod_changes = _plan_pods(observed_job, outcome, failure_times, now)
    if outcome is None and _is_complete(observed_job, pod_changes):
        outcome = COMPLETE
    wake_times = (pod_changes.wake_at, deadline(observed_job, active_since) if outcome is None else None)
    wake_at = min((instant for instant in wake_times if instant is not None), default=None)
    status, events = _new_status(observed_job, outcome, pod_changes, active_since, now)
    return JobPlan(pod_changes=pod_changes, status=status, events=events, wake_at=wake_at)


def _active_since(observed_job: ObservedJob, now: Instant) -> Instant | None:
    if observed_job.spec.suspended:
        return None
    text = observed_job.status.get("startTime")
    return now if not text or is_true(observed_job.status, "Suspended") else parse_time(text)


def _plan_pods(
    observed_job: ObservedJob, outcome: JobOutcome | None, failure_times: Iterable[Instant], now: Instant
) -> PodChanges:
    if outcome is None:
        return PodChanges() if observed_job.is_deleted else plan_pod_changes(observed_job, failure_times, now)
    pods = observed_job.active_pods
    return PodChanges(to_dismiss=pods) if outcome.succeeded else PodChanges(to_delete=pods)


def _is_complete(observed_job: ObservedJob, pod_changes: PodChanges) -> bool:
    if pod_changes.to_create or len(observed_job.active_pods) > len(pod_changes.to_dismiss):
        return False
    return observed_job.succeeded_count >= (
        1 if observed_job.spec.completions is None else observed_job.spec.completions
    )


def _new_status(
    job: ObservedJob, outcome: JobOutcome | None, pod_changes: PodChanges, active_since: Instant | None, now: Instant
) -> tuple[Mapping[str, Any], Sequence[JobEvent]]:
    conditions = JobConditions(job.status, now)
    status = {**job.status, **termination_fields(job, outcome), **_pod_counts(job, pod_changes, active_since)}
    if active_since is not None:
        status["startTime"] = format_time(active_since)
    if outcome is not None:
        conditions.set(outcome.interim_condition_type, True, outcome.reason, outcome.message)
        if _all_pods_counted(job):
            conditions.end(outcome, has_too_many_successes=job.succeeded_count > _success_count_max(job))
            status["completionTime"] = format_time(now) if outcome.succeeded else None
    elif not job.is_deleted:
        conditions.set_suspended(job.spec.suspended)
        if job.spec.suspended:
            status["startTime"] = None
    status["conditions"] = conditions.as_list()
    return {name: value for name, value in status.items() if value or name in _ALWAYS_WRITTEN_FIELDS}, conditions.events


def _pod_counts(observed_job: ObservedJob, pod_changes: PodChanges, active_since: Instant | None) -> dict[str, Any]:
    """Return the Job status fields `active`, `ready` and `terminating`: pod counts after the planned changes.

    When a Job starts, the pods to create count as active in the same write. Later only existing pods count, because the
    creation of new pods may be rejected.
    """
    deleted_uids = {pod.uid for pod in (*pod_changes.to_dismiss, *pod_changes.to_delete)}
    remaining_pods = [pod for pod in observed_job.active_pods if pod.uid not in deleted_uids]
    is_new_start_time = active_since is not None and observed_job.status.get("startTime") != format_time(active_since)
    terminating_count = sum(pod.terminating for pod in observed_job.pods) + len(pod_changes.to_delete)
    terminating_count += sum(
        bool(pod.obj["spec"].get("nodeName")) for pod in pod_changes.to_dismiss
    )  # unscheduled pods are removed at once
    return {
        "active": len(remaining_pods) + (len(pod_changes.to_create) if is_new_start_time else 0),
        "ready": sum(pod.ready for pod in remaining_pods),
        "terminating": terminating_count,
    }


def _success_count_max(observed_job: ObservedJob) -> int:
    return observed_job.succeeded_count if observed_job.spec.completions is None else observed_job.spec.completions


def _all_pods_counted(observed_job: ObservedJob) -> bool:
    return not any(pod.tracked or not pod.ended for pod in observed_job.pods)
