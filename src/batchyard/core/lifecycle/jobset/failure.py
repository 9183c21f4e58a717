"""What a JobSet does about failed Jobs: its failure policy.

The first rule that fits a failed Job says what is done; of the Jobs that fit it the one that failed first is named. A
policy without such a rule restarts the JobSet, and no policy at all fails it. Two actions, RestartJob and its variant,
are behind a feature gate that is off: they do nothing, and a JobSet that asks for them is refused before.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from batchyard.api.meta import Obj
from batchyard.api.patterns import is_found
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant
from batchyard.core.lifecycle.jobset import reasons as r
from batchyard.core.lifecycle.jobset.children import ending, replicated_job_name
from batchyard.core.lifecycle.jobset.reasons import Why
from batchyard.core.lifecycle.jobset.status_draft import StatusDraft

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
