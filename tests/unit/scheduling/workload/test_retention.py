"""objectRetentionPolicies: finished Workloads and jobs deactivated by Kueue are deleted after a time."""

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import with_path
from batchyard.base.instant import SECOND
from batchyard.interfaces.controller import Controller
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.integration import JobIntegration
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.scheduling.workload.retention import (
    FinishedWorkloadRetention,
    RetentionPolicy,
    job_deletion_time,
    parse_retention_policy,
)
from stage import Stage
from yard import queue


def finished(name: str, at: float = 0) -> dict[str, object]:
    condition = make.condition("Finished", reason="Succeeded", lastTransitionTime=make.stamp(at))
    return make.workload(name, conditions=[condition])


def names(stage: Stage) -> list[str]:
    return sorted(obj["metadata"]["name"] for obj in stage.workloads())


def test_finished_workload_is_deleted_after_retention_time() -> None:
    stage = Stage(FinishedWorkloadRetention(60 * SECOND))
    stage.put(finished("a"), finished("b", 30), make.workload("pending"))
    stage.run(59)
    assert names(stage) == ["a", "b", "pending"]
    stage.run(60)
    assert names(stage) == ["b", "pending"]
    (event,) = stage.events
    assert (event.reason, event.message) == ("Deleted", "Deleted finished workload due to elapsed retention")
    stage.run(90)
    assert names(stage) == ["pending"]


def test_workload_with_leftover_finalizer_is_deleted() -> None:
    stage = Stage(FinishedWorkloadRetention(0))
    obj = finished("a")
    stage.put(with_path(obj, ("metadata", "finalizers"), ["kueue.x-k8s.io/resource-in-use"]))
    assert names(stage) == []


def test_restart_resumes_retention_time_of_finished_workloads() -> None:
    stage = Stage(FinishedWorkloadRetention(60 * SECOND))
    stage.put(finished("a"), finished("b", 30))
    stage.replace_controllers(FinishedWorkloadRetention(60 * SECOND))
    stage.run(60)
    assert names(stage) == ["b"]
    stage.run(90)
    assert names(stage) == []


def controllers() -> list[Controller]:
    retention = RetentionPolicy(after_deactivated=60 * SECOND)
    jobs = JobReconciler(JobIntegration(), retention=retention)
    return [Scheduler(SchedulerCache(), SchedulingPolicy()), WorkloadLifecycle(), jobs]


def running_job() -> Stage:
    """Return a stage with a Job that may run for 30 seconds."""
    stage = Stage(*controllers())
    stage.put(make.namespace(), make.flavor("spot"), queue("cq", 4), make.local_queue("lq", cluster_queue="cq"))
    stage.put(make.job(labels={"kueue.x-k8s.io/max-exec-time-seconds": "30"}))
    return stage


def test_job_deactivated_by_kueue_is_deleted_after_retention_time() -> None:
    stage = running_job()
    stage.run(89)
    assert not stage.only_workload()["spec"]["active"]
    stage.run(90)
    assert stage.client.list(scheme.JOB) == []
    messages = [event.message for event in stage.events if event.reason == "Deleted"]
    assert messages == ["Deleted job: deactivation retention period expired"]


def test_restart_resumes_retention_time_of_deactivated_job() -> None:
    stage = running_job()
    stage.run(40)
    stage.replace_controllers(*controllers())
    stage.run(89)
    assert len(stage.client.list(scheme.JOB)) == 1
    stage.run(90)
    assert stage.client.list(scheme.JOB) == []


def test_job_deactivated_by_user_is_kept() -> None:
    stage = running_job()
    stage.put(with_path(stage.only_workload(), ("spec", "active"), False))
    stage.run(1000)
    assert len(stage.client.list(scheme.JOB)) == 1


@pytest.mark.parametrize(
    ("reason", "active", "deletes"),
    [
        ("DeactivatedDueToRequeuingLimitExceeded", False, True),
        ("DeactivatedDueToAdmissionCheck", False, True),
        ("DeactivatedDueToAdmissionCheck", True, False),
        ("Deactivated", False, False),
        ("PodsReadyTimeout", False, False),
    ],
)
def test_only_deactivation_by_kueue_deletes_jobs(reason: str, active: bool, deletes: bool) -> None:
    evicted = make.condition("Evicted", reason=reason, lastTransitionTime=make.stamp(0))
    workload = make.workload(conditions=[evicted], active=active)
    assert job_deletion_time(workload, 5 * SECOND) == (make.at(5) if deletes else None)


def test_retention_times_are_parsed() -> None:
    assert parse_retention_policy({}) == RetentionPolicy()
    workloads = {"afterFinished": "0s", "afterDeactivatedByKueue": "1h"}
    assert parse_retention_policy({"workloads": workloads}) == RetentionPolicy(0, 3600 * SECOND)
