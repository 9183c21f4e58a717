"""Jobs of queues with their pods: they run when they are admitted, and stop when they are evicted."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.controller import JobPodController
from batchyard.jobs.job.integration import JobIntegration
from batchyard.jobs.job.spec import with_selector
from batchyard.scheduling.workload import lifecycle
from unit.client.job_pods_make import JobStage
from unit.jobs.job.job_make import indexed


def queued(**spec: Any) -> JobStage:
    """An Indexed Job of three pods that waits in its queue, with what the API server adds to it."""
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
    stage.put(lifecycle.evict(stage.only_workload(), reason="Preempted", message="make room", now=now))


def test_an_admitted_job_has_pods_that_go_where_its_flavor_is() -> None:
    stage = queued()
    assert stage.pods(None) == []
    admit(stage)
    assert [pod["spec"]["nodeSelector"] for pod in stage.pods()] == [{"zone": "a"}] * 3
    assert {pod["metadata"]["labels"]["kueue.x-k8s.io/podset"] for pod in stage.pods()} == {"main"}
    assert lifecycle.is_admitted(stage.only_workload())


def test_an_evicted_job_gives_up_its_pods_and_then_its_quota_and_runs_again() -> None:
    stage = queued()
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


def test_a_workload_ends_with_its_job() -> None:
    stage = queued()
    admit(stage)
    stage.become("Succeeded", stage.pods()[0])
    stage.pass_time(1)
    assert stage.only_workload()["status"]["reclaimablePods"] == [{"name": "main", "count": 1}]
    stage.become("Succeeded")
    assert lifecycle.is_finished(stage.only_workload())
    assert stage.get(scheme.JOB, "job")["status"]["succeeded"] == 3
