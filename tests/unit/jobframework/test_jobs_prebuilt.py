"""Jobs with prebuilt Workloads."""

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.integration import JobIntegration
from batchyard.scheduling.workload import lifecycle
from stage import Stage, condition_state

PREBUILT = "kueue.x-k8s.io/prebuilt-workload-name"
JOB = make.job(labels={PREBUILT: "wl"})


def job_stage(*objects: Obj) -> Stage:
    """A stage with the job reconciler."""
    stage = Stage(JobReconciler(JobIntegration()))
    stage.put(make.flavor(), *objects)
    return stage


def owners(stage: Stage) -> list[str]:
    """The owners of the Workload."""
    return [owner["name"] for owner in stage.only_workload()["metadata"].get("ownerReferences") or ()]


def admit(stage: Stage) -> None:
    """Admit the Workload."""
    admission = make.admission(main=1)
    stage.put(lifecycle.reserve_quota(stage.only_workload(), admission, stage.kernel.now(), admitted=True))


def test_job_adopts_prebuilt_workload() -> None:
    stage = job_stage(make.workload("wl"), JOB)
    assert owners(stage) == ["job"]
    assert stage.only_workload()["metadata"]["labels"]["kueue.x-k8s.io/job-uid"] == "uid-job"


def test_prebuilt_annotation_overrides_label() -> None:
    stage = job_stage(make.workload("wl"), make.job(labels={PREBUILT: "other"}, annotations={PREBUILT: "wl"}))
    assert owners(stage) == ["job"]


def test_job_starts_after_prebuilt_workload_is_admitted() -> None:
    stage = job_stage(make.workload("wl"), JOB)
    admit(stage)
    assert stage.get(scheme.JOB, "job")["spec"]["suspend"] is False


def test_job_waits_for_prebuilt_workload() -> None:
    stage = job_stage(JOB)
    assert list(stage.client.list(scheme.WORKLOAD)) == []
    stage.put(make.workload("wl"))
    assert owners(stage) == ["job"]


def test_prebuilt_workload_with_other_pod_sets_is_out_of_sync() -> None:
    stage = job_stage(make.workload("wl", pod_sets=[make.pod_set(count=2)]), JOB)
    finished = condition_state(stage.only_workload(), "Finished")
    assert finished == ("True", "OutOfSync", "The prebuilt workload is out of sync with its user job")


def test_prebuilt_workload_of_other_job_is_ignored() -> None:
    stage = job_stage(make.workload("wl"), JOB, make.job("late", labels={PREBUILT: "wl"}))
    admit(stage)
    assert owners(stage) == ["job"]
    assert stage.get(scheme.JOB, "late")["spec"]["suspend"] is True


def test_job_is_suspended_after_prebuilt_workload_is_deleted() -> None:
    stage = job_stage(make.workload("wl"), JOB)
    admit(stage)
    stage.delete(scheme.WORKLOAD, "wl")
    assert stage.get(scheme.JOB, "job")["spec"]["suspend"] is True
    assert "Stopped" in [event.reason for event in stage.events]


def test_finished_job_is_kept_as_it_is_without_its_prebuilt_workload() -> None:
    ended = make.job(labels={PREBUILT: "wl"}, suspend=False)
    stage = job_stage({**ended, "status": {"succeeded": 1, "conditions": [make.condition("Complete")]}})
    assert stage.get(scheme.JOB, "job")["spec"]["suspend"] is False
    assert (stage.workloads(), stage.events) == ([], [])
