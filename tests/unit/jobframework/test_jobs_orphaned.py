"""Workloads orphaned by the deletion of their job (`kubectl delete --cascade=orphan`)."""

from typing import cast

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import key_of, with_metadata
from batchyard.interfaces.client import Reader, Update
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.integration import JobIntegration
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from stage import Stage, condition_state

GONE = ("True", "OwnerNotFound", "The workload's owner no longer exists")


def job_stage() -> Stage:
    """A stage with a queued Job."""
    stage = Stage(JobReconciler(JobIntegration()), WorkloadLifecycle())
    stage.put(make.flavor(), make.job())
    return stage


def test_orphaned_workload_is_finished_and_kept() -> None:
    stage = job_stage()
    stage.delete_without_dependents(scheme.JOB, "job")
    workload = stage.only_workload()
    assert condition_state(workload, "Finished") == GONE
    assert "finalizers" not in workload["metadata"]


def test_new_job_with_same_name_ignores_orphaned_workload() -> None:
    stage = job_stage()
    left = stage.only_workload()["metadata"]["name"]
    stage.delete_without_dependents(scheme.JOB, "job")
    stage.put(with_metadata(make.job(), uid="uid-of-the-next"))
    names = [workload["metadata"]["name"] for workload in stage.workloads()]
    assert left in names
    assert len(names) == 2


def test_job_with_orphan_finalizer_keeps_its_workload() -> None:
    controller = JobReconciler(JobIntegration())
    stage = Stage(controller)
    stage.put(make.flavor(), with_metadata(make.job(), finalizers=["example.com/keep", well_known.ORPHAN_FINALIZER]))
    job = with_metadata(stage.get(scheme.JOB, "job"), deletionTimestamp="2026-01-01T00:00:00Z")
    reader = {key_of(each): each for each in (job, *stage.workloads())}
    writes = controller.reconcile(key_of(job), cast("Reader", reader), stage.kernel.now()).writes
    assert [type(each) for each in writes] == [Update]
    assert "finalizers" not in cast("Update", writes[0]).obj["metadata"]
