"""The pods that a Job creates and deletes."""

from typing import Any

import pytest

import make
from batchyard.jobs.job.plan import NewPod, PodChanges, plan_pod_changes
from unit.jobs.job.job_make import Obj, indexed, job, observed_job, per_index, pod, seconds, uids


def change(of: Obj, *pods: Obj, at: float = 0, failures: tuple[float, ...] = ()) -> PodChanges:
    return plan_pod_changes(observed_job(of, *pods), [make.at(second) for second in failures], make.at(at))


def created_pods(of: Obj, *pods: Obj, **more: Any) -> list[int]:
    return [new.index for new in change(of, *pods, **more).to_create]


@pytest.mark.parametrize(
    ("of", "count"),
    [
        (job(parallelism=3, completions=9), 3),
        (job(parallelism=3, completions=2), 2),
        (job(parallelism=3, completions=None), 3),
        (job(parallelism=3, completions=9, status={"succeeded": 8}), 1),
        (job(parallelism=3, completions=None, status={"succeeded": 1}), 0),
        (job(parallelism=0), 0),
        (job(parallelism=2_000_000_000, completions=2_000_000_000), 500),
        (indexed(parallelism=100_000, completions=100_000), 500),
        (per_index(parallelism=100_000, completions=100_000), 500),
        (job(parallelism=3, completions=9, suspend=True), 0),
    ],
)
def test_job_creates_useful_number_of_pods(of: Obj, count: int) -> None:
    assert len(change(of).to_create) == count


def test_indexes_without_pod_get_new_pod() -> None:
    some = indexed(completions=5, parallelism=5, status={"completedIndexes": "1"})
    assert created_pods(some, pod("a", "Running", index=0), pod("b", "Succeeded", index=3)) == [2, 4]
    assert created_pods(indexed(completions=5, parallelism=2)) == [0, 1]


def test_terminating_pod_is_replaced_unless_policy_is_failed() -> None:
    leaving = pod("a", "Running", index=0, deleted=True, tracked=False)
    assert created_pods(indexed(completions=1, parallelism=1), leaving) == [0]
    assert created_pods(indexed(completions=1, parallelism=1, podReplacementPolicy="Failed"), leaving) == []


def test_failed_pods_are_replaced_with_backoff() -> None:
    failed = pod("a", "Failed", since=5)
    assert (created_pods(job(), failed, at=14), seconds(change(job(), failed, at=14).wake_at)) == ([], 15)
    assert len(created_pods(job(), failed, at=15)) == 1
    assert seconds(change(job(), failed, at=15, failures=(1, 2)).wake_at) == 45


def test_missing_pods_wait_for_backoff_of_failed_pods() -> None:
    assert seconds(change(job(parallelism=2, completions=2), failures=(4,), at=5).wake_at) == 14


def test_success_ends_backoff() -> None:
    done = pod("a", "Succeeded", since=6)
    assert len(created_pods(job(completions=2), done, failures=(4,), at=7)) == 1


def test_each_index_has_separate_backoff_and_failure_count() -> None:
    notes = {"batch.kubernetes.io/job-index-failure-count": "1"}
    failed = pod("a", "Failed", index=0, since=5, notes=notes)
    now = change(per_index(3), failed, at=10)
    assert (now.to_create, seconds(now.wake_at)) == ([NewPod(1, 0), NewPod(2, 0)], 25)
    assert change(per_index(3), failed, at=25).to_create[0] == NewPod(0, 2)


def test_index_counts_ignored_failures_separately() -> None:
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    failed = pod("a", "Failed", index=0, conditions=[make.condition("DisruptionTarget")])
    lenient = per_index(podFailurePolicy={"rules": rules})
    assert change(lenient, failed, at=10).to_create[0] == NewPod(0, 0, 1)


def test_suspended_job_deletes_all_pods() -> None:
    assert uids(change(job(suspend=True), pod("a"), pod("b", "Failed")).to_dismiss) == ["uid-a"]


def test_surplus_pods_are_deleted_least_advanced_first() -> None:
    pods = [
        pod("old", "Running", node="n", ready=True, since=1),
        pod("new", "Running", node="n", ready=True, since=2),
        pod("unready", "Running", node="n"),
        pod("starting", node="n"),
        pod("unplaced"),
    ]
    for kept in range(5):
        surplus = change(job(parallelism=kept, completions=9), *pods).to_dismiss
        assert set(uids(surplus)) == {f"uid-{p['metadata']['name']}" for p in pods[kept:]}


def test_surplus_pods_are_deleted_by_restarts_then_age() -> None:
    pods = [pod(name) for name in "abc"]
    pods[1]["status"]["containerStatuses"] = [{"name": "c", "restartCount": 1}]
    pods[2]["metadata"]["creationTimestamp"] = make.stamp(5)
    assert uids(change(job(parallelism=1, completions=9), *pods).to_dismiss) == ["uid-b", "uid-c"]


def test_each_index_keeps_most_advanced_pod() -> None:
    twice = [pod("a", index=0), pod("b", "Running", index=0), pod("c", index=1)]
    assert uids(change(indexed(), *twice).to_dismiss) == ["uid-a"]
    assert uids(change(indexed(), pod("a"), pod("b", index=3)).to_dismiss) == ["uid-a", "uid-b"]
