"""Completion of a Job: whether it is to end, and why.

The outcome is first recorded as an interim condition, FailureTarget or SuccessCriteriaMet. The Job ends, with Failed or
Complete, when all its pods have ended and are counted. Source: syncJob in Kubernetes's pkg/controller/job.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from batchyard.api.conditions import Condition, find_condition
from batchyard.api.times import format_time
from batchyard.api.views.pod_lifecycle import PENDING, RUNNING
from batchyard.base.instant import Instant
from batchyard.jobs.job.failure_policy import policy_decision
from batchyard.jobs.job.observed import ObservedJob, has_failed
from batchyard.jobs.job.spec import JobSpec, Rule, Spans, in_common, parsed, total

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
