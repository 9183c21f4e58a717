"""Work lost by stopped Pods."""

from typing import Any

import pytest

import make
from batchyard.api.meta import with_status
from batchyard.api.views.pods import (
    RESUMED,
    ResumedWork,
    checkpoint_interval,
    lost_work,
    most_saved_work,
    resumed_work,
    resumption,
    running_since,
    saved_work,
    saved_work_key,
    with_resumption,
    with_saved_work,
)
from batchyard.base.instant import MINUTE, SECOND, Instant


def annotated_object(text: str | None) -> Any:
    annotations = None if text is None else {"batchyard.dev/checkpoint-every": text}
    return {"metadata": make.metadata("o", annotations=annotations)}


def pod(phase: str, **state: Any) -> Any:
    return {"metadata": make.metadata("p"), "status": {"phase": phase, "containerStatuses": [{"state": state}]}}


@pytest.mark.parametrize(
    ("started", "interval", "lost"),
    [
        (make.at(0), None, 100 * SECOND),
        (make.at(0), 30 * SECOND, 10 * SECOND),
        (make.at(0), 50 * SECOND, 0),
        (make.at(0), 5 * MINUTE, 100 * SECOND),
        (make.at(95), 30 * SECOND, 5 * SECOND),
        (make.at(101), None, 0),
        (None, None, 0),
    ],
)
def test_lost_work_is_time_since_last_checkpoint(started: Instant | None, interval: int | None, lost: int) -> None:
    assert lost_work(started, interval, make.at(100)) == lost


def test_checkpoint_interval_is_read_from_first_annotated_object() -> None:
    assert (
        checkpoint_interval([annotated_object(None), None, annotated_object("5m"), annotated_object("1m")])
        == 5 * MINUTE
    )


@pytest.mark.parametrize("text", [None, "often", "", "0s"])
def test_checkpoint_interval_is_none_without_valid_annotation(text: str | None) -> None:
    assert checkpoint_interval([annotated_object(text)]) is None


def test_running_since_returns_container_start_time() -> None:
    started = {"startedAt": make.stamp(7)}
    assert running_since(pod("Running", running=started)) == make.at(7)
    assert running_since(pod("Running", waiting={"reason": "CrashLoopBackOff"})) is None
    assert running_since(pod("Succeeded", running=started)) is None
    assert running_since({"metadata": make.metadata("p")}) is None


def test_place_of_pod_consists_of_job_and_index() -> None:
    labels = {"jobset.sigs.k8s.io/replicatedjob-name": "slice", "jobset.sigs.k8s.io/job-index": "2"}
    index = {"batch.kubernetes.io/job-completion-index": "3"}
    assert saved_work_key({"metadata": make.metadata("p", labels=labels, annotations=index)}) == "slice/2/3"
    assert saved_work_key({"metadata": make.metadata("p", labels=labels)}) == "slice/2/p"
    assert saved_work_key({"metadata": make.metadata("p", annotations=index)}) == "3"


def test_resumption_of_pod_round_trips() -> None:
    resumed = ResumedWork("slice/2/3", 90 * SECOND)
    reported = with_resumption(pod("Running"), resumed, make.NOW)
    assert (resumption(reported), saved_work_key(reported)) == (resumed, "slice/2/3")
    assert with_resumption(reported, resumed, make.at(9)) is reported
    for nothing in (None, ResumedWork("slice/2/3", 0)):
        without_condition = with_resumption(reported, nothing, make.NOW)
        assert resumption(without_condition) is None
        assert with_resumption(without_condition, nothing, make.NOW) is without_condition


@pytest.mark.parametrize(
    "text", [{}, {"message": "hello"}, {"message": "5s"}, {"message": "soon of work were done at 1"}]
)
def test_malformed_resumption_counts_as_none(text: dict[str, str]) -> None:
    condition = {"type": RESUMED, "status": "True", **text}
    malformed = with_status(pod("Running"), {"phase": "Running", "conditions": [condition]})
    assert (resumption(malformed), resumed_work(malformed), saved_work_key(malformed)) == (None, 0, "p")
    resumed = ResumedWork("1", 5 * SECOND)
    reported = with_resumption(malformed, resumed, make.NOW)
    assert (resumption(reported), len(reported["status"]["conditions"])) == (resumed, 1)
    assert with_resumption(malformed, None, make.NOW)["status"]["conditions"] == []


def test_saved_work_is_stored_per_place() -> None:
    job = with_saved_work(with_saved_work(make.job(), "1", 10_500_000), "0", 5 * SECOND)
    assert job["metadata"]["annotations"] == {"batchyard.dev/work-done": '{"1":"10500000us","0":"5s"}'}
    assert [saved_work(job, place) for place in "012"] == [5_000_000, 10_500_000, 0]
    assert with_saved_work(job, "0", 5 * SECOND) is job
    assert with_saved_work(with_saved_work(job, "0", 0), "1", 0)["metadata"]["annotations"] == {}


def test_most_saved_returns_largest_work_and_first_name() -> None:
    job = make.job()
    for place, work in (("c", 5), ("b", 7), ("a", 7), ("d", 9)):
        job = dict(with_saved_work(job, place, work))
    assert most_saved_work(job, "cba") == ResumedWork("a", 7)
    assert most_saved_work(job, "xyz") is None
