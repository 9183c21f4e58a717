"""JobSets as Workloads: their child Jobs start and stop with them."""

from collections.abc import Mapping
from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, with_path
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobs.job.controller import JobPodController
from batchyard.jobs.job.integration import JobIntegration
from batchyard.jobs.jobset.controller import JobSetController
from batchyard.jobs.jobset.integration import JobSetIntegration
from batchyard.kubelet.simulated.kubelet import SimulatedKubelets
from batchyard.scheduling.workload import evictions, lifecycle
from stage import Stage, condition_state

TWO = [make.replicated_job("driver"), make.replicated_job("worker", replicas=2, parallelism=3, completions=3)]


def jobset_stage(*objects: Obj) -> Stage:
    kueue = JobReconciler(JobIntegration()), JobReconciler(JobSetIntegration())
    stage = Stage(*kueue, JobPodController(), JobSetController(), SimulatedKubelets(with_nodes=False))
    stage.put(make.flavor(labels={"zone": "a"}), *objects)
    return stage


def jobset(stage: Stage) -> Mapping[str, Any]:
    return stage.get(scheme.JOB_SET, "js")


def admit(stage: Stage, **pod_sets: int) -> None:
    stage.put(
        lifecycle.reserve_quota(
            stage.only_workload(), make.admission("cq", **pod_sets), stage.kernel.now(), admitted=True
        )
    )


def children(stage: Stage) -> dict[str, Obj]:
    return {job["metadata"]["name"]: job for job in stage.client.list(scheme.JOB)}


def test_each_replicated_job_is_pod_set() -> None:
    pod_sets = JobSetIntegration().pod_sets(make.jobset(replicated_jobs=TWO))
    assert [(p["name"], p["count"]) for p in pod_sets] == [("driver", 1), ("worker", 6)]
    assert pod_sets[1]["topologyRequest"] == {
        "podIndexLabel": "batch.kubernetes.io/job-completion-index",
        "subGroupIndexLabel": "jobset.sigs.k8s.io/job-index",
        "subGroupCount": 2,
    }


def test_succeeded_replicas_are_reclaimable() -> None:
    status = {"replicatedJobsStatus": [{"name": "driver", "succeeded": 0}, {"name": "worker", "succeeded": 1}]}
    js = {**make.jobset(replicated_jobs=TWO), "status": status}
    assert JobSetIntegration().reclaimable_pods(js) == [{"name": "worker", "count": 3}]


def test_suspended_jobset_has_suspended_child_jobs() -> None:
    stage = jobset_stage(make.jobset(replicated_jobs=TWO))
    assert list(children(stage)) == ["js-driver-0", "js-worker-0", "js-worker-1"]
    assert all(job["spec"]["suspend"] for job in children(stage).values())
    assert condition_state(jobset(stage), "Suspended") == ("True", "SuspendedJobs", "jobset is suspended")
    assert [s["suspended"] for s in jobset(stage)["status"]["replicatedJobsStatus"]] == [2, 1]
    assert len(stage.workloads()) == 1, "child Jobs have no Workloads of their own"


def test_child_jobs_have_index_labels() -> None:
    stage = jobset_stage(make.jobset(replicated_jobs=TWO))
    labels = children(stage)["js-worker-1"]["metadata"]["labels"]
    place = {name.removeprefix("jobset.sigs.k8s.io/"): value for name, value in labels.items()}
    assert place["jobset-name"] == "js"
    assert (place["replicatedjob-name"], place["replicatedjob-replicas"], place["job-index"]) == ("worker", "2", "1")
    assert (place["global-replicas"], place["job-global-index"], place["restart-attempt"]) == ("3", "2", "0")
    assert (place["group-name"], place["group-replicas"], place["job-group-index"]) == ("default", "3", "2")
    (owner,) = children(stage)["js-worker-1"]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("JobSet", "js", True)


def test_admitted_jobset_runs_and_completes() -> None:
    stage = jobset_stage(make.jobset(replicated_jobs=TWO, annotations={"batchyard.dev/runtime": "5m"}))
    admit(stage, driver=1, worker=6)
    assert [s["active"] for s in jobset(stage)["status"]["replicatedJobsStatus"]] == [2, 1]
    assert condition_state(jobset(stage), "Suspended") == ("False", "ResumeJobs", "jobset is resumed")
    worker = children(stage)["js-worker-0"]
    assert worker["spec"]["template"]["spec"]["nodeSelector"] == {"zone": "a"}
    stage.run(299)
    assert "terminalState" not in jobset(stage)["status"]
    stage.run(300)
    assert condition_state(jobset(stage), "Completed") == ("True", "AllJobsCompleted", "jobset completed successfully")
    assert jobset(stage)["status"]["terminalState"] == "Completed"
    assert condition_state(stage.only_workload(), "Finished") == ("True", "Succeeded", "jobset completed successfully")


def test_evicted_jobset_suspends_jobs_before_quota_release() -> None:
    stage = jobset_stage(make.jobset(replicated_jobs=TWO))
    original = jobset(stage)["spec"]
    admit(stage, driver=1, worker=6)
    stage.put(evictions.evict(stage.only_workload(), reason="Preempted", message="make room", now=make.NOW))
    assert jobset(stage)["spec"] == original
    assert all(job["spec"]["suspend"] for job in children(stage).values())
    assert [s["active"] for s in jobset(stage)["status"]["replicatedJobsStatus"]] == [0, 0]
    assert lifecycle.status(stage.only_workload()) is lifecycle.Status.PENDING


def test_readmitted_jobset_starts_from_beginning() -> None:
    stage = jobset_stage(make.jobset())
    admit(stage, worker=1)
    stage.run(0)
    stage.kernel.call_at(make.at(50), lambda: None)
    stage.run(50)
    stage.put(evictions.evict(stage.only_workload(), reason="Preempted", message="", now=make.at(50)))
    admit(stage, worker=1)
    stage.run(109)
    assert not lifecycle.is_finished(stage.only_workload())
    stage.run(110)
    assert lifecycle.is_finished(stage.only_workload())


def test_jobset_without_suspend_is_suspended() -> None:
    stage = jobset_stage(make.jobset(suspend=False))
    assert jobset(stage)["spec"]["suspend"] is True
    assert children(stage)["js-worker-0"]["spec"]["suspend"] is True
    assert len(stage.workloads()) == 1


def test_deleted_jobset_removes_child_jobs_and_workload() -> None:
    stage = jobset_stage(make.jobset(replicated_jobs=TWO))
    admit(stage, driver=1, worker=6)
    stage.delete(scheme.JOB_SET, "js")
    assert (children(stage), stage.workloads()) == ({}, [])


def test_success_policy_respects_target_replicated_jobs() -> None:
    policy = {"operator": "All", "targetReplicatedJobs": ["driver"]}
    stage = jobset_stage(make.jobset(replicated_jobs=TWO, successPolicy=policy, queue=None, suspend=False))
    long = with_path(children(stage)["js-worker-0"], ("metadata", "annotations", "batchyard.dev/runtime"), "1h")
    stage.put(long)
    stage.run(60)
    assert jobset(stage)["status"]["terminalState"] == "Completed"
    assert "js-worker-0" not in children(stage), "what still runs is deleted"


def test_jobset_with_mismatched_pod_sets_fails_to_start() -> None:
    stage = jobset_stage(make.jobset(replicated_jobs=TWO))
    admit(stage, driver=1)
    failed = "invalid podset infos: expecting 2 podset, got 1"
    assert condition_state(stage.only_workload(), "Finished") == ("True", "FailedToStart", failed)
