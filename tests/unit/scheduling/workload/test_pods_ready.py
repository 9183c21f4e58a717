"""waitForPodsReady: the PodsReady condition, timeouts, and blocked admission."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, with_metadata, with_path
from batchyard.base.instant import MINUTE, SECOND
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.integration import JobIntegration
from batchyard.jobs.jobset.integration import JobSetIntegration
from batchyard.scheduling.blocked_cycle import PodsReadyGate
from batchyard.scheduling.controller import Scheduler
from batchyard.scheduling.cycle import SchedulingPolicy
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.controller import WorkloadLifecycle
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy, set_pods_ready, view_by_creation
from stage import Stage, condition_state
from yard import preemption, queue, workload


def workload_of_job(obj: Obj) -> Obj:
    """A Workload with a Job as its owner."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "uid-j", "controller": True}
    return with_metadata(obj, ownerReferences=[owner])


def job_stage(policy: PodsReadyPolicy | None = None) -> Stage:
    """The Job controllers with a queue of four cpus."""
    jobs = [JobReconciler(kind, pods_ready=PodsReadyPolicy()) for kind in (JobIntegration(), JobSetIntegration())]
    stage = Stage(
        Scheduler(SchedulerCache(), SchedulingPolicy()), WorkloadLifecycle(policy or PodsReadyPolicy()), *jobs
    )
    stage.put(make.namespace(), make.flavor("spot"), queue("cq", 4), make.local_queue("lq", cluster_queue="cq"))
    return stage


def set_ready(stage: Stage, kind: str, name: str, **status: Any) -> None:
    stage.put({**stage.get(kind, name), "status": status})


def ready(stage: Stage) -> tuple[str, str, str]:
    return condition_state(stage.only_workload(), "PodsReady")


def test_job_reports_pods_ready() -> None:
    stage = job_stage()
    stage.put(make.job(parallelism=2, completions=2))
    waiting = ("False", "WaitForStart", "Not all pods are ready or succeeded")
    assert ready(stage) == waiting
    set_ready(stage, scheme.JOB, "job", active=2, ready=1)
    assert ready(stage) == waiting
    set_ready(stage, scheme.JOB, "job", active=1, ready=1, uncountedTerminatedPods={"succeeded": ["x"]})
    assert ready(stage) == ("True", "Started", "All pods reached readiness and the workload is running")


def test_lost_pod_sets_wait_for_recovery() -> None:
    stage = job_stage()
    stage.put(make.job())
    set_ready(stage, scheme.JOB, "job", active=1, ready=1)
    set_ready(stage, scheme.JOB, "job", active=1, ready=0)
    assert ready(stage) == ("False", "WaitForRecovery", "At least one pod has failed, waiting for recovery")
    set_ready(stage, scheme.JOB, "job", active=1, ready=0, failed=1)
    assert ready(stage)[1] == "WaitForRecovery"
    set_ready(stage, scheme.JOB, "job", active=1, ready=1, failed=1)
    assert ready(stage)[:2] == ("True", "Recovered")


def test_jobset_is_ready_when_all_jobs_are_ready() -> None:
    stage = job_stage()
    jobs = [make.replicated_job("a"), make.replicated_job("b", replicas=2)]
    stage.put(make.jobset(replicated_jobs=jobs))
    counts = [{"name": "a", "ready": 1}, {"name": "b", "ready": 1}]
    set_ready(stage, scheme.JOB_SET, "js", replicatedJobsStatus=counts)
    assert ready(stage)[0] == "False"
    set_ready(stage, scheme.JOB_SET, "js", replicatedJobsStatus=[counts[0], {**counts[1], "succeeded": 1}])
    assert ready(stage)[0] == "True"


def test_pods_ready_is_not_reported_without_wait_for_pods_ready() -> None:
    stage = Stage(JobReconciler(JobIntegration()))
    stage.put(make.job())
    assert "status" not in stage.only_workload()


