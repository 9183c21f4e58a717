"""When a Job is to end, and why."""

from typing import Any

import pytest

import make
from batchyard.jobs.job.plan import JobOutcome, deadline, new_outcome, recorded_outcome
from unit.jobs.job.job_make import Obj, indexed, job, per_index, pod, seconds, stands

LIMIT = "Job has reached the specified backoff limit"


def verdict(of: Obj, *pods: Obj, at: float = 0) -> tuple[str, str] | None:
    found = new_outcome(stands(of, *pods), make.NOW, make.at(at))
    return None if found is None else (found.interim, found.reason)


def failed(name: str, index: int | None = None, failures: int = 0, **more: Any) -> Obj:
    notes = {"batch.kubernetes.io/job-index-failure-count": str(failures)}
    return pod(name, "Failed", index=index, notes=notes if index is not None else None, **more)


def test_a_job_fails_when_more_pods_fail_than_its_limit() -> None:
    two = job(backoffLimit=2, status={"failed": 1})
    assert verdict(two, failed("a")) is None
    assert verdict(two, failed("a"), failed("b")) == ("FailureTarget", "BackoffLimitExceeded")
    assert new_outcome(stands(two, failed("a"), failed("b")), None, 0) == JobOutcome(
        False, "BackoffLimitExceeded", LIMIT
    )


def test_six_pods_may_fail_unless_the_job_says_otherwise() -> None:
    assert verdict(job(status={"failed": 5}), failed("a")) is None
    assert verdict(job(status={"failed": 6}), failed("a")) is not None


def test_pods_on_record_are_not_counted_twice() -> None:
    on_record = {"failed": 1, "uncountedTerminatedPods": {"failed": ["uid-a"]}}
    assert verdict(job(backoffLimit=2, status=on_record), failed("a")) is None


def test_restarts_of_containers_count_where_pods_restart_them() -> None:
    restarted = pod("a", "Running")
    restarted["status"]["containerStatuses"] = [{"name": "c", "restartCount": 2}]
    assert verdict(job(backoffLimit=2, restart="OnFailure"), restarted) == ("FailureTarget", "BackoffLimitExceeded")
    assert verdict(job(backoffLimit=3, restart="OnFailure"), restarted) is None
    assert verdict(job(backoffLimit=2), restarted) is None
    assert verdict(job(backoffLimit=0, restart="OnFailure"), pod("b", "Running")) is None


def test_a_job_fails_when_it_was_active_too_long() -> None:
    limited = job(activeDeadlineSeconds=30)
    assert verdict(limited, at=29) is None
    assert verdict(limited, at=30) == ("FailureTarget", "DeadlineExceeded")
    assert seconds(deadline(stands(limited), make.at(5))) == 35
    assert deadline(stands(job(activeDeadlineSeconds=30, suspend=True)), make.NOW) is None


def test_a_failure_policy_may_fail_the_job_at_once() -> None:
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]
    strict = job(podFailurePolicy={"rules": rules})
    assert verdict(strict, failed("a", exit_code=1)) is None
    found = new_outcome(stands(strict, failed("a", exit_code=42)), None, 0)
    message = "Container c for pod team/a failed with exit code 42 matching FailJob rule at index 0"
    assert found == JobOutcome(False, "PodFailurePolicy", message)


def test_failures_that_the_policy_ignores_use_up_no_limit() -> None:
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    lenient = job(backoffLimit=0, podFailurePolicy={"rules": rules})
    assert verdict(lenient, failed("a", conditions=[make.condition("DisruptionTarget")])) is None
    assert verdict(lenient, failed("a")) is not None


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (per_index(maxFailedIndexes=0), "MaxFailedIndexesExceeded"),
        (per_index(maxFailedIndexes=1), None),
        (per_index(status={"completedIndexes": "1,2"}), "FailedIndexes"),
        (per_index(status={"completedIndexes": "1"}), None),
        (per_index(2, maxFailedIndexes=0), None),
    ],
)
def test_indexes_that_failed_for_good_fail_the_job(of: Obj, reason: str | None) -> None:
    expected = None if reason is None else ("FailureTarget", reason)
    assert verdict(of, failed("a", 0, failures=1)) == expected


def test_a_success_policy_that_is_met_ends_the_job() -> None:
    lenient = indexed(successPolicy={"rules": [{"succeededIndexes": "1"}]})
    assert verdict(lenient, pod("a", "Succeeded", index=0)) is None
    found = new_outcome(stands(lenient, pod("a", "Succeeded", index=1)), None, 0)
    assert found == JobOutcome(True, "SuccessPolicy", "Matched rules at index 0")


def test_the_verdict_on_record_stands() -> None:
    success = make.condition("SuccessCriteriaMet", reason="SuccessPolicy", message="met")
    failure = make.condition("FailureTarget", reason="DeadlineExceeded", message="late")
    assert recorded_outcome(stands(job(status={"conditions": [failure]}))) == JobOutcome(
        False, "DeadlineExceeded", "late"
    )
    both = stands(job(status={"conditions": [failure, success]}))
    assert recorded_outcome(both) == JobOutcome(True, "SuccessPolicy", "met")
    assert recorded_outcome(stands(job())) is None
