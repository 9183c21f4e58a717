"""Queued Jobs on Kubernetes: its controllers run them, preempted Jobs run again, and pods follow topology domains."""

import json
from typing import Any

from e2e_kubernetes.installed_operators import InstalledOperators
from e2e_kubernetes.objects import V1BETA2, job, job_set, kueue, queue, template


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


HOSTNAME, GATE = "kubernetes.io/hostname", "kueue.x-k8s.io/topology"
SELECTED = "{.spec.nodeSelector.kubernetes\\.io/hostname}"


def test_pods_follow_topology_domains_and_the_replacement_of_a_failed_node(cluster: InstalledOperators) -> None:
    admit_placed_job(cluster)
    for index in ("1", "0"):
        create_pod(cluster, f"placed-{index}", index)
    cluster.until(f"{SELECTED} {{.spec.schedulingGates}}=b1r2h1 ", "pod", "placed-0")
    cluster.until(f"{SELECTED} {{.spec.schedulingGates}}=b1r2h2 ", "pod", "placed-1")
    cluster.kubectl("delete", "node", "b1r2h2")
    cluster.kubectl("delete", "pod", "placed-1", "--grace-period=0", "--force")
    (found,) = cluster.get("workloads", "-l", f"kueue.x-k8s.io/job-uid={uid(cluster, 'placed')}")["items"]
    values = "{.status.admission.podSetAssignments[0].topologyAssignment.slices[0].valuesPerLevel[0].individual.roots}"
    cluster.until(f'{values}=["1","3"]', "workload", found["metadata"]["name"])
    create_pod(cluster, "placed-again", "1")
    cluster.until(f"{SELECTED}=b1r2h3", "pod", "placed-again")
    assert (cluster.refused(), cluster.invalid()) == ([], []), cluster.log()
    cluster.kubectl("delete", "job,pod,node", "--all")
    cluster.kubectl("delete", "localqueue,clusterqueue,resourceflavor", "placed")
    cluster.kubectl("delete", "topology", "racks")
    cluster.kubectl("delete", "serviceaccount", "default")


def admit_placed_job(cluster: InstalledOperators) -> None:
    """Create nodes of two racks, and a Job of two pods that needs the larger one; wait until it is admitted."""
    levels = [{"nodeLabel": name} for name in ("block", "rack", HOSTNAME)]
    cluster.create(kueue("Topology", "racks", {"levels": levels}))
    for name in ("b1r1h1", "b1r2h1", "b1r2h2", "b1r2h3"):
        put_node(cluster, name)
    flavor, *queues = queue("placed")
    cluster.create({**flavor, "spec": {"nodeLabels": {"pool": "placed"}, "topologyName": "racks"}}, *queues)
    pods = template("1")
    pods["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] = "rack"
    placed = job("placed", "placed", pods)
    placed["spec"] |= {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    cluster.create(placed, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
    cluster.until("{.spec.suspend}=false", "job", "placed")


def put_node(cluster: InstalledOperators, name: str) -> None:
    """Create a ready node with one CPU; the name `b1r2h3` is host 3 in rack 2 of block 1."""
    labels = {"pool": "placed", "block": name[:2], "rack": name[:4], HOSTNAME: name}
    cluster.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}})
    # The API server taints new nodes; without Kubernetes' controllers, nothing removes the taint.
    cluster.kubectl("patch", "node", name, "--type=merge", "-p", '{"spec": {"taints": null}}')
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "it is simulated"}
    status = {"status": {"allocatable": {"cpu": "1", "memory": "8Gi", "pods": "9"}, "conditions": [ready]}}
    cluster.kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))


def create_pod(cluster: InstalledOperators, name: str, index: str) -> None:
    """Create a pod of the Job `placed`, as the Job controller of Kubernetes does."""
    owner = cluster.get("job", "placed")
    pods: dict[str, Any] = owner["spec"]["template"]
    assert pods["spec"]["schedulingGates"] == [{"name": GATE}]
    labels = {**pods["metadata"]["labels"], "batch.kubernetes.io/job-completion-index": index}
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "placed", "uid": owner["metadata"]["uid"]}
    metadata = {
        "name": name,
        "labels": labels,
        "annotations": pods["metadata"]["annotations"],
        "ownerReferences": [{**reference, "controller": True}],
    }
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pods["spec"]})