def test_workload_is_evicted_after_pods_ready_timeout() -> None:
    stage = job_stage(PodsReadyPolicy(timeout=10 * MINUTE))
    stage.put(make.job())
    name = stage.only_workload()["metadata"]["name"]
    stage.run(599)
    assert lifecycle.is_admitted(stage.only_workload())
    stage.run(600)
    wl = stage.only_workload()
    assert condition_state(wl, "Evicted") == ("True", "PodsReadyTimeout", f"Exceeded the PodsReady timeout team/{name}")
    assert condition_state(wl, "Requeued")[:2] == ("False", "PodsReadyTimeout")
    assert (ready(stage)[1], stage.get(scheme.JOB, "job")["spec"]["suspend"]) == ("WaitForStart", True)
    assert wl["status"]["requeueState"] == {"count": 1, "requeueAt": make.stamp(660)}
    (counted,) = wl["status"]["schedulingStats"]["evictions"]
    assert counted == {"reason": "PodsReadyTimeout", "underlyingCause": "WaitForStart", "count": 1}
    assert stage.reasons().count("EvictedDueToPodsReadyTimeout") == 1
    stage.run(660)
    assert (condition_state(stage.only_workload(), "Requeued")[1], lifecycle.is_admitted(stage.only_workload())) == (
        "BackoffFinished",
        True,
    )


def test_workload_with_ready_pods_is_not_evicted() -> None:
    stage = job_stage()
    stage.put(make.job())
    stage.run(10)
    set_ready(stage, scheme.JOB, "job", active=1, ready=1)
    stage.run(10_000)
    assert lifecycle.is_admitted(stage.only_workload())


def test_backoff_grows_until_requeuing_limit_deactivates_workload() -> None:
    policy = PodsReadyPolicy(timeout=MINUTE, backoff_base=10 * SECOND, backoff_max=30 * SECOND, backoff_limit_count=3)
    stage = job_stage(policy)
    stage.put(make.job())
    stage.run(10_000)
    wl = stage.only_workload()
    evictions = [event for event in stage.events if event.reason == "EvictedDueToPodsReadyTimeout"]
    assert len(evictions) == 3
    assert stage.kernel.now() == make.at(60 + 10 + 60 + 20 + 60 + 30 + 60)
    message = "The workload is deactivated due to exceeding the maximum number of re-queuing retries"
    assert condition_state(wl, "Evicted") == ("True", "DeactivatedDueToRequeuingLimitExceeded", message)
    assert (wl["spec"]["active"], "requeueState" in wl["status"]) == (False, False)
    assert stage.events[-1].reason != "EvictedDueToPodsReadyTimeout"


def test_recovery_timeout_evicts_workload() -> None:
    stage = job_stage(PodsReadyPolicy(recovery_timeout=MINUTE))
    stage.put(make.job())
    set_ready(stage, scheme.JOB, "job", active=1, ready=1)
    stage.kernel.call_at(make.at(100), lambda: None)
    stage.run(100)
    set_ready(stage, scheme.JOB, "job", active=1, ready=0)
    stage.run(159)
    assert not lifecycle.is_evicted(stage.only_workload())
    stage.run(160)
    (counted,) = stage.only_workload()["status"]["schedulingStats"]["evictions"]
    assert counted["underlyingCause"] == "WaitForRecovery"


def test_maximum_execution_time_applies_with_pods_ready_policy() -> None:
    stage = job_stage()
    stage.put(make.job(labels={"kueue.x-k8s.io/max-exec-time-seconds": "60"}))
    stage.run(60)
    assert condition_state(stage.only_workload(), "Evicted")[1] == "DeactivatedDueToMaximumExecutionTimeExceeded"


def test_workload_without_job_has_no_pods_ready_timeout() -> None:
    stage = Stage(WorkloadLifecycle(PodsReadyPolicy()))
    stage.put(make.namespace(), make.cluster_queue(), make.local_queue())
    stage.put(lifecycle.reserve_quota(make.workload(), make.admission(), make.NOW, admitted=True))
    assert stage.kernel.pending_count() == 0


def test_without_job_policy_applies_timeout_to_workload_without_job() -> None:
    stage = Stage(WorkloadLifecycle(PodsReadyPolicy(timeout=MINUTE, without_job=True)))
    stage.put(make.namespace(), make.cluster_queue(), make.local_queue())
    stage.put(lifecycle.reserve_quota(make.workload(), make.admission(), make.NOW, admitted=True))
    stage.run(60)
    assert condition_state(stage.only_workload(), "Evicted")[1] == "PodsReadyTimeout"


# Blocked admission.


