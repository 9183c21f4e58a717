"""Jobs without nodes: their pods run unscheduled, and the Job status counts them."""

from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, with_path
from batchyard.jobs.job.controller import JobPodController
from batchyard.kubelet.simulated.kubelet import SimulatedKubelets
from stage import Stage, condition_state


def job_stage(*objects: Obj) -> Stage:
    stage = Stage(JobPodController(), SimulatedKubelets(with_nodes=False))
    stage.put(*objects)
    return stage


def job_status(stage: Stage) -> Any:
    return stage.get(scheme.JOB, "job")["status"]


def set_suspended(stage: Stage, suspended: bool) -> None:
    stage.put(with_path(stage.get(scheme.JOB, "job"), ("spec", "suspend"), suspended))


def test_job_completes_after_one_minute_by_default() -> None:
    stage = job_stage(make.job(suspend=False, parallelism=2, completions=2, completionMode="Indexed"))
    running = {"startTime": make.stamp(), "active": 2, "ready": 2, "terminating": 0, "uncountedTerminatedPods": {}}
    assert job_status(stage) == running
    stage.run(59)
    assert "completionTime" not in job_status(stage)
    stage.run(60)
    status = job_status(stage)
    assert (status["succeeded"], status["completedIndexes"], status["completionTime"]) == (2, "0,1", make.stamp(60))
    assert "active" not in status
    reached = ("True", "CompletionsReached", "Reached expected number of succeeded pods")
    assert [c["type"] for c in status["conditions"]] == ["SuccessCriteriaMet", "Complete"]
    assert condition_state(stage.get(scheme.JOB, "job"), "Complete") == reached
    assert stage.reasons() == ["SuccessfulCreate", "SuccessfulCreate", "Completed"]


def test_suspended_job_starts_when_resumed() -> None:
    stage = job_stage(make.job(annotations={"batchyard.dev/runtime": "10s"}))
    assert condition_state(stage.get(scheme.JOB, "job"), "Suspended") == ("True", "JobSuspended", "Job suspended")
    stage.kernel.call_at(make.at(5), lambda: None)
    stage.run(5)
    set_suspended(stage, suspended=False)
    assert condition_state(stage.get(scheme.JOB, "job"), "Suspended") == ("False", "JobResumed", "Job resumed")
    assert job_status(stage)["startTime"] == make.stamp(5)
    stage.run(15)
    assert job_status(stage)["completionTime"] == make.stamp(15)
    assert sorted(stage.reasons()) == ["Completed", "Resumed", "SuccessfulCreate", "Suspended"]


def test_job_suspended_again_has_no_pods_and_restarts_from_zero() -> None:
    stage = job_stage(make.job(suspend=False, annotations={"batchyard.dev/runtime": "10s"}))
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
def test_job_runs_no_more_pods_than_completions(spec: Obj, active: int) -> None:
    assert job_status(job_stage(make.job(suspend=False, **spec)))["active"] == active


@pytest.mark.parametrize(("completions", "indexes"), [(0, None), (1, "0"), (2, "0,1"), (3, "0-2"), (12, "0-11")])
def test_three_or_more_consecutive_completed_indexes_form_range(completions: int, indexes: str | None) -> None:
    spec: Obj = {"parallelism": completions, "completions": completions, "completionMode": "Indexed"}
    stage = job_stage(make.job(suspend=False, **spec))
    stage.run(60)
    status = job_status(stage)
    assert (status.get("succeeded", 0), status.get("completedIndexes")) == (completions, indexes)
