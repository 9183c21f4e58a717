"""How the ends of pods are put on record, and when pods are let go."""

from typing import Any

import make
from batchyard.jobs.job.plan import COMPLETE, UNCOUNTED_MAX, JobOutcome, recorded, releasable
from unit.jobs.job.job_make import Obj, indexed, job, per_index, pod, stands, uids

FAILED = JobOutcome(False, "DeadlineExceeded", "late")


def record(of: Obj, *pods: Obj, verdict: JobOutcome | None = None) -> dict[str, Any]:
    fields = recorded(stands(of, *pods), verdict)
    return {name: value for name, value in fields.items() if value}


def released(of: Obj, *pods: Obj, verdict: JobOutcome | None = None) -> list[str]:
    return uids(releasable(stands(of, *pods), verdict))


def test_ended_pods_come_on_record_before_they_are_let_go() -> None:
    ends = pod("a", "Succeeded"), pod("b", "Failed"), pod("c", "Running")
    uncounted = {"succeeded": ["uid-a"], "failed": ["uid-b"]}
    assert released(job(), *ends) == []
    assert record(job(), *ends) == {"uncountedTerminatedPods": uncounted}
    assert released(job(status={"uncountedTerminatedPods": uncounted}), *ends) == ["uid-a", "uid-b"]


def test_what_was_let_go_is_counted_and_comes_off_the_record() -> None:
    status = {"succeeded": 1, "uncountedTerminatedPods": {"succeeded": ["uid-a", "uid-x"], "failed": ["uid-b"]}}
    ends = pod("a", "Succeeded"), pod("b", "Failed", tracked=False)
    assert record(job(status=status), *ends) == {
        "succeeded": 2,
        "failed": 1,
        "uncountedTerminatedPods": {"succeeded": ["uid-a"]},
    }


def test_indexes_that_succeeded_are_their_own_record() -> None:
    ends = pod("a", "Succeeded", index=0), pod("b", "Succeeded", index=2)
    assert record(indexed(), *ends) == {"succeeded": 2, "completedIndexes": "0,2"}
    assert released(indexed(status={"completedIndexes": "0"}), *ends) == ["uid-a"]


def test_an_index_that_succeeds_twice_counts_once() -> None:
    again = indexed(status={"succeeded": 1, "completedIndexes": "0"})
    assert record(again, pod("b", "Succeeded", index=0)) == {"succeeded": 1, "completedIndexes": "0"}


def test_pods_without_an_index_of_the_job_count_for_nothing() -> None:
    strays = pod("a", "Succeeded"), pod("b", "Failed", index=3)
    assert record(indexed(), *strays) == {}
    assert released(indexed(), *strays) == ["uid-a", "uid-b"]


def test_a_pod_that_is_deleted_has_failed_unless_the_job_waits_for_its_end() -> None:
    leaving = pod("a", "Running", deleted=True)
    assert record(job(), leaving) == {"uncountedTerminatedPods": {"failed": ["uid-a"]}}
    assert record(job(podReplacementPolicy="Failed"), leaving) == {}


def test_failures_that_are_ignored_are_let_go_uncounted() -> None:
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    ignored = pod("a", "Failed", conditions=[make.condition("DisruptionTarget")])
    assert record(job(podFailurePolicy={"rules": rules}), ignored) == {}
    assert released(job(podFailurePolicy={"rules": rules}), ignored) == ["uid-a"]


def test_a_failed_pod_stays_until_the_next_of_its_index_has_taken_over() -> None:
    failed = pod("a", "Failed", index=0)
    assert record(per_index(), failed) == {}
    assert record(per_index(), failed, pod("b", index=0))["uncountedTerminatedPods"] == {"failed": ["uid-a"]}


def test_an_index_that_failed_for_good_comes_on_record_with_its_pod() -> None:
    failed = pod("a", "Failed", index=1)
    assert record(per_index(0), failed) == {
        "failedIndexes": "1",
        "uncountedTerminatedPods": {"failed": ["uid-a"]},
    }


def test_a_job_that_fails_takes_its_pods_with_it_and_one_that_succeeds_does_not() -> None:
    running = pod("a", "Running")
    assert record(job(), running, verdict=FAILED) == {"uncountedTerminatedPods": {"failed": ["uid-a"]}}
    assert record(job(), running, verdict=COMPLETE) == {}
    assert released(job(), running, verdict=COMPLETE) == ["uid-a"]


def test_the_pods_of_a_job_that_is_deleted_are_let_go() -> None:
    leaving = job(metadata={"deletionTimestamp": make.stamp()})
    assert released(leaving, pod("a", "Running"), pod("b", "Succeeded")) == ["uid-a"]


def test_the_record_stays_small() -> None:
    ends = [pod(f"p{i}", "Succeeded" if i % 2 else "Failed") for i in range(2 * UNCOUNTED_MAX)]
    listed = record(job(), *ends)["uncountedTerminatedPods"]
    assert sum(map(len, listed.values())) == UNCOUNTED_MAX
