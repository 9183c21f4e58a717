"""JobSet policies (failure, startup, success, resumption), and the next status of a JobSet during a reconcile.

The failure policy applies the action of the first rule that matches a failed Job; the message names the matching Job
that failed first. A policy without a matching rule restarts the JobSet up to maxRestarts times. A JobSet without a
policy fails. The action RestartJob and its variant belong to a disabled feature gate: JobSets that use them are
rejected on creation.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from batchyard.api.meta import Obj, with_path
from batchyard.api.patterns import matches_anywhere
from batchyard.api.times import format_time, parse_time
from batchyard.api.views.node import parallel_pod_count
from batchyard.base.instant import Instant
from batchyard.jobs.jobset import spec
from batchyard.jobs.jobset.spec import (
    ChildJobs,
    ReasonMessage,
    find_terminal_condition,
    is_suspended,
    replicas_of,
    replicated_job_name,
    replicated_jobs,
    starts_in_order,
)

ReplicatedJobCounts = dict[str, Any]


def replicated_statuses(jobset: Obj, children: ChildJobs) -> dict[str, ReplicatedJobCounts]:
    """Return the items of `replicatedJobsStatus`, by name: the numbers of Jobs by state."""
    counts_by_name: dict[str, ReplicatedJobCounts] = {
        each["name"]: {"name": each["name"], "ready": 0, "succeeded": 0, "failed": 0, "active": 0, "suspended": 0}
        for each in replicated_jobs(jobset)
    }
    for job in children.active_jobs:
        job_counts = counts_by_name.get(replicated_job_name(job))
        if job_counts is not None:
            job_counts["ready"] += _is_ready(job)
            job_counts["active"] += (job.get("status") or {}).get("active", 0) > 0
            job_counts["suspended"] += bool(job["spec"].get("suspend"))
    for field, jobs in (("succeeded", children.successful_jobs), ("failed", children.failed_jobs)):
        for job in jobs:
            job_counts = counts_by_name.get(replicated_job_name(job))
            if job_counts is not None:
                job_counts[field] += 1
    return counts_by_name


def are_all_ready(jobset: Obj, counts_by_name: dict[str, ReplicatedJobCounts]) -> bool:
    """Return whether all Jobs of the JobSet exist and are ready or have succeeded."""
    expected_count = sum(map(replicas_of, replicated_jobs(jobset)))
    ready_count: int = sum(counts["ready"] + counts["succeeded"] for counts in counts_by_name.values())
    return expected_count == ready_count


def _is_ready(job: Obj) -> bool:
    status = job.get("status") or {}
    return bool(status.get("succeeded", 0) + status.get("ready", 0) >= parallel_pod_count(job["spec"]))


_NORMAL_EVENT: Final = "Normal"
_WARNING_EVENT: Final = "Warning"

#: By condition type: the type that it excludes.
_OPPOSITE: Final = {spec.STARTUP_IN_PROGRESS: spec.STARTUP_COMPLETED, spec.STARTUP_COMPLETED: spec.STARTUP_IN_PROGRESS}


class JobSetEvent(NamedTuple):
    """The type, reason and message of an Event about a JobSet."""

    type: str
    reason: str
    message: str


class JobSetStatusDraft:
    """The next status of a JobSet, built during a reconcile, and the Events about its condition changes."""

    __slots__ = ("_conditions", "_jobset", "_status", "_time", "events", "is_changed")

    def __init__(self, jobset: Obj, now: Instant) -> None:
        self._jobset = jobset
        self._time = format_time(now)
        self._status: dict[str, Any] = {"restarts": 0, **(jobset.get("status") or {})}
        self._conditions: list[Mapping[str, Any]] = list(self._status.get("conditions") or ())
        self.is_changed = False
        self.events: list[JobSetEvent] = []

    def result(self) -> Obj:
        """Return the JobSet with its next status."""
        if self._conditions:
            self._status["conditions"] = self._conditions
        return {**self._jobset, "status": self._status}

    def set_counts(self, counts_by_name: Mapping[str, ReplicatedJobCounts]) -> None:
        """Set `replicatedJobsStatus` of the JobSet, sorted by name in descending order as upstream."""
        sorted_counts = [counts_by_name[name] for name in sorted(counts_by_name, reverse=True)]
        if sorted_counts != (self._status.get("replicatedJobsStatus") or []):
            self._status["replicatedJobsStatus"] = sorted_counts
            self.is_changed = True

    def complete(self) -> None:
        """Set the JobSet's Completed condition and end a restart in progress."""
        self._set_condition(spec.COMPLETED, True, spec.JOBS_COMPLETED)
        self._set_condition(spec.RESTARTING, False, spec.RESTART_ENDED_BY_COMPLETION)
        self._status["terminalState"] = spec.COMPLETED

    def fail(self, reason_message: ReasonMessage) -> None:
        """Set the JobSet's Failed condition with this reason and message, and end a restart in progress."""
        self._set_condition(spec.FAILED, True, reason_message, _WARNING_EVENT)
        self._set_condition(spec.RESTARTING, False, spec.RESTART_ENDED_BY_FAILURE)
        self._status["terminalState"] = spec.FAILED

    def restart(self, cause: str, action: ReasonMessage, *, counts_towards_max: bool) -> None:
        """Record the JobSet's next restart attempt in its status; it counts for maxRestarts if `counts_towards_max`.

        `cause` is the reason of the restart condition, `action` its message and the reason of an additional Event.
        """
        self._status["restarts"] += 1
        if counts_towards_max:
            self._status["restartsCountTowardsMax"] = self._status.get("restartsCountTowardsMax", 0) + 1
        self.is_changed = True
        self._set_condition(spec.RESTARTING, True, ReasonMessage(cause, action.message), _WARNING_EVENT)
        self.events.append(JobSetEvent(_WARNING_EVENT, *action))

    def end_restart(self) -> None:
        """Set the JobSet's restart condition, if it has one, to False, because all its Jobs are ready."""
        self._set_condition(spec.RESTARTING, False, spec.RESTARTED)

    def suspend(self) -> None:
        """Set the JobSet's Suspended condition to True and end a restart in progress."""
        self._set_condition(spec.SUSPENDED, True, spec.JOBS_SUSPENDED)
        self._set_condition(spec.RESTARTING, False, spec.RESTART_ENDED_BY_SUSPENSION)

    def resume(self) -> None:
        """Set the JobSet's Suspended condition, if it has one, to False."""
        self._set_condition(spec.SUSPENDED, False, spec.JOBS_RESUMED)

    def begin_startup_policy(self) -> None:
        """Set the JobSet's condition StartupPolicyInProgress to True, and StartupPolicyCompleted, if True, to False."""
        self._set_condition(spec.STARTUP_IN_PROGRESS, True, spec.IN_ORDER_IN_PROGRESS)

    def complete_startup_policy(self) -> None:
        """Set the JobSet's condition StartupPolicyCompleted to True, and StartupPolicyInProgress, if True, to False."""
        self._set_condition(spec.STARTUP_COMPLETED, True, spec.IN_ORDER_COMPLETED)

    def _set_condition(
        self, condition_type: str, is_true: bool, reason_message: ReasonMessage, event_type: str = _NORMAL_EVENT
    ) -> None:
        """Set a JobSet condition to True, or an existing one to False; record an Event if the condition changed."""
        condition_index = next((i for i, each in enumerate(self._conditions) if each["type"] == condition_type), None)
        is_changed = is_true and self._end_opposite_condition(condition_type)
        if condition_index is None:
            if is_true:
                self._conditions.append(self._new_condition(condition_type, "True", self._time, reason_message))
                is_changed = True
        else:
            old, status = self._conditions[condition_index], "True" if is_true else "False"
            changed_at = self._time if old["status"] != status else old.get("lastTransitionTime", self._time)
            if (old["status"], old.get("reason"), old.get("message")) != (status, *reason_message):
                self._conditions[condition_index] = self._new_condition(
                    condition_type, status, changed_at, reason_message
                )
                is_changed = True
        if is_changed:
            self.is_changed = True
            self.events.append(JobSetEvent(event_type, *reason_message))

    def _end_opposite_condition(self, condition_type: str) -> bool:
        for index, condition in enumerate(self._conditions):
            if condition["type"] == _OPPOSITE.get(condition_type) and condition["status"] == "True":
                self._conditions[index] = {**condition, "status": "False"}
                return True
        return False

    def _new_condition(
        self, condition_type: str, status: str, changed_at: str, reason_message: ReasonMessage
    ) -> dict[str, Any]:
        reason, message = reason_message
        return {
            "type": condition_type,
            "status": status,
            "lastTransitionTime": changed_at,
            "reason": reason,
            "message": message,
        }


