"""The state, pods and order of jobs, from their Workloads and pods."""

from typing import Any

import pytest

import make
from batchyard.cli.daily.jobs import (
    JobPods,
    JobState,
    count_pods,
    format_requests,
    job_entries,
    state_of,
    workload_entries,
)

Obj = dict[str, Any]
QUOTA, ADMITTED = make.condition("QuotaReserved"), make.condition("Admitted")
EVICTED = make.condition("Evicted", since=5, message="preempted")


def workload(*conditions: Obj, owner: Obj | None = None, name: str = "w", **spec: Any) -> Obj:
    owners = [{"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}] if owner else []
    for reference in owners:
        assert owner is not None
        reference |= {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": make.metadata(name, ownerReferences=owners or None),
        "spec": {"queueName": "lq", "podSets": [make.pod_set(count=2)], **spec},
        "status": {"conditions": list(conditions)},
    }


def pod(name: str, job: str, *, node: str = "", ready: bool = False, phase: str = "Running") -> Obj:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": f"uid-{job}", "controller": True}
    spec = {"nodeName": node} if node else {}
    status = {"phase": phase, "conditions": [make.condition("Ready", ready)]}
    return {"metadata": make.metadata(name, ownerReferences=[owner]), "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("obj", "state"),
    [
        (workload(), JobState.PENDING),
        (workload(make.condition("QuotaReserved", False)), JobState.PENDING),
        (workload(QUOTA), JobState.CHECKING),
        (workload(QUOTA, ADMITTED), JobState.STARTING),
        (workload(QUOTA, ADMITTED, EVICTED), JobState.STOPPING),
        (workload(make.condition("QuotaReserved", False), EVICTED), JobState.PENDING),
        (workload(active=False), JobState.SUSPENDED),
        (workload(QUOTA, ADMITTED, make.condition("Finished", reason="Succeeded")), JobState.COMPLETE),
        (workload(QUOTA, ADMITTED, make.condition("Finished", reason="Failed")), JobState.FAILED),
    ],
)
def test_state_follows_conditions(obj: Obj, state: JobState) -> None:
    assert state_of(None, obj, JobPods(0, 0)).state is state


def test_admitted_job_runs_with_a_ready_pod_or_with_unknown_pods() -> None:
    obj = workload(QUOTA, ADMITTED)
    assert state_of(None, obj, JobPods(1, 1)).state is JobState.RUNNING
    assert state_of(None, obj, None).state is JobState.RUNNING
    assert state_of(None, obj, JobPods(0, 0, "no node fits")).reason == "no node fits"


def test_job_condition_overrides_workload_conditions() -> None:
    job = {**make.job(), "status": {"conditions": [make.condition("Failed", message="backoff limit", since=7)]}}
    state = state_of(job, workload(QUOTA, ADMITTED), None)
    assert (state.state, state.since, state.reason) == (JobState.FAILED, make.at(7), "backoff limit")


def test_ended_pods_use_no_node_and_are_not_ready() -> None:
    pods = [pod("a", "j", node="n1", ready=True), pod("b", "j", node="n1"), pod("c", "j", node="n2", phase="Succeeded")]
    assert count_pods(pods) == JobPods(ready=1, nodes=1)


def test_entries_combine_jobs_workloads_and_pods_in_order_of_states() -> None:
    running, waiting, without_queue = make.job("run"), make.job("wait"), make.job("free", queue=None)
    workloads = [workload(owner=waiting, name="w2"), workload(QUOTA, ADMITTED, owner=running, name="w1")]
    entries = job_entries(workloads, [waiting, running, without_queue], [pod("p", "run", node="n", ready=True)])
    assert [(entry.title, entry.state, entry.queue) for entry in entries] == [
        ("job/run", JobState.RUNNING, "lq"),
        ("job/wait", JobState.PENDING, "lq"),
        ("job/free", JobState.UNMANAGED, ""),
    ]
    assert entries[0].pods == JobPods(1, 1)


def test_unfinished_workload_of_a_job_counts() -> None:
    job = make.job()
    ended = workload(make.condition("Finished", reason="OutOfSync"), owner=job, name="old")
    for workloads in ([ended, workload(owner=job)], [workload(owner=job), ended]):
        assert [entry.workload_name for entry in job_entries(workloads, [job], ())] == ["w"]


def test_running_slice_of_an_elastic_job_counts_while_its_replacement_waits() -> None:
    job = make.job()
    slices = [workload(QUOTA, ADMITTED, owner=job, name="old"), workload(owner=job, name="new")]
    for workloads in (slices, slices[::-1]):
        (entry,) = job_entries(workloads, [job], None)
        assert (entry.workload_name, entry.state) == ("old", JobState.RUNNING)
        assert {each.workload_name: each.state for each in workload_entries(workloads)} == {
            "old": JobState.RUNNING,
            "new": JobState.PENDING,
        }


def test_jobs_of_other_kinds_are_entries_without_an_object() -> None:
    ray_job = {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": make.metadata("train")}
    (entry,) = job_entries([workload(owner=ray_job)], (), None)
    assert (entry.title, entry.api_version, entry.uid, entry.job) == ("rayjob/train", "ray.io/v1", "uid-train", None)


def test_child_jobs_of_job_sets_are_no_entries() -> None:
    job_set = make.jobset()
    owner = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "name": "js",
        "uid": "uid-js",
        "controller": True,
    }
    child = make.job("js-worker-0")
    child["metadata"]["ownerReferences"] = [owner]
    assert [entry.title for entry in job_entries((), [job_set, child], None)] == ["jobset/js"]


def test_requests_are_those_of_all_pods() -> None:
    assert format_requests(workload(podSets=[make.pod_set(count=3, requests={"cpu": "500m", "memory": "1Gi"})])) == (
        "1.5 cpu, 3Gi memory"
    )
