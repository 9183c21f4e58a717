"""Kinds of jobs that files describe: pod sets, state, start and stop, as Kueue's integrations of these kinds."""

from types import SimpleNamespace
from typing import Any

import pytest

import make
from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.interfaces.client import EventType, Update, WatchEvent
from batchyard.jobframework.reconciler import JobReconciler
from batchyard.jobframework.workloads import InvalidPodSetInfo, JobCompletion, PodSetInfo
from batchyard.jobs.described.controller import CustomJobs, DescribedJobReconciler, described_job_errors
from batchyard.jobs.described.description import InvalidJobKind, built_in_descriptions, parse_job_kind
from batchyard.jobs.described.integration import DescribedJobIntegration, ExpressionFailed
from batchyard.jobs.described.kinds import find_integration
from batchyard.jobs.kinds import INTEGRATIONS
from batchyard.scheduling.workload import lifecycle
from batchyard.wiring import described_job_controllers
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


@pytest.mark.parametrize(
    ("metadata", "cluster", "is_ignored"),
    [
        ({}, {"gcsFaultToleranceOptions": {}}, False),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {}, False),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"gcsFaultToleranceOptions": {}}, True),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {"ray.io/ft-enabled": "True"}}, {}, True),
    ],
)
def test_deleted_ray_service_keeps_workload_during_redis_cleanup(
    metadata: dict[str, Any], cluster: dict[str, Any], is_ignored: bool
) -> None:
    service = {"metadata": {"name": "a", **metadata}, "spec": {"rayClusterConfig": {**CLUSTER, **cluster}}}
    assert built_in("RayService.ray.io").is_ignored(service) is is_ignored


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
    stage.delete(scheme.WORKLOAD, workload["metadata"]["name"])
    assert stage.workloads() == []


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


# Validation of Ray's kinds. Source: pkg/controller/jobs/ray*/*_webhook.go of Kueue.


QUEUE = {"kueue.x-k8s.io/queue-name": "q"}
WORKERS = {"groupName": "workers", "template": template()}
CLUSTER: dict[str, Any] = {"headGroupSpec": {"template": template()}, "workerGroupSpecs": [WORKERS]}
MANAGED = ManagedJobs()


def ray_object(kind: str, labels: dict[str, str] = QUEUE, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "a", "namespace": "team", "labels": labels}
    return {"apiVersion": "ray.io/v1", "kind": kind, "metadata": metadata, "spec": spec}


def errors_of(new: dict[str, Any], old: dict[str, Any] | None = None, jobs: ManagedJobs = MANAGED) -> list[str]:
    return [f"{each.path}: {each.problem}" for each in described_job_errors(new, old, jobs, lambda _: None)]


def many_groups(count: int) -> dict[str, Any]:
    return {**CLUSTER, "workerGroupSpecs": [{**WORKERS, "groupName": f"g{i}"} for i in range(count)]}


