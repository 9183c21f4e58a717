"""Work that runs without pods."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, with_path
from batchyard.core.lifecycle import workload as lifecycle
from batchyard.runtime.simulated import simulated_runtime
from stage import Stage, said


def admitted(runtime: str | None = "10s") -> Obj:
    annotations = {"batchyard.dev/runtime": runtime} if runtime else None
    return lifecycle.reserve_quota(make.workload(annotations=annotations), make.admission(), make.NOW, admitted=True)


def played(*objects: Obj) -> Stage:
    stage = Stage(*simulated_runtime())
    stage.put(*objects)
    return stage


def job_status(stage: Stage) -> Any:
    return stage.get(scheme.JOB, "job")["status"]


def set_suspended(stage: Stage, suspended: bool) -> None:
    stage.put(with_path(stage.get(scheme.JOB, "job"), ("spec", "suspend"), suspended))


def test_a_bare_workload_finishes_when_its_time_is_over() -> None:
    stage = played(admitted("10s"))
    stage.run(9)
    assert not lifecycle.is_finished(stage.workload())
    stage.run(10)
    assert said(stage.workload(), "Finished") == ("True", "Succeeded", "Job finished successfully")
    assert stage.kernel.now() == make.at(10)


def test_a_bare_workload_without_a_time_runs_for_ever() -> None:
    stage = played(admitted(None))
    stage.run(10**6)
    assert lifecycle.is_admitted(stage.workload())
    assert not lifecycle.is_finished(stage.workload())


def test_a_time_that_is_none_counts_as_none() -> None:
    stage = played(admitted("soon"))
    stage.run(10**6)
    assert not lifecycle.is_finished(stage.workload())


def test_an_evicted_bare_workload_is_released_at_once_and_starts_over() -> None:
    stage = played(admitted("10s"))
    stage.kernel.call_at(make.at(6), lambda: None)
    stage.run(6)
    stage.put(lifecycle.evict(stage.workload(), reason="Preempted", message="make room", now=make.at(6)))
    assert lifecycle.status(stage.workload()) is lifecycle.Status.PENDING
    stage.put(lifecycle.reserve_quota(stage.workload(), make.admission(), make.at(6), admitted=True))
    stage.run(15)
    assert not lifecycle.is_finished(stage.workload())
    stage.run(16)
    assert lifecycle.is_finished(stage.workload())


def test_quota_alone_does_not_start_a_bare_workload() -> None:
    wl = make.workload(annotations={"batchyard.dev/runtime": "10s"})
    stage = played(lifecycle.reserve_quota(wl, make.admission(), make.NOW, admitted=False))
    stage.run(100)
    assert not lifecycle.is_finished(stage.workload())


def test_a_job_runs_a_minute_unless_it_says_otherwise() -> None:
    stage = played(make.job(suspend=False, parallelism=2, completions=2, completionMode="Indexed"))
    assert job_status(stage) == {"startTime": make.stamp(), "active": 2, "ready": 2, "terminating": 0}
    stage.run(59)
    assert "completionTime" not in job_status(stage)
    stage.run(60)
    status = job_status(stage)
    assert (status["succeeded"], status["completedIndexes"], status["completionTime"]) == (2, "0,1", make.stamp(60))
    assert "active" not in status
    reached = ("True", "CompletionsReached", "Reached expected number of succeeded pods")
    assert [c["type"] for c in status["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert said(stage.get(scheme.JOB, "job"), "Complete") == reached
    assert stage.reasons() == ["Completed"]


def test_a_suspended_job_is_told_so_and_runs_when_resumed() -> None:
    stage = played(make.job(annotations={"batchyard.dev/runtime": "10s"}))
    assert said(stage.get(scheme.JOB, "job"), "Suspended") == ("True", "JobSuspended", "Job suspended")
    stage.kernel.call_at(make.at(5), lambda: None)
    stage.run(5)
    set_suspended(stage, suspended=False)
    assert said(stage.get(scheme.JOB, "job"), "Suspended") == ("False", "JobResumed", "Job resumed")
    assert job_status(stage)["startTime"] == make.stamp(5)
    stage.run(15)
    assert job_status(stage)["completionTime"] == make.stamp(15)
    assert stage.reasons() == ["Suspended", "Resumed", "Completed"]


def test_a_job_that_is_suspended_has_no_pods_and_starts_over() -> None:
    stage = played(make.job(suspend=False, annotations={"batchyard.dev/runtime": "10s"}))
    stage.kernel.call_at(make.at(8), lambda: None)
    stage.run(8)
    set_suspended(stage, suspended=True)
    assert ("active" in job_status(stage), job_status(stage)["ready"]) == (False, 0)
    set_suspended(stage, suspended=False)
    stage.run(17)
    assert "completionTime" not in job_status(stage)
    stage.run(18)
    assert job_status(stage)["completionTime"] == make.stamp(18)


@pytest.mark.parametrize(
    ("spec", "active"),
    [({"parallelism": 3, "completions": 2}, 2), ({"parallelism": 2, "completions": 9}, 2), ({"parallelism": 4}, 1)],
)
def test_no_more_pods_run_than_can_complete(spec: Obj, active: int) -> None:
    assert job_status(played(make.job(suspend=False, **spec)))["active"] == active


@pytest.mark.parametrize(("completions", "indexes"), [(0, None), (1, "0"), (2, "0,1"), (3, "0-2"), (12, "0-11")])
def test_only_three_completed_indexes_in_a_row_become_a_range(completions: int, indexes: str | None) -> None:
    spec: Obj = {"parallelism": completions, "completions": completions, "completionMode": "Indexed"}
    stage = played(make.job(suspend=False, **spec))
    stage.run(60)
    status = job_status(stage)
    assert (status["succeeded"], status.get("completedIndexes")) == (completions, indexes)