class StartupDecision(NamedTuple):
    """The replicated jobs of a JobSet that may start now, and whether the later ones must wait for these."""

    replicated_jobs: list[Mapping[str, Any]]
    must_wait: bool


def startup_decision(jobset: Obj, counts_by_name: Mapping[str, ReplicatedJobCounts]) -> StartupDecision:
    """Return the replicated jobs that may start now, from the startup policy and `dependsOn` of the JobSet."""
    starts_one_by_one = starts_in_order(jobset) and not is_suspended(jobset)
    replica_counts: dict[str, int] = {}
    startable_jobs: list[Mapping[str, Any]] = []
    for replicated_job in replicated_jobs(jobset):
        replica_counts[replicated_job["name"]] = replicas_of(replicated_job)
        dependencies = replicated_job.get("dependsOn") or ()
        if not all(_is_dependency_met(each, replica_counts, counts_by_name) for each in dependencies):
            continue
        if not starts_one_by_one:
            startable_jobs.append(replicated_job)
        elif not _are_ready_or_ended(replicas_of(replicated_job), counts_by_name[replicated_job["name"]]):
            return StartupDecision([replicated_job], must_wait=True)
    return StartupDecision(startable_jobs, must_wait=False)


def _is_dependency_met(
    dependency: Mapping[str, Any], replica_counts: Mapping[str, int], counts_by_name: Mapping[str, ReplicatedJobCounts]
) -> bool:
    name = dependency["name"]
    job_counts = counts_by_name.get(name)
    if job_counts is None:
        return False
    if dependency["status"] == "Complete":
        succeeded_count: int = job_counts["succeeded"]
        return replica_counts.get(name, 0) == succeeded_count
    return _are_ready_or_ended(replica_counts.get(name, 0), job_counts)


