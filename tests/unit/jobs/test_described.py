"""Kinds of jobs that files describe: pod sets, state, start and stop, as Kueue's integrations of these kinds."""

from types import SimpleNamespace
from typing import Any

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.interfaces.client import EventType, Update, WatchEvent
from batchyard.jobframework.workloads import InvalidPodSetInfo, JobCompletion, PodSetInfo
from batchyard.jobs.described.controller import DescribedJobReconciler
from batchyard.jobs.described.description import InvalidJobKind, built_in_descriptions, parse_job_kind
from batchyard.jobs.described.integration import DescribedJobIntegration, ExpressionFailed, find_integration
from batchyard.jobs.kinds import INTEGRATIONS
from batchyard.scheduling.workload import lifecycle
from stage import Stage, condition_state


def built_in(kind: str) -> DescribedJobIntegration:
    integration = find_integration(kind, {})
    assert integration is not None
    return integration


PYTORCH, RAY_JOB = built_in("PyTorchJob.kubeflow.org"), built_in("RayJob.ray.io")


def template(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", "image": "python"}], **fields}}


def pytorch_job(**status: Any) -> dict[str, Any]:
    replicas = {"Worker": {"replicas": 3, "template": template()}, "Master": {"template": template()}}
    return {"metadata": {"name": "a"}, "spec": {"pytorchReplicaSpecs": replicas}, "status": status}


def ray_job(**cluster: Any) -> dict[str, Any]:
    workers = [{"groupName": "GPU", "replicas": 2, "numOfHosts": 4, "template": template()}]
    spec = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": workers, **cluster}
    return {"metadata": {"name": "a"}, "spec": {"rayClusterSpec": spec}}


def counts(job: Any, integration: DescribedJobIntegration) -> dict[str, int]:
    return {pod_set["name"]: pod_set["count"] for pod_set in integration.pod_sets(job)}


def test_files_describe_frameworks_of_configuration() -> None:
    described = {f"{spec.group}/{spec.kind.lower()}": kind for kind, spec in built_in_descriptions().items()}
    coded = {*INTEGRATIONS, scheme.POD, *scheme.SERVING_KINDS}
    assert described == {name: kind for name, kind in scheme.JOB_FRAMEWORKS.items() if kind not in coded}


def test_expressions_of_all_files_compile() -> None:
    assert [built_in(kind).kind for kind in built_in_descriptions()] == list(built_in_descriptions())


def test_pod_sets_follow_order_of_replica_types() -> None:
    assert list(counts(pytorch_job(), PYTORCH).items()) == [("master", 1), ("worker", 3)]


def test_missing_replica_type_has_no_pod_set() -> None:
    job = pytorch_job()
    del job["spec"]["pytorchReplicaSpecs"]["Master"]
    assert counts(job, PYTORCH) == {"worker": 3}


def test_kubeflow_job_is_active_with_active_replicas() -> None:
    assert PYTORCH.is_active(pytorch_job(replicaStatuses={"Master": {}, "Worker": {"active": 1}}))
    assert not PYTORCH.is_active(pytorch_job(replicaStatuses={"Worker": {"succeeded": 3}}))
    assert not PYTORCH.is_active(pytorch_job())


@pytest.mark.parametrize(("condition", "succeeded"), [("Succeeded", True), ("Failed", False)])
def test_kubeflow_job_ends_with_message_of_condition(condition: str, succeeded: bool) -> None:
    conditions = [{"type": condition, "status": "True", "message": "done"}]
    assert PYTORCH.completion(pytorch_job(conditions=conditions)) == JobCompletion(succeeded, "done")
    assert PYTORCH.completion(pytorch_job(conditions=[{**conditions[0], "status": "False"}])) is None


def test_priority_class_is_that_of_policy_then_of_first_replica_type() -> None:
    job = pytorch_job()
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"] = template(priorityClassName="low")
    assert PYTORCH.pod_class(job) == "low"
    job["spec"]["runPolicy"] = {"schedulingPolicy": {"priorityClass": "high"}}
    assert PYTORCH.pod_class(job) == "high"


def test_priority_class_of_kind_without_expression_is_that_of_first_template() -> None:
    job = ray_job()
    job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"] = template(priorityClassName="low")
    assert RAY_JOB.pod_class(job) == "low"


def test_start_and_stop_change_and_restore_templates() -> None:
    job = pytorch_job()
    infos = [PodSetInfo("master", 1, node_selector={"pool": "a"}), PodSetInfo("worker", 3)]
    started_job = PYTORCH.started_job(job, infos)
    assert started_job["spec"]["runPolicy"] == {"suspend": False}
    specs = started_job["spec"]["pytorchReplicaSpecs"]
    assert specs["Master"]["template"]["spec"]["nodeSelector"] == {"pool": "a"}
    stop = PYTORCH.stop(started_job, [PodSetInfo("master", 1), PodSetInfo("worker", 3)])
    assert isinstance(stop, Update)
    assert stop.obj["spec"] == {**job["spec"], "runPolicy": {"suspend": True}}


def test_start_requires_one_info_for_each_pod_set() -> None:
    with pytest.raises(InvalidPodSetInfo, match="expecting 2 podset, got 1"):
        PYTORCH.started_job(pytorch_job(), [PodSetInfo("master", 1)])


def test_ray_job_has_pods_of_multi_host_groups_and_submitter() -> None:
    assert counts(ray_job(), RAY_JOB) == {"head": 1, "gpu": 8, "submitter": 1}
    job = ray_job()
    job["spec"]["submissionMode"] = "HTTPMode"
    assert counts(job, RAY_JOB) == {"head": 1, "gpu": 8}


def test_start_of_ray_job_writes_default_template_of_submitter() -> None:
    infos = [PodSetInfo(name, 1, node_selector={"pool": name}) for name in ("head", "gpu", "submitter")]
    submitter = RAY_JOB.started_job(ray_job(), infos)["spec"]["submitterPodTemplate"]["spec"]
    assert submitter["nodeSelector"] == {"pool": "submitter"}
    assert submitter["containers"][0]["image"] == "python"


def test_head_of_ray_cluster_counts_autoscaler_and_redis_cleanup() -> None:
    job = ray_job(enableInTreeAutoscaling=True, gcsFaultToleranceOptions={})
    head, autoscaler = RAY_JOB.pod_sets(job)[0]["template"]["spec"]["containers"]
    assert head["resources"]["requests"] == {"cpu": "200m", "memory": "256Mi"}
    assert autoscaler["resources"]["requests"] == {"cpu": "500m", "memory": "512Mi"}


def test_ray_job_with_cluster_selector_is_ignored() -> None:
    job = {"metadata": {"name": "a"}, "spec": {"clusterSelector": {"ray.io/cluster": "b"}}}
    assert RAY_JOB.is_ignored(job)
    assert not RAY_JOB.is_ignored(ray_job())


def test_excluded_job_gets_no_workload() -> None:
    job = {"metadata": {"name": "a", "namespace": "team"}, "spec": {"clusterSelector": {"ray.io/cluster": "b"}}}
    reader: Any = SimpleNamespace(get=lambda _: job)
    reconciler = DescribedJobReconciler(RAY_JOB, {})
    assert not reconciler.reconcile(Key("RayJob.ray.io", "team", "a"), reader, 0).writes


def test_ray_job_that_fails_its_validation_releases_its_quota() -> None:
    stage = Stage(DescribedJobReconciler(RAY_JOB, {}))
    metadata = make.metadata("a", labels={"kueue.x-k8s.io/queue-name": "lq"})
    job = {"apiVersion": "ray.io/v1", "kind": "RayJob", **ray_job(), "metadata": metadata}
    job["spec"]["suspend"] = True
    stage.put(make.namespace(), make.local_queue(), make.flavor(), job)
    (workload,) = stage.workloads()
    counts = {each["name"]: each["count"] for each in workload["spec"]["podSets"]}
    stage.put(lifecycle.reserve_quota(workload, make.admission("cq", **counts), make.NOW, admitted=True))
    assert lifecycle.has_quota_reservation(stage.only_workload())
    started = stage.get("RayJob.ray.io", "a")
    stage.put({**started, "status": {"jobDeploymentStatus": "ValidationFailed"}})
    held = condition_state(stage.only_workload(), "QuotaReserved")
    assert held == ("False", "OnHold", "Job is on hold")


def description(**fields: Any) -> dict[str, Any]:
    spec = {
        "group": "example.com",
        "version": "v1",
        "kind": "Train",
        "resource": "trains",
        "suspend": "spec.paused",
        "active": "true",
        "ready": "true",
        "podSets": [{"name": "main", "path": "spec"}],
    }
    return {"metadata": {"name": "trains.example.com"}, "spec": {**spec, **fields}}


def test_invalid_description_names_field() -> None:
    with pytest.raises(InvalidJobKind, match=r"spec\.active: Expected `str`, got `int`"):
        parse_job_kind(description(active=1))


def test_invalid_expression_names_field() -> None:
    with pytest.raises(InvalidJobKind, match=r"spec\.ready: invalid CEL expression"):
        DescribedJobIntegration(parse_job_kind(description(ready="job.status +")))


JOB: dict[str, Any] = {"metadata": {"name": "a", "namespace": "team"}, "spec": {"template": template()}, "status": {}}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"active": "job.status.count > 0"}, r"spec\.active of JobKind trains\.example\.com failed: Key not found"),
        ({"active": "'yes'"}, r"spec\.active .*: the value must be a truth value, not 'yes'"),
        ({"reclaimable": "[{'count': 1}]"}, r"spec\.reclaimable .*: an item has no name"),
        ({"reclaimable": "[{'name': 'main', 'count': -1}]"}, r"the count must be a whole number from 0 to 2147483647"),
        ({"podSets": [{"name": "main", "path": "spec", "count": "1.5"}]}, r"spec\.podSets\[0\]\.count .* not 1\.5"),
        ({"podSets": [{"name": "main", "path": "spec", "minimumRequests": "1"}]}, r"must be a map, not 1"),
    ],
)
def test_failed_expression_names_field_and_text(fields: dict[str, Any], message: str) -> None:
    integration = DescribedJobIntegration(parse_job_kind(description(**fields)))
    reads = (integration.is_active, integration.reclaimable_pods, integration.pod_sets)
    with pytest.raises(ExpressionFailed, match=f"{message}.*; the expression is "):
        [read(JOB) for read in reads]


