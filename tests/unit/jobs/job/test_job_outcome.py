"""The outcome of a Job and its reason."""

from typing import Any

import pytest

import make
from batchyard.jobs.job.plan import JobOutcome, deadline, new_outcome, recorded_outcome
from unit.jobs.job.job_make import Obj, indexed, job, observed_job, per_index, pod, seconds

LIMIT = "Job has reached the specified backoff limit"


def verdict(of: Obj, *pods: Obj, at: float = 0) -> tuple[str, str] | None:
    result = new_outcome(observed_job(of, *pods), make.NOW, make.at(at))
    return None if result is None else (result.interim_condition_type, result.reason)


def failed_pod(name: str, index: int | None = None, failures: int = 0, **more: Any) -> Obj:
    notes = {"batch.kubernetes.io/job-index-failure-count": str(failures)}
    return pod(name, "Failed", index=index, notes=notes if index is not None else None, **more)


def test_job_fails_above_backoff_limit() -> None:
    two = job(backoffLimit=2, status={"failed": 1})
    assert verdict(two, failed_pod("a")) is None
    assert verdict(two, failed_pod("a"), failed_pod("b")) == ("FailureTarget", "BackoffLimitExceeded")
    assert new_outcome(observed_job(two, failed_pod("a"), failed_pod("b")), None, 0) == JobOutcome(
        False, "BackoffLimitExceeded", LIMIT
    )


def test_backoff_limit_defaults_to_six() -> None:
    assert verdict(job(status={"failed": 5}), failed_pod("a")) is None
    assert verdict(job(status={"failed": 6}), failed_pod("a")) is not None


def test_recorded_pods_are_not_counted_twice() -> None:
    on_record = {"failed": 1, "uncountedTerminatedPods": {"failed": ["uid-a"]}}
    assert verdict(job(backoffLimit=2, status=on_record), failed_pod("a")) is None


def test_container_restarts_count_for_restart_policy_on_failure() -> None:
    restarted = pod("a", "Running")
    restarted["status"]["containerStatuses"] = [{"name": "c", "restartCount": 2}]
    assert verdict(job(backoffLimit=2, restart="OnFailure"), restarted) == ("FailureTarget", "BackoffLimitExceeded")
    assert verdict(job(backoffLimit=3, restart="OnFailure"), restarted) is None
    assert verdict(job(backoffLimit=2), restarted) is None
    assert verdict(job(backoffLimit=0, restart="OnFailure"), pod("b", "Running")) is None


def test_job_fails_after_active_deadline() -> None:
    limited = job(activeDeadlineSeconds=30)
    assert verdict(limited, at=29) is None
    assert verdict(limited, at=30) == ("FailureTarget", "DeadlineExceeded")
    assert seconds(deadline(observed_job(limited), make.at(5))) == 35
    assert deadline(observed_job(job(activeDeadlineSeconds=30, suspend=True)), make.NOW) is None


def test_fail_job_rule_fails_job_at_once() -> None:
    rules = [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}]
    strict = job(podFailurePolicy={"rules": rules})
    assert verdict(strict, failed_pod("a", exit_code=1)) is None
    result = new_outcome(observed_job(strict, failed_pod("a", exit_code=42)), None, 0)
    message = "Container c for pod team/a failed with exit code 42 matching FailJob rule at index 0"
    assert result == JobOutcome(False, "PodFailurePolicy", message)


def test_ignored_failures_do_not_count_for_backoff_limit() -> None:
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    lenient = job(backoffLimit=0, podFailurePolicy={"rules": rules})
    assert verdict(lenient, failed_pod("a", conditions=[make.condition("DisruptionTarget")])) is None
    assert verdict(lenient, failed_pod("a")) is not None


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
def test_failed_indexes_fail_job(of: Obj, reason: str | None) -> None:
    expected = None if reason is None else ("FailureTarget", reason)
    assert verdict(of, failed_pod("a", 0, failures=1)) == expected


def test_success_policy_completes_job() -> None:
    lenient = indexed(successPolicy={"rules": [{"succeededIndexes": "1"}]})
    assert verdict(lenient, pod("a", "Succeeded", index=0)) is None
    result = new_outcome(observed_job(lenient, pod("a", "Succeeded", index=1)), None, 0)
    assert result == JobOutcome(True, "SuccessPolicy", "Matched rules at index 0")


def test_recorded_outcome_is_final() -> None:
    success = make.condition("SuccessCriteriaMet", reason="SuccessPolicy", message="met")
    failure = make.condition("FailureTarget", reason="DeadlineExceeded", message="late")
    assert recorded_outcome(observed_job(job(status={"conditions": [failure]}))) == JobOutcome(
        False, "DeadlineExceeded", "late"
    )
    both = observed_job(job(status={"conditions": [failure, success]}))
    assert recorded_outcome(both) == JobOutcome(True, "SuccessPolicy", "met")
    assert recorded_outcome(observed_job(job())) is None
