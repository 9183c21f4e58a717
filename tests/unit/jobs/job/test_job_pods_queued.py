"""Queued Jobs with their pods: they run after admission, and stop after eviction."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.controller import JobPodController
from batchyard.jobs.job.integration import JobIntegration
from batchyard.jobs.job.spec import with_selector
from batchyard.scheduling.workload import evictions, lifecycle
from unit.client.job_pods_make import JobStage
from unit.jobs.job.job_make import indexed


def queued_job(**spec: Any) -> JobStage:
    """An Indexed Job of three pods, pending in its queue, with the fields that the API server adds."""
    of = indexed(**spec)
    of["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "lq"}
    of["spec"]["suspend"] = True
    stage = JobStage(with_selector(of), JobReconciler(JobIntegration()), JobPodController())
    stage.put(make.flavor(labels={"zone": "a"}))
    return stage


def admit(stage: JobStage) -> None:
    workload = stage.only_workload()
    stage.put(lifecycle.reserve_quota(workload, make.admission(main=3), stage.kernel.now(), admitted=True))


def evict(stage: JobStage) -> None:
    now = stage.kernel.now()
    stage.put(evictions.evict(stage.only_workload(), reason="Preempted", message="make room", now=now))


def test_admitted_job_creates_pods_with_flavor_node_selector() -> None:
    stage = queued_job()
    assert stage.pods(None) == []
    admit(stage)
    assert [pod["spec"]["nodeSelector"] for pod in stage.pods()] == [{"zone": "a"}] * 3
    assert {pod["metadata"]["labels"]["kueue.x-k8s.io/podset"] for pod in stage.pods()} == {"main"}
    assert lifecycle.is_admitted(stage.only_workload())


def test_evicted_job_deletes_pods_releases_quota_and_runs_again() -> None:
    stage = queued_job()
    admit(stage)
    stage.bind()
    stage.become("Running", ready=True)
    stage.pass_time(10)
    evict(stage)
    assert not lifecycle.has_quota_reservation(stage.only_workload())
    assert ("active" in stage.status, stage.status["terminating"]) == (False, 3)
    stage.stop()
    admit(stage)
    assert (len(stage.pods()), stage.status["startTime"]) == (3, make.stamp(10))
    assert "failed" not in stage.status


def test_workload_finishes_with_its_job() -> None:
    stage = queued_job()
    admit(stage)
    stage.become("Succeeded", stage.pods()[0])
    stage.pass_time(1)
    assert stage.only_workload()["status"]["reclaimablePods"] == [{"name": "main", "count": 1}]
    stage.become("Succeeded")
    assert lifecycle.is_finished(stage.only_workload())
    assert stage.get(scheme.JOB, "job")["status"]["succeeded"] == 3
