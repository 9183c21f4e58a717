"""JobSet policies: failure, startup, success and resumption.

Failure policy: the action is that of the first rule that matches a failed Job; of the Jobs that match it, the one that
failed first is named. A policy without a matching rule restarts the JobSet, and a JobSet without a policy fails. Two
actions, RestartJob and its variant, are behind a disabled feature gate: they do nothing, and JobSets that use them are
rejected on creation.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.api.meta import Obj, with_path
from batchyard.api.patterns import is_found
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant
from batchyard.jobs.jobset import spec as r
from batchyard.jobs.jobset.spec import (
    ReasonMessage,
    ending,
    is_suspended,
    replicas_of,
    replicated_job_name,
    replicated_jobs,
    starts_in_order,
)
from batchyard.jobs.jobset.status import JobSetStatusDraft, ReplicatedJobCounts

# --- startup ---
#
# Selects the replicated jobs that may have Jobs and may run them.
#
# With `dependsOn`, one waits for earlier ones; with `startupPolicy: InOrder`, each waits for the previous one. A
# suspended JobSet has all its Jobs at once, in whatever order they start later, except those with dependencies.


class StartupDecision(NamedTuple):
    """The replicated jobs that may start, and whether others wait until these have started."""

    replicated_jobs: list[Mapping[str, Any]]
    others_wait: bool


def startup_decision(jobset: Obj, statuses: Mapping[str, ReplicatedJobCounts]) -> StartupDecision:
    """Return the replicated jobs that may start, given the status of the Jobs of all."""
    in_order = starts_in_order(jobset) and not is_suspended(jobset)
    replicas: dict[str, int] = {}
    free: list[Mapping[str, Any]] = []
    for replicated in replicated_jobs(jobset):
        replicas[replicated["name"]] = replicas_of(replicated)
        if not all(_is_reached(each, replicas, statuses) for each in replicated.get("dependsOn") or ()):
            continue
        if not in_order:
            free.append(replicated)
        elif not _has_started(replicas_of(replicated), statuses[replicated["name"]]):
            return StartupDecision([replicated], others_wait=True)
    return StartupDecision(free, others_wait=False)


def _is_reached(
    dependency: Mapping[str, Any], replicas: Mapping[str, int], statuses: Mapping[str, ReplicatedJobCounts]
) -> bool:
    """Report whether all Jobs of a dependency have the required status: started, or complete."""
    name = dependency["name"]
    counts = statuses.get(name)
    if counts is None:
        return False
    if dependency["status"] == "Complete":
        succeeded: int = counts["succeeded"]
        return replicas.get(name, 0) == succeeded
    return _has_started(replicas.get(name, 0), counts)


def _has_started(replicas: int, counts: ReplicatedJobCounts) -> bool:
    """Report whether all its Jobs are ready or have ended."""
    return bool(replicas == counts["failed"] + counts["ready"] + counts["succeeded"])


# --- success ---
#
# The success policy: when a JobSet is complete.


def has_succeeded(jobset: Obj, successful: Sequence[Obj]) -> bool:
    """Report whether enough Jobs of the target replicated jobs (default all) succeeded: one or all of them."""
    policy = jobset["spec"].get("successPolicy") or {}
    targets = frozenset(policy.get("targetReplicatedJobs") or [each["name"] for each in replicated_jobs(jobset)])
    if policy.get("operator") == "Any":
        expected = 1
    else:
        expected = sum(replicas_of(each) for each in replicated_jobs(jobset) if each["name"] in targets)
    return sum(replicated_job_name(job) in targets for job in successful) >= expected


Rule = Mapping[str, Any]


def apply_failure_policy(draft: JobSetStatusDraft, jobset: Obj, failed: Sequence[Obj]) -> None:
    """Apply the failure policy to these failed Jobs (at least one)."""
    policy = jobset["spec"].get("failurePolicy")
    if policy is None:
        draft.fail(_naming(r.JOBS_FAILED, _first(failed)))
        return
    rule, job = _match(policy.get("rules") or (), failed)
    cause = r.BY_DEFAULT if rule is None else f"{r.BY_RULE_PREFIX}{rule['name']}"
    match "RestartJobSet" if rule is None else rule["action"]:
        case "FailJobSet":
            draft.fail(_naming(r.FAIL_ACTION, job))
        case "RestartJobSet" if _restarts_counted(jobset) >= policy.get("maxRestarts", 0):
            draft.fail(_naming(r.RESTARTS_EXHAUSTED, job))
        case "RestartJobSet":
            draft.restart(cause, _naming(r.RESTART_ACTION, job), counts=True)
        case "RestartJobSetAndIgnoreMaxRestarts":
            draft.restart(cause, _naming(r.FREE_RESTART_ACTION, job), counts=False)


def _match(rules: Sequence[Rule], failed: Sequence[Obj]) -> tuple[Rule | None, Obj]:
    """Return the first rule that matches a Job, and its first Job; no rule and the first Job if none matches."""
    for rule in rules:
        fitting = [job for job in failed if _fits(rule, job)]
        if fitting:
            return rule, _first(fitting)
    return None, _first(failed)


def _fits(rule: Rule, job: Obj) -> bool:
    """Report whether a rule matches this Job's failure; fields that the rule omits match anything."""
    condition = ending(job) or {}
    reasons, patterns = rule.get("onJobFailureReasons"), rule.get("onJobFailureMessagePatterns")
    if reasons and condition.get("reason", "") not in reasons:
        return False
    if patterns and not any(is_found(pattern, condition.get("message", "")) for pattern in patterns):
        return False
    name, targets = replicated_job_name(job), rule.get("targetReplicatedJobs")
    return bool(name) and (not targets or name in targets)


