"""Whether a Job is to end, and why.

A verdict is first put on record as an interim condition, FailureTarget or SuccessCriteriaMet. The Job ends, with Failed
or Complete, when all its pods have ended and are counted. Source: syncJob in Kubernetes's pkg/controller/job.
"""

from typing import Final, NamedTuple

from batchyard.api.conditions import find_condition
from batchyard.base.instant import Instant
from batchyard.core.lifecycle.job.failure_policy import judgement
from batchyard.core.lifecycle.job.indexes import total
from batchyard.core.lifecycle.job.pods import has_failed
from batchyard.core.lifecycle.job.standing import Standing
from batchyard.core.lifecycle.job.success_policy import rule_met
from batchyard.core.lifecycle.pod import PENDING, RUNNING

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