HEAD_NAMED = {**CLUSTER, "workerGroupSpecs": [WORKERS, {**WORKERS, "groupName": "head"}]}
RAY_CASES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("RayCluster", CLUSTER, []),
    (
        "RayCluster",
        {**CLUSTER, "enableInTreeAutoscaling": True},
        [
            (
                "spec.enableInTreeAutoscaling: Invalid value: true: a kueue-managed RayCluster can use autoscaling "
                "only as an elastic job: enable the ElasticJobsViaWorkloadSlices feature gate and set the "
                '"kueue.x-k8s.io/elastic-job": "true" annotation'
            )
        ],
    ),
    ("RayCluster", many_groups(17), []),
    ("RayCluster", many_groups(18), ["spec.workerGroupSpecs: Too many: 19: must have at most 18 items"]),
    (
        "RayCluster",
        HEAD_NAMED,
        ['spec.workerGroupSpecs[1].groupName: Forbidden: "head" is reserved for the head group'],
    ),
    ("RayJob", {"shutdownAfterJobFinishes": True, "rayClusterSpec": CLUSTER}, []),
    (
        "RayJob",
        {"rayClusterSpec": CLUSTER},
        [
            (
                "spec.shutdownAfterJobFinishes: Invalid value: false: "
                "a kueue managed job should delete the cluster after finishing"
            )
        ],
    ),
    (
        "RayJob",
        {"clusterSelector": {"k": "v"}, "rayClusterSpec": CLUSTER},
        ['spec.clusterSelector: Invalid value: {"k":"v"}: a kueue managed job should not use an existing cluster'],
    ),
    ("RayJob", {"clusterSelector": {"k": "v"}}, []),
    (
        "RayJob",
        {"shutdownAfterJobFinishes": True},
        [
            (
                "spec.rayClusterSpec: Required value: "
                "rayClusterSpec is required for Kueue-managed jobs that don't use clusterSelector"
            )
        ],
    ),
    (
        "RayJob",
        {"shutdownAfterJobFinishes": True, "rayClusterSpec": {**CLUSTER, "enableInTreeAutoscaling": True}},
        [
            (
                "spec.rayClusterSpec.enableInTreeAutoscaling: Invalid value: true: "
                "a kueue managed job should only use autoscaling when workload slicing is enabled"
            )
        ],
    ),
    (
        "RayJob",
        {"shutdownAfterJobFinishes": True, "rayClusterSpec": many_groups(18)},
        ["spec.rayClusterSpec.workerGroupSpecs: Too many: 19: must have at most 18 items"],
    ),
    (
        "RayJob",
        {"shutdownAfterJobFinishes": True, "rayClusterSpec": HEAD_NAMED},
        ['spec.rayClusterSpec.workerGroupSpecs[1].groupName: Forbidden: "head" is reserved for the head group'],
    ),
    ("RayService", {"rayClusterConfig": CLUSTER}, []),
    (
        "RayService",
        {"rayClusterConfig": {**CLUSTER, "enableInTreeAutoscaling": True}},
        [
            (
                "spec.rayClusterSpec.enableInTreeAutoscaling: Invalid value: true: "
                "a kueue managed job should only use autoscaling when workload slicing is enabled"
            )
        ],
    ),
    (
        "RayService",
        {"rayClusterConfig": many_groups(18)},
        ["spec.rayClusterSpec.workerGroupSpecs: Too many: 19: must have at most 18 items"],
    ),
]


@pytest.mark.parametrize(("kind", "spec", "expected"), RAY_CASES)
def test_queued_ray_objects_are_validated(kind: str, spec: dict[str, Any], expected: list[str]) -> None:
    assert errors_of(ray_object(kind, **spec)) == expected
    assert errors_of(ray_object(kind, **spec), ray_object(kind, **spec)) == expected
    unnamed = ray_object(kind, {}, **spec)
    assert errors_of(unnamed) == []
    assert errors_of(unnamed, jobs=ManagedJobs(without_queue_name=True)) == expected


