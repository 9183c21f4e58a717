"""Jobs whose Workloads were made beforehand."""

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.integration import JobIntegration
from batchyard.scheduling.workload import lifecycle
from stage import Stage, stated

PREBUILT = "kueue.x-k8s.io/prebuilt-workload-name"
JOB = make.job(labels={PREBUILT: "wl"})


def job_stage(*objects: Obj) -> Stage:
    """A world with the Job controller."""
    stage = Stage(JobReconciler(JobIntegration()))
    stage.put(make.flavor(), *objects)
    return stage


def owners(stage: Stage) -> list[str]:
    """Who owns the Workload."""
    return [owner["name"] for owner in stage.only_workload()["metadata"].get("ownerReferences") or ()]


def admit(stage: Stage) -> None:
    """Admit the Workload."""
    admission = make.admission(main=1)
    stage.put(lifecycle.reserve_quota(stage.only_workload(), admission, stage.kernel.now(), admitted=True))


def test_a_job_takes_the_workload_it_names_and_makes_none() -> None:
    stage = job_stage(make.workload("wl"), JOB)
    assert owners(stage) == ["job"]
    assert stage.only_workload()["metadata"]["labels"]["kueue.x-k8s.io/job-uid"] == "uid-job"


def test_the_annotation_counts_before_the_label() -> None:
    stage = job_stage(make.workload("wl"), make.job(labels={PREBUILT: "other"}, annotations={PREBUILT: "wl"}))
    assert owners(stage) == ["job"]


def test_a_job_runs_as_its_prebuilt_workload_says() -> None:
    stage = job_stage(make.workload("wl"), JOB)
    admit(stage)
    assert stage.get(scheme.JOB, "job")["spec"]["suspend"] is False


def test_a_workload_that_comes_later_is_waited_for() -> None:
    stage = job_stage(JOB)
    assert list(stage.client.list(scheme.WORKLOAD)) == []
    stage.put(make.workload("wl"))
    assert owners(stage) == ["job"]


def test_a_workload_that_asks_for_something_else_is_over() -> None:
    stage = job_stage(make.workload("wl", pod_sets=[make.pod_set(count=2)]), JOB)
    said_of = stated(stage.only_workload(), "Finished")
    assert said_of == ("True", "OutOfSync", "The prebuilt workload is out of sync with its user job")


def test_the_workload_of_another_job_is_left_alone() -> None:
    stage = job_stage(make.workload("wl"), JOB, make.job("late", labels={PREBUILT: "wl"}))
    admit(stage)
    assert owners(stage) == ["job"]
    assert stage.get(scheme.JOB, "late")["spec"]["suspend"] is True


def test_a_job_whose_prebuilt_workload_is_deleted_stops() -> None:
    stage = job_stage(make.workload("wl"), JOB)
    admit(stage)
    stage.delete(scheme.WORKLOAD, "wl")
    assert stage.get(scheme.JOB, "job")["spec"]["suspend"] is True
    assert "Stopped" in [event.reason for event in stage.events]
