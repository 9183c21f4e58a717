"""What a JobSet does about failed Jobs: its failure policy.

The first rule that fits a failed Job says what is done; of the Jobs that fit it the one that failed first is named. A
policy without such a rule restarts the JobSet, and no policy at all fails it. Two actions, RestartJob and its variant,
are behind a feature gate that is off: they do nothing, and a JobSet that asks for them is refused before.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from batchyard.api.meta import Obj, with_path
from batchyard.api.patterns import is_found
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant
from batchyard.jobs.jobset import spec as r
from batchyard.jobs.jobset.spec import (
    Why,
    ending,
    is_suspended,
    replicas_of,
    replicated_job_name,
    replicated_jobs,
    starts_in_order,
)
from batchyard.jobs.jobset.status import Counts, StatusDraft

# --- startup ---
#
# Whose turn it is: which replicated jobs may have Jobs, and may let them run.
#
# `dependsOn` lets one wait for some before it; `startupPolicy: InOrder` lets each wait for the one before it. A JobSet
# that is suspended has all its Jobs at once, in whatever order they start later, but for those that depend on others.


class Turn(NamedTuple):
    """The replicated jobs whose turn it is, and whether others wait until these have started."""

    replicated_jobs: list[Mapping[str, Any]]
    others_wait: bool


def turn_of(jobset: Obj, statuses: Mapping[str, Counts]) -> Turn:
    """Whose turn it is, by how the Jobs of all replicated jobs stand."""
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
            return Turn([replicated], others_wait=True)
    return Turn(free, others_wait=False)


def _is_reached(dependency: Mapping[str, Any], replicas: Mapping[str, int], statuses: Mapping[str, Counts]) -> bool:
    """Whether all Jobs of another replicated job are where they are waited for: started, or complete."""
    name = dependency["name"]
    counts = statuses.get(name)
    if counts is None:
        return False
    if dependency["status"] == "Complete":
        succeeded: int = counts["succeeded"]
        return replicas.get(name, 0) == succeeded
    return _has_started(replicas.get(name, 0), counts)


def _has_started(replicas: int, counts: Counts) -> bool:
    """Whether all its Jobs are ready or have ended."""
    return bool(replicas == counts["failed"] + counts["ready"] + counts["succeeded"])


# --- success ---
#
# When a JobSet is complete: its success policy.


def has_succeeded(jobset: Obj, successful: Sequence[Obj]) -> bool:
    """Whether enough Jobs, one or all, of the replicated jobs that the policy names have succeeded; none named: all."""
    policy = jobset["spec"].get("successPolicy") or {}
    targets = frozenset(policy.get("targetReplicatedJobs") or [each["name"] for each in replicated_jobs(jobset)])
    if policy.get("operator") == "Any":
        expected = 1
    else:
        expected = sum(replicas_of(each) for each in replicated_jobs(jobset) if each["name"] in targets)
    return sum(replicated_job_name(job) in targets for job in successful) >= expected


Rule = Mapping[str, Any]


def apply_failure_policy(draft: StatusDraft, jobset: Obj, failed: Sequence[Obj]) -> None:
    """Do about these Jobs, of which there is one at least, what the failure policy says."""
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
    """The first rule that fits a Job, and the first Job it fits; no rule, and the first Job of all."""
    for rule in rules:
        fitting = [job for job in failed if _fits(rule, job)]
        if fitting:
            return rule, _first(fitting)
    return None, _first(failed)


def _fits(rule: Rule, job: Obj) -> bool:
    """Whether a rule is about this Job's failure; what the rule does not name it does not ask for."""
    condition = ending(job) or {}
    reasons, patterns = rule.get("onJobFailureReasons"), rule.get("onJobFailureMessagePatterns")
    if reasons and condition.get("reason", "") not in reasons:
        return False
    if patterns and not any(is_found(pattern, condition.get("message", "")) for pattern in patterns):
        return False
    name, targets = replicated_job_name(job), rule.get("targetReplicatedJobs")
    return bool(name) and (not targets or name in targets)


def _first(failed: Sequence[Obj]) -> Obj:
    """The Job that failed first; of several at one time the first by name."""
    return min(failed, key=_failed_at)


def _failed_at(job: Obj) -> Instant:
    since = (ending(job) or {}).get("lastTransitionTime")
    return parse_time(since) if since else 0


def _restarts_counted(jobset: Obj) -> int:
    restarts: int = (jobset.get("status") or {}).get("restartsCountTowardsMax", 0)
    return restarts


def _naming(why: Why, job: Obj) -> Why:
    """With the name of the Job that is to blame."""
    return Why(why.reason, f"{why.message} (first failed job: {job['metadata']['name']})")


# --- resumption ---
#
# A suspended Job that is let go takes over what was put into the JobSet's templates meanwhile.
#
# A queue writes there where the pods are to run. What others put into the Job's own template stays. The template of a
# Job may change only while the Job has no start time, so that goes first, in a write of its own.


def has_start_time(job: Obj) -> bool:
    """Whether the Job ran before, so that its start time is to be cleared first."""
    return bool((job.get("status") or {}).get("startTime"))


def without_start_time(job: Obj) -> dict[str, Any]:
    """The Job with its start time cleared."""
    return with_path(job, ("status", "startTime"), None)


def resumed_job(job: Obj, template: Obj) -> dict[str, Any]:
    """The Job let go, its pod template merged with that of its replicated job."""
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
