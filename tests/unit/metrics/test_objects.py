"""Nodes, pods and Jobs under the names of kube-state-metrics, machines under our own names."""

from typing import Any

import make
from batchyard.api import scheme
from batchyard.api.meta import Obj, key_of
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.metrics.objects import MachineMetrics, ObjectMetrics
from unit.metrics.scrape import samples


def node(name: str = "n", *, ready: bool = True, **spec: Any) -> Obj:
    conditions = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
    amounts = {"cpu": "1930m", "memory": "1Ki", "nvidia.com/gpu": "2", "pods": "110"}
    status = {"conditions": conditions, "allocatable": amounts, "nodeInfo": {"kernelVersion": "6.1"}}
    labels = {"cloud.google.com/gke-nodepool": "pool"}
    created = {"name": name, "creationTimestamp": make.stamp(), "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": created, "spec": spec, "status": status}


def pod(name: str = "p", phase: str = "Running", **spec: Any) -> Obj:
    resources = {"requests": {"cpu": "500m"}, "limits": {"memory": "2Ki"}}
    spec = {"containers": [{"name": "main", "resources": resources}], "nodeName": "n", **spec}
    created = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": created, "spec": spec, "status": {"phase": phase}}


def job(**status: Any) -> Obj:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "namespace": "team"}, "status": status}


def change(obj: Obj, old: Obj | None = None, *, is_gone: bool = False) -> WatchEvent:
    kind = EventType.DELETED if is_gone else (EventType.ADDED if old is None else EventType.MODIFIED)
    return WatchEvent(kind, key_of(obj), obj, old, 1)


def object_samples(*objects: Obj) -> dict[str, dict[tuple[str, ...], float]]:
    figures = ObjectMetrics()
    for obj in objects:
        figures.observe(change(obj))
    return samples(figures.texts())


def test_node_metrics_report_info_taints_and_allocatable() -> None:
    result = object_samples(node(unschedulable=True, taints=[{"key": "spot", "value": "true", "effect": "NoSchedule"}]))
    assert result["kube_node_info"][("n", "6.1", *[""] * 8)] == 1
    assert result["kube_node_spec_unschedulable"] == {("n",): 1}
    assert result["kube_node_spec_taint"] == {("n", "spot", "true", "NoSchedule"): 1}
    assert result["kube_node_status_allocatable"] == {
        ("n", "cpu", "core"): 1.93,
        ("n", "memory", "byte"): 1024,
        ("n", "nvidia_com_gpu", "integer"): 2,
        ("n", "pods", "integer"): 110,
    }
    assert result["kube_node_created"] == {("n",): make.NOW // 1_000_000}


def test_node_condition_has_three_statuses() -> None:
    result = object_samples(node(ready=False))["kube_node_status_condition"]
    assert result == {("n", "Ready", "true"): 0, ("n", "Ready", "false"): 0, ("n", "Ready", "unknown"): 1}


def test_pod_metrics_report_one_phase_and_container_resources() -> None:
    result = object_samples(pod())
    phases = result["kube_pod_status_phase"]
    assert [labels[-1] for labels, is_so in phases.items() if is_so] == ["Running"]
    assert len(phases) == 5
    container_labels = ("team", "p", "uid-p", "main", "n")
    assert result["kube_pod_container_resource_requests"] == {(*container_labels, "cpu", "core"): 0.5}
    assert result["kube_pod_container_resource_limits"] == {(*container_labels, "memory", "byte"): 2048}


def test_job_metrics_report_status_of_running_job() -> None:
    result = object_samples(
        job(active=2, conditions=[{"type": "Suspended", "status": "False"}], startTime=make.stamp(60))
    )
    assert result["kube_job_status_active"] == {("team", "j"): 2}
    assert result["kube_job_status_failed"] == {("team", "j", ""): 0}
    assert result["kube_job_status_suspended"] == {("team", "j"): 0}
    assert result["kube_job_status_start_time"] == {("team", "j"): make.NOW // 1_000_000 + 60}
    assert "kube_job_complete" not in result


def test_failed_job_is_reported_with_its_reason() -> None:
    failed = [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]
    result = object_samples(job(failed=3, conditions=failed))
    reasons = {labels[-1]: value for labels, value in result["kube_job_status_failed"].items()}
    assert reasons == {"BackoffLimitExceeded": 1, "DeadlineExceeded": 0, "Evicted": 0}
    assert result["kube_job_failed"]["team", "j", "true"] == 1
    assert object_samples(job(failed=3))["kube_job_status_failed"] == {("team", "j", ""): 3}


def test_changed_object_is_updated_and_deleted_object_is_removed() -> None:
    figures, before, after = ObjectMetrics(), pod(phase="Pending"), pod(phase="Failed")
    figures.observe(change(before))
    first = samples(figures.texts())["kube_pod_status_phase"]
    figures.observe(change(after, before))
    second = samples(figures.texts())["kube_pod_status_phase"]
    assert (first["team", "p", "uid-p", "Pending"], second["team", "p", "uid-p", "Failed"]) == (1, 1)
    figures.observe(change(after, is_gone=True))
    assert samples(figures.texts()) == {}
    assert figures.objects_of(scheme.POD) == []


def test_machine_metrics_count_nodes_by_pool_and_unschedulable_pods() -> None:
    figures = MachineMetrics()
    figures.observe(change(node()))
    figures.observe(change(node(ready=False), node()))
    stuck = {**pod(nodeName=""), "status": {"conditions": [{"type": "PodScheduled", "reason": "Unschedulable"}]}}
    figures.observe(change(stuck))
    result = samples(figures.texts())
    assert result["batchyard_nodes"] == {("pool", "ready"): 0, ("pool", "notready"): 1}
    assert result["batchyard_pods_unschedulable"] == {("team",): 1}
    figures.observe(change(pod(), stuck))
    figures.observe(change(node(), is_gone=True))
    result = samples(figures.texts())
    assert result["batchyard_pods_unschedulable"] == {("team",): 0}
    assert result["batchyard_nodes"]["pool", "notready"] == 0


def instance(phase: str = "", code: str = "") -> Obj:
    status = {"phase": phase, **({"error": {"code": code}} if code else {})} if phase else {}
    created = {"apiVersion": "cloud.batchyard.dev/v1alpha1", "kind": "Instance", "metadata": {"name": "i"}}
    return {**created, "spec": {"pool": "pool"}, "status": status}


def test_failed_instance_is_counted_once() -> None:
    figures, request, failed = MachineMetrics(), instance(), instance("Failed", "STOCKOUT")
    figures.observe(change(request))
    figures.observe(change(failed, request))
    figures.observe(change({**failed, "metadata": {"name": "i", "labels": {}}}, failed))
    figures.observe(change(failed, is_gone=True))
    result = samples(figures.texts())
    assert result["batchyard_instance_failures_total"] == {("pool", "STOCKOUT"): 1}
    assert result["batchyard_instances"] == {("pool", "Requested"): 0, ("pool", "Failed"): 0}