def _are_ready_or_ended(replica_count: int, counts: ReplicatedJobCounts) -> bool:
    return bool(replica_count == counts["failed"] + counts["ready"] + counts["succeeded"])


def has_succeeded(jobset: Obj, succeeded_jobs: Sequence[Obj]) -> bool:
    """Return whether the JobSet's success policy is met: one or all Jobs of the target replicated jobs succeeded.

    The operator Any requires one Job, the operator All requires all. Without targets, all replicated jobs are targets.
    """
    policy = jobset["spec"].get("successPolicy") or {}
    target_names = frozenset(policy.get("targetReplicatedJobs") or [each["name"] for each in replicated_jobs(jobset)])
    if policy.get("operator") == "Any":
        expected_count = 1
    else:
        expected_count = sum(replicas_of(each) for each in replicated_jobs(jobset) if each["name"] in target_names)
    return sum(replicated_job_name(job) in target_names for job in succeeded_jobs) >= expected_count


FailureRule = Mapping[str, Any]


def apply_failure_policy(draft: JobSetStatusDraft, jobset: Obj, failed_jobs: Sequence[Obj]) -> None:
    """Fail or restart the JobSet in `draft`, its next status, as its failure policy requires for the failed Jobs."""
    failure_policy = jobset["spec"].get("failurePolicy")
    if failure_policy is None:
        draft.fail(_with_failed_job_name(spec.JOBS_FAILED, _first_failed_job(failed_jobs)))
        return
    rule, job = _first_matching_rule(failure_policy.get("rules") or (), failed_jobs)
    policy_cause = spec.BY_DEFAULT_FAILURE_POLICY if rule is None else f"{spec.BY_RULE_PREFIX}{rule['name']}"
    match "RestartJobSet" if rule is None else rule["action"]:
        case "FailJobSet":
            draft.fail(_with_failed_job_name(spec.FAIL_ACTION, job))
        case "RestartJobSet" if _counted_restarts(jobset) >= failure_policy.get("maxRestarts", 0):
            draft.fail(_with_failed_job_name(spec.RESTARTS_EXHAUSTED, job))
        case "RestartJobSet":
            draft.restart(policy_cause, _with_failed_job_name(spec.RESTART_ACTION, job), counts_towards_max=True)
        case "RestartJobSetAndIgnoreMaxRestarts":
            draft.restart(policy_cause, _with_failed_job_name(spec.FREE_RESTART_ACTION, job), counts_towards_max=False)


