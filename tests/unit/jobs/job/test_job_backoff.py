"""How long Jobs wait before they replace failed pods, and when pods ended."""

import make
from batchyard.jobs.job.spec import due_after, finished_at, index_due_after, since_success
from unit.jobs.job.job_make import ended, pod, seconds


def test_each_failure_doubles_the_wait_up_to_ten_minutes() -> None:
    waits = [seconds(due_after([make.NOW] * failures)) for failures in range(1, 9)]
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600]
    assert due_after([]) == 0


def test_a_success_starts_the_count_anew() -> None:
    failures = [make.at(s) for s in (1, 5, 9)]
    assert since_success(failures, [make.at(5)]) == [make.at(9)]
    assert since_success(failures, [make.at(9), make.at(2)]) == []
    assert since_success(reversed(failures), []) == failures


def test_only_so_many_failures_are_remembered_as_make_a_difference() -> None:
    assert len(since_success([make.at(s) for s in range(20)], ())) == 7


def test_an_index_waits_after_its_own_failures_ignored_ones_too() -> None:
    notes = {"batch.kubernetes.io/job-index-failure-count": "1"}
    assert seconds(index_due_after(pod("p", "Failed", since=5))) == 15
    assert seconds(index_due_after(pod("p", "Failed", since=5, notes=notes))) == 25
    notes["batch.kubernetes.io/job-index-ignored-failure-count"] = "1"
    assert seconds(index_due_after(pod("p", "Failed", since=5, notes=notes))) == 45


def test_a_pod_ended_with_its_last_container() -> None:
    both = pod("p", "Failed", exit_code=1, since=7)
    both["status"]["containerStatuses"].append(ended("d", 0, 9))
    assert seconds(finished_at(both)) == 9
    both["status"]["containerStatuses"].append({"name": "e", "state": {"running": {}}})
    assert seconds(finished_at(both)) == 7  # when it was not ready any more


def test_a_pod_that_says_nothing_ended_when_it_was_deleted_or_else_made() -> None:
    gone = pod("p", deleted=True, since=12)
    gone["status"] = {}
    assert seconds(finished_at(gone)) == 12
    silent = pod("p")
    silent["status"] = {}
    assert seconds(finished_at(silent)) == 0