def test_topology_annotations_of_ray_groups_are_validated() -> None:
    both = {f"kueue.x-k8s.io/podset-{mode}-topology": "block" for mode in ("required", "preferred")}
    wrong = {**template(), "metadata": {"annotations": both}}
    sliced = {"kueue.x-k8s.io/podset-slice-required-topology": "block", "kueue.x-k8s.io/podset-slice-size": "6"}
    slices = {**template(), "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "block", **sliced}}}
    groups = [{**WORKERS, "template": wrong}, {**WORKERS, "groupName": "b", "replicas": 5, "template": slices}]
    errors = errors_of(ray_object("RayCluster", {}, headGroupSpec={"template": wrong}, workerGroupSpecs=groups))
    path = ".template.metadata.annotations"
    starts = [f"spec.headGroupSpec{path}: Invalid", f"spec.workerGroupSpecs[0]{path}: Invalid"]
    assert [each.startswith(start) for each, start in zip(errors, starts, strict=False)] == [True, True]
    size_path = f"spec.workerGroupSpecs[1]{path}[kueue.x-k8s.io/podset-slice-size]"
    assert errors[2:] == [f'{size_path}: Invalid value: "6": must not be greater than pod set count 5']


def test_queue_name_of_unsuspended_ray_job_cannot_be_removed() -> None:
    spec: dict[str, Any] = {"shutdownAfterJobFinishes": True, "rayClusterSpec": CLUSTER}
    old, new = ray_object("RayJob", **spec), ray_object("RayJob", {}, **spec)
    assert errors_of(new, old) == ['metadata.labels[kueue.x-k8s.io/queue-name]: Invalid value: "": field is immutable']
    suspended = {**new, "spec": {**spec, "suspend": True}}
    assert errors_of(suspended, old) == []


def test_updates_of_ray_jobs_without_queue_are_not_validated() -> None:
    label = "kueue.x-k8s.io/prebuilt-workload-name"
    old, new = (ray_object("RayCluster", {label: name}, **CLUSTER) for name in ("a", "b"))
    assert errors_of(new, old) == []


def test_rule_that_fails_names_expression() -> None:
    fields = {"validations": [{"rule": "job.spec.size > 0", "fieldPath": "spec.size", "message": "must be positive"}]}
    integration = DescribedJobIntegration(parse_job_kind(description(**fields)))
    (error,) = integration.validation_errors(JOB)
    assert error.path == "spec.size"
    assert "spec.validations[0].rule of JobKind trains.example.com failed: Key not found" in error.problem


def test_rule_without_value_reports_message() -> None:
    fields = {"validations": [{"rule": "false", "fieldPath": "spec", "message": "is never valid"}]}
    integration = DescribedJobIntegration(parse_job_kind(description(**fields)))
    assert [str(each) for each in integration.validation_errors(JOB)] == ["spec: Invalid value: is never valid"]


def test_workload_of_job_that_was_deleted_before_a_restart_is_released() -> None:
    stage = Stage()
    owner = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": "gone", "uid": "u", "controller": True}
    workload = make.workload("left")
    metadata = {**workload["metadata"], "ownerReferences": [owner]}
    stage.put({**workload, "metadata": {**metadata, "finalizers": ["kueue.x-k8s.io/resource-in-use"]}})
    stage.delete(scheme.WORKLOAD, "left")
    assert len(stage.workloads()) == 1
    options = {"managed_jobs": ManagedJobs()}
    stage.replace_controllers(CustomJobs(options, stage.client, ["PyTorchJob.kubeflow.org"]))
    assert stage.workloads() == []


def queued_without_spec(kind: str) -> dict[str, Any]:
    group, version = kind.partition(".")[2], "v1"
    return {
        "apiVersion": f"{group}/{version}",
        "kind": kind.partition(".")[0],
        "metadata": make.metadata("a", labels=QUEUE, uid="u"),
    }


@pytest.mark.parametrize("kind", [*built_in_descriptions(), scheme.JOB_SET])
def test_job_without_spec_raises_no_unexpected_exception(kind: str) -> None:
    if kind == scheme.JOB_SET:
        stage = Stage(JobReconciler(INTEGRATIONS[kind]))
    else:
        stage = Stage(CustomJobs({"managed_jobs": ManagedJobs()}, Stage().client, [kind]))
    job = queued_without_spec(kind)
    stage.put(make.namespace(), {**job, "metadata": {**job["metadata"], "labels": {}}})
    stage.put(job)
    stage.put({**stage.get(kind, "a"), "status": {"conditions": []}})
    stage.delete(kind, "a")
    assert stage.client.get(Key(kind, "team", "a")) is None


def start_custom_jobs(stage: Stage) -> None:
    managed_jobs = ManagedJobs()
    stage.replace_controllers(*described_job_controllers({"managed_jobs": managed_jobs}, managed_jobs, stage.client))


def custom_stage() -> Stage:
    """A stage with a user's JobKind, and an admitted Workload of a job of this kind."""
    stage = Stage()
    start_custom_jobs(stage)
    job_kind = {"apiVersion": "jobs.batchyard.dev/v1alpha1", "kind": "JobKind", **description(active="false")}
    job = {"apiVersion": "example.com/v1", "kind": "Train", "metadata": make.metadata("a", labels=QUEUE, uid="u")}
    stage.put(make.namespace(), job_kind, {**job, "spec": {"paused": True, "template": template()}})
    stage.put(lifecycle.reserve_quota(stage.only_workload(), make.admission(main=1), make.NOW, admitted=True))
    return stage


@pytest.mark.parametrize("deletes_kind_first", [True, False])
def test_deleted_workload_of_unmanaged_kind_is_released(deletes_kind_first: bool) -> None:
    stage = custom_stage()
    if deletes_kind_first:
        stage.delete(scheme.JOB_KIND, "trains.example.com", "")
    stage.delete("Train.example.com", "a")
    for workload in stage.workloads():
        stage.delete(scheme.WORKLOAD, workload["metadata"]["name"])
    assert stage.workloads() == []


def test_workload_of_kind_that_was_deleted_before_a_restart_is_released() -> None:
    stage = custom_stage()
    stage.replace_controllers()
    name = stage.only_workload()["metadata"]["name"]
    for kind, each in ((scheme.JOB_KIND, "trains.example.com"), ("Train.example.com", "a"), (scheme.WORKLOAD, name)):
        stage.delete(kind, each, "" if kind == scheme.JOB_KIND else "team")
    assert "deletionTimestamp" in stage.only_workload()["metadata"]
    start_custom_jobs(stage)
    assert stage.workloads() == []