def _first_matching_rule(rules: Sequence[FailureRule], failed_jobs: Sequence[Obj]) -> tuple[FailureRule | None, Obj]:
    for rule in rules:
        matching_jobs = [job for job in failed_jobs if _rule_matches(rule, job)]
        if matching_jobs:
            return rule, _first_failed_job(matching_jobs)
    return None, _first_failed_job(failed_jobs)


def _rule_matches(rule: FailureRule, job: Obj) -> bool:
    condition = find_terminal_condition(job) or {}
    failure_reasons, patterns = rule.get("onJobFailureReasons"), rule.get("onJobFailureMessagePatterns")
    if failure_reasons and condition.get("reason", "") not in failure_reasons:
        return False
    if patterns and not any(matches_anywhere(pattern, condition.get("message", "")) for pattern in patterns):
        return False
    name, target_names = replicated_job_name(job), rule.get("targetReplicatedJobs")
    return bool(name) and (not target_names or name in target_names)


def _first_failed_job(failed_jobs: Sequence[Obj]) -> Obj:
    return min(failed_jobs, key=_failed_at)


def _failed_at(job: Obj) -> Instant:
    time_text = (find_terminal_condition(job) or {}).get("lastTransitionTime")
    return parse_time(time_text) if time_text else 0


def _counted_restarts(jobset: Obj) -> int:
    restart_count: int = (jobset.get("status") or {}).get("restartsCountTowardsMax", 0)
    return restart_count


def _with_failed_job_name(reason_message: ReasonMessage, job: Obj) -> ReasonMessage:
    return ReasonMessage(
        reason_message.reason, f"{reason_message.message} (first failed job: {job['metadata']['name']})"
    )


def has_start_time(job: Obj) -> bool:
    """Return whether a Job has a `startTime` from an earlier run, which must be cleared before it is resumed."""
    return bool((job.get("status") or {}).get("startTime"))


def without_start_time(job: Obj) -> dict[str, Any]:
    """Return a copy of the Job without `status.startTime`."""
    return with_path(job, ("status", "startTime"), None)


def resume_job(job: Obj, template: Obj) -> dict[str, Any]:
    """Return the unsuspended Job, with metadata and scheduling fields of `template` merged into its pod template."""
    merged_template = _merge_template(job["spec"]["template"], template)
    return {**job, "spec": {**job["spec"], "template": merged_template, "suspend": False}}


def _merge_template(template: Obj, added_template: Obj) -> Obj:
    for path in (("metadata", "labels"), ("metadata", "annotations"), ("spec", "nodeSelector")):
        new = (added_template.get(path[0]) or {}).get(path[1])
        if new:
            old = (template.get(path[0]) or {}).get(path[1]) or {}
            template = with_path(template, path, {**old, **new})
    for field in ("tolerations", "schedulingGates"):
        old_items = (template.get("spec") or {}).get(field) or []
        added_elements = [each for each in (added_template.get("spec") or {}).get(field) or () if each not in old_items]
        if added_elements:
            template = with_path(template, ("spec", field), [*old_items, *added_elements])
    return template
