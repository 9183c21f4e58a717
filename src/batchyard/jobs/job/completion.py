"""Whether a Job is to end, and why.

A verdict is first put on record as an interim condition, FailureTarget or SuccessCriteriaMet. The Job ends, with Failed
or Complete, when all its pods have ended and are counted. Source: syncJob in Kubernetes's pkg/controller/job.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from batchyard.api.conditions import Condition, find_condition
from batchyard.api.times import format_time
from batchyard.api.views.pod_lifecycle import PENDING, RUNNING
from batchyard.base.instant import Instant
from batchyard.jobs.job.failure_policy import judgement
from batchyard.jobs.job.observed import Standing, has_failed
from batchyard.jobs.job.spec import JobSpec, Rule, Spans, in_common, parsed, total

# --- success policy ---
#
# When a Job's successPolicy is met. Source: pkg/controller/job/success_policy.go of Kubernetes.


def rule_met(spec: JobSpec, succeeded: Spans) -> int | None:
    """The number of the first rule that the succeeded indexes meet."""
    if succeeded:
        for number, rule in enumerate(spec.success_rules):
            if _is_met(rule, succeeded, spec.completions or 0):
                return number
    return None


def _is_met(rule: Rule, succeeded: Spans, completions: int) -> bool:
    """All the indexes that a rule names succeeded, or as many as it asks for: of these, or of all if it names none."""
    count, text = rule.get("succeededCount"), rule.get("succeededIndexes")
    if text is None:
        return count is not None and total(succeeded) >= count
    wanted = _parsed_once(text, completions)
    found = in_common(wanted, succeeded)
    return bool(wanted) and (found == total(wanted) or (count is not None and found >= count))


@lru_cache(maxsize=64)
def _parsed_once(text: str, completions: int) -> Spans:
    """The indexes of a rule, which may be 64 KB of them: a Job is looked at as often as its pods change."""
    return parsed(text, completions)


FAILURE_TARGET: Final = "FailureTarget"
SUCCESS_CRITERIA_MET: Final = "SuccessCriteriaMet"


class Verdict(NamedTuple):
    """How a Job is to end."""

    succeeded: bool
    reason: str
    message: str

    @property
    def interim(self) -> str:
        """The type of the condition that puts it on record."""
        return SUCCESS_CRITERIA_MET if self.succeeded else FAILURE_TARGET

    @property
    def final(self) -> str:
        """The type of the condition that ends the Job."""
        return "Complete" if self.succeeded else "Failed"


COMPLETE: Final = Verdict(True, "CompletionsReached", "Reached expected number of succeeded pods")
_TOO_MANY_FAILURES: Final = Verdict(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
_TOO_LATE: Final = Verdict(False, "DeadlineExceeded", "Job was active longer than specified deadline")
_TOO_MANY_INDEXES: Final = Verdict(
    False, "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
)
_FAILED_INDEXES: Final = Verdict(False, "FailedIndexes", "Job has failed indexes")


def recorded_verdict(standing: Standing) -> Verdict | None:
    """The verdict on record. It is final, whatever happens afterwards."""
    for succeeded, kind in ((True, SUCCESS_CRITERIA_MET), (False, FAILURE_TARGET)):
        condition = find_condition(standing.status, kind)
        if condition is not None and condition["status"] == "True":
            return Verdict(succeeded, condition.get("reason", ""), condition.get("message", ""))
    return None


def new_verdict(standing: Standing, started: Instant | None, now: Instant) -> Verdict | None:
    """What ends the Job now; that it has all its completions is for later to see, when its pods have been looked at."""
    spec = standing.spec
    message = _failing_message(standing)
    if message is not None:
        return Verdict(False, "PodFailurePolicy", message)
    if standing.failed > spec.backoff_limit or _restarted_too_often(standing):
        return _TOO_MANY_FAILURES
    due = deadline(standing, started)
    if due is not None and due <= now:
        return _TOO_LATE
    return _index_verdict(standing) if spec.indexed else None


def deadline(standing: Standing, started: Instant | None) -> Instant | None:
    """When the Job will have been active too long."""
    spec = standing.spec
    if spec.active_deadline is None or started is None or spec.suspended:
        return None
    return started + spec.active_deadline


def _failing_message(standing: Standing) -> str | None:
    """What the failure policy says of the first pod for which the whole Job fails."""
    rules = standing.spec.failure_rules
    for pod in standing.pods if rules else ():
        if has_failed(pod, standing.spec) and (message := judgement(rules, pod.obj).message) is not None:
            return message
    return None


def _restarted_too_often(standing: Standing) -> bool:
    """Whether containers that are restarted in their pods have used up the limit of failures."""
    if not standing.spec.restarts_in_place:
        return False
    restarts = 0
    for pod in standing.pods:
        if pod.phase in {PENDING, RUNNING}:
            status = pod.obj.get("status") or {}
            for field in ("initContainerStatuses", "containerStatuses"):
                restarts += sum(container.get("restartCount", 0) for container in status.get(field) or ())
    return restarts >= max(standing.spec.backoff_limit, 1)


def _index_verdict(standing: Standing) -> Verdict | None:
    """What the indexes that failed for good, or succeeded, mean for the Job."""
    spec, failed = standing.spec, total(standing.failed_indexes)
    if spec.max_failed_indexes is not None and failed > spec.max_failed_indexes:
        return _TOO_MANY_INDEXES
    if failed and failed + standing.succeeded >= (spec.completions or 0):
        return _FAILED_INDEXES
    rule = rule_met(spec, standing.succeeded_indexes)
    return None if rule is None else Verdict(True, "SuccessPolicy", f"Matched rules at index {rule}")


# --- conditions ---
#
# The conditions of a Job, as its controller writes them, with the events that go with them.
#
# They differ from those of other kinds: a change of the reason alone is a transition too, and False is not noted of
# what
# never was. Source: ensureJobConditionStatus in Kubernetes's pkg/controller/job.


class Told(NamedTuple):
    """An event about the Job."""

    type: str
    reason: str
    message: str


class JobConditions:
    """The conditions of one status while they are rewritten."""

    def __init__(self, status: Mapping[str, Any], now: Instant) -> None:
        #: By type, in the order in which they stand in the status.
        self._conditions: dict[str, Condition] = {c["type"]: c for c in status.get("conditions") or ()}
        self._time = format_time(now)
        self.told: list[Told] = []

    def listed(self) -> Sequence[Condition]:
        """All of them."""
        return list(self._conditions.values())

    def set(self, kind: str, holds: bool, reason: str, message: str) -> bool:
        """Set a condition; whether that changed it."""
        old = self._conditions.get(kind)
        said = {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}
        if (old is None and not holds) or (old is not None and said.items() <= old.items()):
            return False
        self._conditions[kind] = {**said, "lastProbeTime": self._time, "lastTransitionTime": self._time}
        return True

    def set_suspended(self, suspended: bool) -> None:
        """Say whether the Job is suspended; of one that never was nothing is said."""
        reason, message = ("JobSuspended", "Job suspended") if suspended else ("JobResumed", "Job resumed")
        if self.set("Suspended", suspended, reason, message):
            self.told.append(Told("Normal", reason.removeprefix("Job"), message))

    def end(self, verdict: Verdict, *, too_many: bool) -> None:
        """End the Job; too many of its pods may have succeeded."""
        self.set(verdict.final, True, verdict.reason, verdict.message)
        if not verdict.succeeded:
            self.told.append(Told("Warning", verdict.reason, verdict.message))
            return
        if too_many:
            message = "Too many succeeded pods running after completion count reached"
            self.told.append(Told("Warning", "TooManySucceededPods", message))
        self.told.append(Told("Normal", "Completed", "Job completed"))
