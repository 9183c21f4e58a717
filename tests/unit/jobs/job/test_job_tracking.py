"""Finished pods are recorded in the status before they lose their finalizer."""

from typing import Any

import make
from batchyard.jobs.job.plan import COMPLETE, UNCOUNTED_UIDS_MAX, JobOutcome, releasable_pods, termination_fields
from unit.jobs.job.job_make import Obj, indexed, job, observed_job, per_index, pod, uids

FAILED = JobOutcome(False, "DeadlineExceeded", "late")


def record(of: Obj, *pods: Obj, verdict: JobOutcome | None = None) -> dict[str, Any]:
    fields = termination_fields(observed_job(of, *pods), verdict)
    return {name: value for name, value in fields.items() if value}


def released_uids(of: Obj, *pods: Obj, verdict: JobOutcome | None = None) -> list[str]:
    return uids(releasable_pods(observed_job(of, *pods), verdict))


def test_finished_pods_are_recorded_before_release() -> None:
    ends = pod("a", "Succeeded"), pod("b", "Failed"), pod("c", "Running")
    uncounted = {"succeeded": ["uid-a"], "failed": ["uid-b"]}
    assert released_uids(job(), *ends) == []
    assert record(job(), *ends) == {"uncountedTerminatedPods": uncounted}
    assert released_uids(job(status={"uncountedTerminatedPods": uncounted}), *ends) == ["uid-a", "uid-b"]


def test_released_pods_are_counted_and_removed_from_record() -> None:
    status = {"succeeded": 1, "uncountedTerminatedPods": {"succeeded": ["uid-a", "uid-x"], "failed": ["uid-b"]}}
    ends = pod("a", "Succeeded"), pod("b", "Failed", tracked=False)
    assert record(job(status=status), *ends) == {
        "succeeded": 2,
        "failed": 1,
        "uncountedTerminatedPods": {"succeeded": ["uid-a"]},
    }


def test_completed_indexes_record_succeeded_pods() -> None:
    ends = pod("a", "Succeeded", index=0), pod("b", "Succeeded", index=2)
    assert record(indexed(), *ends) == {"succeeded": 2, "completedIndexes": "0,2"}
    assert released_uids(indexed(status={"completedIndexes": "0"}), *ends) == ["uid-a"]


def test_index_with_two_successes_counts_once() -> None:
    again = indexed(status={"succeeded": 1, "completedIndexes": "0"})
    assert record(again, pod("b", "Succeeded", index=0)) == {"succeeded": 1, "completedIndexes": "0"}


def test_pods_without_valid_index_are_released_uncounted() -> None:
    strays = pod("a", "Succeeded"), pod("b", "Failed", index=3)
    assert record(indexed(), *strays) == {}
    assert released_uids(indexed(), *strays) == ["uid-a", "uid-b"]


def test_terminating_pod_counts_as_failed_unless_policy_is_failed() -> None:
    leaving = pod("a", "Running", deleted=True)
    assert record(job(), leaving) == {"uncountedTerminatedPods": {"failed": ["uid-a"]}}
    assert record(job(podReplacementPolicy="Failed"), leaving) == {}


def test_ignored_failures_are_released_uncounted() -> None:
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    ignored = pod("a", "Failed", conditions=[make.condition("DisruptionTarget")])
    assert record(job(podFailurePolicy={"rules": rules}), ignored) == {}
    assert released_uids(job(podFailurePolicy={"rules": rules}), ignored) == ["uid-a"]


def test_failed_pod_is_kept_until_replacement_of_its_index_exists() -> None:
    failed = pod("a", "Failed", index=0)
    assert record(per_index(), failed) == {}
    assert record(per_index(), failed, pod("b", index=0))["uncountedTerminatedPods"] == {"failed": ["uid-a"]}


def test_failed_index_is_recorded_with_its_pod() -> None:
    failed = pod("a", "Failed", index=1)
    assert record(per_index(0), failed) == {"failedIndexes": "1", "uncountedTerminatedPods": {"failed": ["uid-a"]}}


def test_running_pods_count_as_failed_only_if_job_fails() -> None:
    running = pod("a", "Running")
    assert record(job(), running, verdict=FAILED) == {"uncountedTerminatedPods": {"failed": ["uid-a"]}}
    assert record(job(), running, verdict=COMPLETE) == {}
    assert released_uids(job(), running, verdict=COMPLETE) == ["uid-a"]


def test_deleted_job_releases_its_pods() -> None:
    leaving = job(metadata={"deletionTimestamp": make.stamp()})
    assert released_uids(leaving, pod("a", "Running"), pod("b", "Succeeded")) == ["uid-a"]


def test_uncounted_pods_are_limited() -> None:
    ends = [pod(f"p{i}", "Succeeded" if i % 2 else "Failed") for i in range(2 * UNCOUNTED_UIDS_MAX)]
    listed = record(job(), *ends)["uncountedTerminatedPods"]
    assert sum(map(len, listed.values())) == UNCOUNTED_UIDS_MAX