def _first(failed: Sequence[Obj]) -> Obj:
    """Return the Job that failed first; ties are broken by name."""
    return min(failed, key=_failed_at)


def _failed_at(job: Obj) -> Instant:
    since = (ending(job) or {}).get("lastTransitionTime")
    return parse_time(since) if since else 0


def _restarts_counted(jobset: Obj) -> int:
    restarts: int = (jobset.get("status") or {}).get("restartsCountTowardsMax", 0)
    return restarts


def _naming(why: ReasonMessage, job: Obj) -> ReasonMessage:
    """Append the name of the first failed Job."""
    return ReasonMessage(why.reason, f"{why.message} (first failed job: {job['metadata']['name']})")


# --- resumption ---
#
# A resumed Job gets changes that were made to the JobSet's templates while it was suspended.
#
# A queue sets there where the pods are to run. Other changes of the Job's own template are kept. The template of a Job
# may change only while it has no start time, so that is cleared first, in a separate write.


def has_start_time(job: Obj) -> bool:
    """Report whether the Job ran before, so that its start time must be cleared first."""
    return bool((job.get("status") or {}).get("startTime"))


def without_start_time(job: Obj) -> dict[str, Any]:
    """Return the Job without its start time."""
    return with_path(job, ("status", "startTime"), None)


def resumed_job(job: Obj, template: Obj) -> dict[str, Any]:
    """Return the resumed Job, with its pod template merged with that of its replicated job."""
    merged = _merged_template(job["spec"]["template"], template)
    return {**job, "spec": {**job["spec"], "template": merged, "suspend": False}}


def _merged_template(own: Obj, added: Obj) -> Obj:
    for path in (("metadata", "labels"), ("metadata", "annotations"), ("spec", "nodeSelector")):
        new = (added.get(path[0]) or {}).get(path[1])
        if new:
            old = (own.get(path[0]) or {}).get(path[1]) or {}
            own = with_path(own, path, {**old, **new})
    for field in ("tolerations", "schedulingGates"):
        there = (own.get("spec") or {}).get(field) or []
        missing = [each for each in (added.get("spec") or {}).get(field) or () if each not in there]
        if missing:
            own = with_path(own, ("spec", field), [*there, *missing])
    return own