def test_job_with_invalid_pod_template_fails() -> None:
    integration = DescribedJobIntegration(parse_job_kind(description()))
    with pytest.raises(ExpressionFailed, match=r"the pod template of the job is invalid: spec\.containers"):
        integration.pod_sets({**JOB, "spec": {"template": {"spec": {"containers": "none"}}}})


def test_job_with_too_many_pod_sets_fails() -> None:
    fields = {"podSets": [{"nameExpression": "item.name", "path": "spec.groups"}]}
    integration = DescribedJobIntegration(parse_job_kind(description(**fields)))
    with pytest.raises(ExpressionFailed, match="the job has 19 pod sets, and a Workload can have 18"):
        integration.pod_sets({**JOB, "spec": {"groups": [{"name": str(i)} for i in range(19)]}})


def test_failed_expression_is_reported_on_job() -> None:
    reconciler = DescribedJobReconciler(built_in("RayCluster.ray.io"), {})
    key = Key("RayCluster.ray.io", "team", "a")
    metadata = {"name": "a", "namespace": "team", "labels": {"kueue.x-k8s.io/queue-name": "q"}}
    job = {"kind": "RayCluster", "apiVersion": "ray.io/v1", "metadata": metadata}
    job["spec"] = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": [{"template": template()}]}
    assert list(reconciler.keys_for(WatchEvent(EventType.ADDED, key, job, None, 1), 0)) == [key]
    reader: Any = SimpleNamespace(get=lambda _: job)
    result = reconciler.reconcile(key, reader, 0)
    (event,) = result.events
    assert (result.writes, event.reason, event.regarding) == ([], "ErrWorkloadCompose", key)
    assert "spec.podSets[1].nameExpression of JobKind rayclusters.ray.io failed: Key not found" in event.message
