"""Queued Jobs on Kubernetes: its controllers run them, and preempted Jobs run again."""

from e2e_kubernetes.installed_operators import InstalledOperators
from e2e_kubernetes.objects import V1BETA2, job, job_set, queue, template


def test_preempted_job_runs_again_with_its_original_template(working_cluster: InstalledOperators) -> None:
    cluster = working_cluster
    cluster.create(*queue("busy", preemption={"withinClusterQueue": "LowerPriority"}))
    cluster.create({"apiVersion": V1BETA2, "kind": "WorkloadPriorityClass", "metadata": {"name": "high"}, "value": 9})
    cluster.create(job("low", "busy", template("3", "4s")))
    cluster.until("{.status.ready}=1", "job", "low")
    cluster.create(job("high", "busy", template("3"), "high"))
    cluster.until("{.status.succeeded}=1", "job", "high")
    cluster.until("{.status.succeeded}=1", "job", "low")
    (low,) = cluster.get("workloads", "-l", f"kueue.x-k8s.io/job-uid={uid(cluster, 'low')}")["items"]
    assert low["status"]["schedulingStats"]["evictions"][0]["count"] == 1
    assert low["spec"]["podSets"][0]["template"]["spec"].get("nodeSelector") is None
    times = [each["lastTransitionTime"] for each in low["status"]["conditions"]]
    assert all(len(time) == len("2026-01-01T00:00:00Z") for time in times), times
    (ready,) = (each for each in low["status"]["conditions"] if each["type"] == "PodsReady")
    assert (ready["status"], ready["reason"]) == ("True", "Started")  # by the counts of Kubernetes' own controller
    assert (cluster.refused(), cluster.invalid()) == ([], []), cluster.log()


def test_job_set_completes(working_cluster: InstalledOperators) -> None:
    working_cluster.create(*queue("sets"), job_set("set", "sets", template("1"), 2))
    working_cluster.until("{.status.terminalState}=Completed", "jobset", "set")
    assert len(working_cluster.get("jobs", "-l", "jobset.sigs.k8s.io/jobset-name=set")["items"]) == 2
    working_cluster.until("{.status.admittedWorkloads}=0", "clusterqueue", "sets")
    assert (working_cluster.refused(), working_cluster.invalid()) == ([], []), working_cluster.log()


def uid(cluster: InstalledOperators, name: str) -> str:
    """The uid of a Job."""
    result: str = cluster.get("job", name)["metadata"]["uid"]
    return result