def blocked_stage(*objects: Obj, **spec: Any) -> Stage:
    stage = Stage(
        Scheduler(SchedulerCache(), SchedulingPolicy(), gate=PodsReadyGate()), WorkloadLifecycle(PodsReadyPolicy())
    )
    stage.put(make.namespace(), make.flavor("spot"))
    for name in ("cq", "other"):
        stage.put(queue(name, 4, **spec), make.local_queue(name, cluster_queue=name))
    stage.put(*objects)
    return stage


def states(stage: Stage, *names: str) -> list[str]:
    return [lifecycle.status(stage.workload(name)).value for name in names]


def be_ready(stage: Stage, name: str) -> None:
    stage.put(set_pods_ready(stage.workload(name), True, stage.kernel.now()))


def test_workloads_are_admitted_sequentially_until_pods_are_ready() -> None:
    names = ("a", "b", "c")
    stage = blocked_stage(
        workload_of_job(workload("a")),
        workload_of_job(workload("b", created=1)),
        workload_of_job(workload("c", queue="other")),
    )
    assert states(stage, *names) == ["admitted", "pending", "pending"]
    message = "waiting for all admitted workloads to be in PodsReady condition"
    assert condition_state(stage.workload("c"), "QuotaReserved") == ("False", "WaitingForPodsReady", message)
    be_ready(stage, "a")
    assert states(stage, *names).count("admitted") == 2
    for name in names:
        be_ready(stage, name)
    assert states(stage, *names) == ["admitted"] * 3


def test_gate_opens_when_unready_workload_is_finished_or_deleted() -> None:
    stage = blocked_stage(workload_of_job(workload("a")), workload_of_job(workload("b", created=1)))
    stage.put(lifecycle.finish(stage.workload("a"), "Failed", "", make.NOW))
    assert states(stage, "a", "b") == ["finished", "admitted"]
    stage.put(workload_of_job(workload("c", created=2)))
    stage.delete(scheme.WORKLOAD, "b")
    assert states(stage, "c") == ["admitted"]


def test_workload_without_job_does_not_block_admission() -> None:
    stage = blocked_stage(workload("a"), workload_of_job(workload("b", created=1)), workload("c", created=2))
    assert states(stage, "a", "b", "c") == ["admitted", "admitted", "pending"]


def test_no_workload_is_preempted_while_admission_is_blocked() -> None:
    rules = preemption(within="LowerPriority")
    stage = blocked_stage(
        workload_of_job(workload("a", 3)), workload_of_job(workload("b", 1, queue="other")), preemption=rules
    )
    stage.put(workload_of_job(workload("high", 3, priority=5)))
    assert not lifecycle.is_evicted(stage.workload("a"))
    be_ready(stage, "a")
    be_ready(stage, "b")
    assert lifecycle.is_evicted(stage.workload("a"))


def test_missing_quota_is_reported_while_admission_is_blocked() -> None:
    stage = blocked_stage(workload_of_job(workload("a", 3)), workload_of_job(workload("b", 3, created=1)))
    stage.run(5)
    assert condition_state(stage.workload("b"), "QuotaReserved")[1] == "WaitingForQuota"
    stage.put(workload_of_job(workload("c", queue="other")))
    assert condition_state(stage.workload("c"), "QuotaReserved")[1] == "WaitingForPodsReady"


# The position in the queue.


def timed_out_workload(name: str, created: float, at: float) -> Obj:
    evicted = make.condition("Evicted", reason="PodsReadyTimeout", since=at)
    return workload(name, created=created, conditions=[evicted, make.condition("Requeued", since=at)])


def test_timed_out_workload_is_requeued_by_eviction_or_creation_time() -> None:
    for index, first in ((SchedulerCache(), "new"), (SchedulerCache(view_by_creation), "old")):
        stage = Stage(Scheduler(index, SchedulingPolicy()))
        stage.put(make.namespace(), make.flavor("spot"), make.local_queue("cq", cluster_queue="cq"))
        stage.put(timed_out_workload("old", created=0, at=50), workload("new", created=10))
        stage.put(queue("cq", 1))
        assert [name for name in ("old", "new") if states(stage, name) != ["pending"]] == [first]


def test_workload_evicted_by_check_is_requeued_by_eviction_time() -> None:
    wl = timed_out_workload("old", created=0, at=50)
    wl = with_path(wl, ("status", "conditions"), [{**wl["status"]["conditions"][0], "reason": "AdmissionCheck"}])
    assert view_by_creation(wl).queued == make.at(50)
