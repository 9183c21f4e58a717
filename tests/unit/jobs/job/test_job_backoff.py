"""The backoff before Jobs replace failed pods, and the end times of pods."""

import make
from batchyard.jobs.job.spec import backoff_end, failures_since_success, finished_at, index_backoff_end
from unit.jobs.job.job_make import pod, seconds, terminated_status


def test_backoff_doubles_up_to_ten_minutes() -> None:
    waits = [seconds(backoff_end([make.NOW] * failures)) for failures in range(1, 9)]
    assert waits == [10, 20, 40, 80, 160, 320, 600, 600]
    assert backoff_end([]) == 0


def test_success_resets_failures() -> None:
    failures = [make.at(s) for s in (1, 5, 9)]
    assert failures_since_success(failures, [make.at(5)]) == [make.at(9)]
    assert failures_since_success(failures, [make.at(9), make.at(2)]) == []
    assert failures_since_success(reversed(failures), []) == failures


def test_since_success_keeps_at_most_seven_failures() -> None:
    assert len(failures_since_success([make.at(s) for s in range(20)], ())) == 7


def test_index_backoff_counts_failures_and_ignored_failures() -> None:
    notes = {"batch.kubernetes.io/job-index-failure-count": "1"}
    assert seconds(index_backoff_end(pod("p", "Failed", since=5))) == 15
    assert seconds(index_backoff_end(pod("p", "Failed", since=5, notes=notes))) == 25
    notes["batch.kubernetes.io/job-index-ignored-failure-count"] = "1"
    assert seconds(index_backoff_end(pod("p", "Failed", since=5, notes=notes))) == 45


def test_pod_finish_time_is_that_of_last_container() -> None:
    both = pod("p", "Failed", exit_code=1, since=7)
    both["status"]["containerStatuses"].append(terminated_status("d", 0, 9))
    assert seconds(finished_at(both)) == 9
    both["status"]["containerStatuses"].append({"name": "e", "state": {"running": {}}})
    assert seconds(finished_at(both)) == 7  # the time of its Ready condition


def test_pod_finish_time_without_status_is_deletion_or_creation() -> None:
    gone = pod("p", deleted=True, since=12)
    gone["status"] = {}
    assert seconds(finished_at(gone)) == 12
    silent = pod("p")
    silent["status"] = {}
    assert seconds(finished_at(silent)) == 0
