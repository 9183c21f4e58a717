"""TrainJobs: pod sets of their runtimes, the patch with scheduling fields, starts and stops in steps.

Sources: pkg/controller/jobs/trainjob/*_test.go and test/integration/singlecluster/controller/jobs/trainjob of Kueue.
"""

from typing import Any, Final

import pytest

import make
from batchyard.admission_plugins.built_in import ManagedJobs
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, with_path
from batchyard.interfaces.client import Update
from batchyard.jobframework.workloads import InvalidPodSetInfo, JobCompletion, PodSetInfo
from batchyard.jobs.described.controller import DescribedJobReconciler, described_job_errors, queue_described_job
from batchyard.jobs.described.integration import DescribedJobIntegration, ExpressionFailed
from batchyard.jobs.described.kinds import find_integration
from batchyard.scheduling.workload import evictions, lifecycle
from stage import Stage, condition_state

KIND: Final = "TrainJob.trainer.kubeflow.org"
RUNTIME_KIND: Final = "ClusterTrainingRuntime.trainer.kubeflow.org"
VERSION: Final = "trainer.kubeflow.org/v1alpha1"
MANAGER: Final = "kueue.x-k8s.io/manager"
STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
JOBS_PATH: Final = ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")


def replicated_job(name: str, step: str = "", container: str = "node", **pod_spec: Any) -> dict[str, Any]:
    containers = [{"name": container, "image": "python", "env": [{"name": "A", "value": "runtime"}]}]
    labels = {"labels": {STEP: step}} if step else {}
    template = {"metadata": labels, "spec": {"template": {"spec": {"containers": containers, **pod_spec}}}}
    return {"name": name, "template": template}


def runtime(*jobs: dict[str, Any], kind: str = "ClusterTrainingRuntime", **policy: Any) -> dict[str, Any]:
    jobs = jobs or (replicated_job("node", "trainer"),)
    spec = {"mlPolicy": policy or {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": list(jobs)}}}
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": "torch"}, "spec": spec}


def integration_of(*runtimes: Obj) -> DescribedJobIntegration:
    integration = find_integration(KIND, {})
    assert integration is not None
    objects = {
        Key(f"{each['kind']}.trainer.kubeflow.org", each["metadata"].get("namespace", ""), "torch"): each
        for each in runtimes
    }
    return integration.with_objects(objects.get)


def train_job(*patches: dict[str, Any], **spec: Any) -> dict[str, Any]:
    labels = {"kueue.x-k8s.io/queue-name": "lq"}
    fields = {"runtimeRef": {"name": "torch"}, "suspend": True, "runtimePatches": [*patches, kueue_patch()], **spec}
    return {"apiVersion": VERSION, "kind": "TrainJob", "metadata": make.metadata("a", labels=labels), "spec": fields}


def kueue_patch(*jobs: dict[str, Any]) -> dict[str, Any]:
    return patch_of(MANAGER, *jobs)


def patch_of(manager: str, *jobs: dict[str, Any]) -> dict[str, Any]:
    spec = {"replicatedJobs": list(jobs)} if jobs else {}
    return {"manager": manager, "trainingRuntimeSpec": {"template": {"spec": spec}}}


def job_patch(name: str, metadata: dict[str, Any] | None = None, **pod_spec: Any) -> dict[str, Any]:
    return {"name": name, "template": {"spec": {"template": {"metadata": metadata or {}, "spec": pod_spec}}}}


def counts(job: Obj, *runtimes: Obj) -> dict[str, int]:
    return {each["name"]: each["count"] for each in integration_of(*runtimes).pod_sets(job)}


def test_pod_sets_are_those_of_runtime() -> None:
    job = train_job()
    node, foo = integration_of(runtime(replicated_job("node", "trainer"), replicated_job("foo"))).pod_sets(job)
    topology = {
        "podIndexLabel": "batch.kubernetes.io/job-completion-index",
        "subGroupIndexLabel": "jobset.sigs.k8s.io/job-index",
        "subGroupCount": 1,
    }
    assert (node["name"], node["count"], node["topologyRequest"]) == ("node", 1, topology)
    assert (foo["name"], foo["count"], foo["topologyRequest"]) == ("foo", 1, topology)


def test_number_of_nodes_is_that_of_train_job_then_of_policy() -> None:
    jobs = replicated_job("node", "trainer"), replicated_job("foo")
    assert counts(train_job(trainer={"numNodes": 2}), runtime(*jobs, numNodes=5, torch={})) == {"node": 2, "foo": 1}
    assert counts(train_job(), runtime(*jobs, numNodes=5, torch={})) == {"node": 5, "foo": 1}
    without_policy = runtime(*jobs)
    del without_policy["spec"]["mlPolicy"]
    assert counts(train_job(), without_policy) == {"node": 1, "foo": 1}


@pytest.mark.parametrize(("as_node", "count"), [(True, 3), (False, 4)])
def test_mpi_counts_launcher_as_node(as_node: bool, count: int) -> None:
    jobs = replicated_job("launcher", "trainer"), replicated_job("node")
    mpi = runtime(*jobs, numNodes=1, mpi={"runLauncherAsNode": as_node})
    assert counts(train_job(trainer={"numNodes": 4}), mpi) == {"launcher": 1, "node": count}


def test_runtime_of_namespace_is_found_there() -> None:
    job = train_job(runtimeRef={"name": "torch", "kind": "TrainingRuntime"})
    local = runtime(kind="TrainingRuntime")
    local["metadata"]["namespace"] = "team"
    assert counts(job, local) == {"node": 1}
    with pytest.raises(ExpressionFailed, match=r"^runtime 'torch' not found$"):
        counts(job, runtime())


def test_unsupported_runtime_fails() -> None:
    job = train_job(runtimeRef={"name": "torch", "kind": "Other"})
    with pytest.raises(ExpressionFailed, match=r"^unsupported runtime: Other\.trainer\.kubeflow\.org$"):
        counts(job, runtime())


def test_trainer_fields_replace_those_of_container() -> None:
    trainer = {
        "image": "torch",
        "command": ["torchrun"],
        "args": ["train.py"],
        "env": [{"name": "A", "value": "job"}, {"name": "B", "value": "b"}],
        "resourcesPerNode": {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}},
    }
    (pod_set,) = integration_of(runtime()).pod_sets(train_job(trainer=trainer))
    (container,) = pod_set["template"]["spec"]["containers"]
    assert container == {
        "name": "node",
        "image": "torch",
        "command": ["torchrun"],
        "args": ["train.py"],
        "env": [{"name": "A", "value": "job"}, {"name": "B", "value": "b"}],
        "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}},
    }


def test_resources_are_merged_by_name() -> None:
    job = replicated_job("node", "trainer")
    base = {"requests": {"cpu": "1", "memory": "1Gi"}, "claims": [{"name": "a"}]}
    job["template"]["spec"]["template"]["spec"]["containers"][0]["resources"] = base
    overrides = {"requests": {"cpu": "4"}, "claims": [{"name": "b"}]}
    (pod_set,) = integration_of(runtime(job)).pod_sets(train_job(trainer={"resourcesPerNode": overrides}))
    resources = pod_set["template"]["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"cpu": "4", "memory": "1Gi"}, "claims": [{"name": "a"}, {"name": "b"}]}


@pytest.mark.parametrize("part", ["dataset", "model"])
def test_initializer_gets_variables_of_train_job(part: str) -> None:
    step = f"{part}-initializer"
    source = {"storageUri": "hf://a", "env": [{"name": "B", "value": "b"}], "secretRef": {"name": "token"}}
    job = train_job(initializer={part: source})
    jobs = replicated_job(step, step, container=step), replicated_job("node", "trainer")
    container = integration_of(runtime(*jobs)).pod_sets(job)[0]["template"]["spec"]["containers"][0]
    names = [each["name"] for each in container["env"]]
    assert (names, container["envFrom"]) == (["A", "STORAGE_URI", "B"], [{"secretRef": {"name": "token"}}])


def test_patches_change_templates_and_keep_order_of_runtime() -> None:
    changed = job_patch("b", {"annotations": {"x": "y"}}, nodeSelector={"pool": "a"})
    job = train_job(patch_of("example.com/user", changed))
    pod_sets = integration_of(runtime(replicated_job("a"), replicated_job("b"))).pod_sets(job)
    assert [each["name"] for each in pod_sets] == ["a", "b"]
    template = pod_sets[1]["template"]
    assert (template["metadata"]["annotations"], template["spec"]["nodeSelector"]) == ({"x": "y"}, {"pool": "a"})
    assert template["spec"]["containers"][0]["image"] == "python"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trainer": {"numNodes": "two"}}, r"^spec\.trainer\.numNodes must be a whole number"),
        (
            {"runtimePatches": [patch_of("a", {"name": "node", "template": {"$patch": "x"}})]},
            "runtimePatches of job node",
        ),
        ({"runtimePatches": [patch_of("a", {"name": "other"})]}, "a replicated job of the runtime has no name"),
    ],
)
def test_invalid_fields_of_train_job_fail(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ExpressionFailed, match=message):
        counts(train_job(**change), runtime())


def test_invalid_template_of_runtime_fails() -> None:
    broken = runtime()
    broken["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"] = {"template": {"spec": 1}}
    with pytest.raises(ExpressionFailed, match="the template of job node of the runtime is invalid"):
        counts(train_job(), broken)


INFO: Final = PodSetInfo(
    "node",
    1,
    labels={"l": "1"},
    annotations={"a": "1"},
    node_selector={"disktype": "ssd"},
    tolerations=[{"key": "t1k"}],
    scheduling_gates=[{"name": "gate"}],
)
FIELDS: Final = job_patch(
    "node",
    {"annotations": {"a": "1"}, "labels": {"l": "1"}},
    nodeSelector={"disktype": "ssd"},
    tolerations=[{"key": "t1k"}],
    schedulingGates=[{"name": "gate"}],
)


def test_start_writes_patch_before_it_unsuspends() -> None:
    user = patch_of("example.com/user", job_patch("node", nodeSelector={"disktype": "sdd"}))
    integration, job = integration_of(runtime()), train_job(user)
    patched = integration.started_job(job, [INFO])
    assert patched["spec"] == {**job["spec"], "runtimePatches": [user, kueue_patch(FIELDS)]}
    started = integration.started_job(patched, [INFO])
    assert started["spec"] == {**patched["spec"], "suspend": False}


def test_start_replaces_earlier_patch() -> None:
    job = train_job()
    job["spec"]["runtimePatches"] = [kueue_patch(job_patch("node", nodeSelector={"old": "x"}))]
    assert integration_of(runtime()).started_job(job, [INFO])["spec"]["runtimePatches"] == [kueue_patch(FIELDS)]


def test_start_keeps_tolerations_of_runtime() -> None:
    tolerant = runtime(replicated_job("node", "trainer", tolerations=[{"key": "own"}]))
    integration, path = integration_of(tolerant), ("template", "spec", "template", "spec", "tolerations")
    for _ in range(2):
        job = integration.started_job(train_job(), [INFO])
        (patch,) = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        assert value_at(patch, path) == [{"key": "own"}, {"key": "t1k"}]


def value_at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value[name]
    return value


def test_start_requires_one_info_for_each_pod_set() -> None:
    with pytest.raises(InvalidPodSetInfo, match=r"^invalid podset infos: expecting 1 podset, got 2$"):
        integration_of(runtime()).started_job(train_job(), [INFO, INFO])


def test_start_requires_patch_of_kueue() -> None:
    with pytest.raises(ExpressionFailed, match=r"^kueue runtime patch not found$"):
        integration_of(runtime()).started_job(train_job(runtimePatches=[]), [INFO])


def test_stop_suspends_waits_for_jobs_and_clears_patch() -> None:
    user = patch_of("example.com/user", job_patch("node"))
    integration, job = integration_of(runtime()), train_job(suspend=False)
    job["spec"]["runtimePatches"] = [user, kueue_patch(FIELDS)]
    job["status"] = {"jobsStatus": [{"name": "node", "active": 1}]}
    first = integration.stop(job, [])
    assert isinstance(first, Update)
    assert first.obj["spec"] == {**job["spec"], "suspend": True}
    assert integration.stop(first.obj, []) is None
    inactive = {**first.obj, "status": {"jobsStatus": [{"name": "node", "active": 0}]}}
    second = integration.stop(inactive, [])
    assert isinstance(second, Update)
    assert second.obj["spec"]["runtimePatches"][0] == user
    assert not value_at(second.obj["spec"]["runtimePatches"][1], JOBS_PATH[:-1]).get("replicatedJobs")
    assert integration.stop(second.obj, []) is None


def test_succeeded_jobs_are_reclaimable() -> None:
    integration = integration_of(runtime(replicated_job("a"), replicated_job("node", "trainer"), numNodes=3, torch={}))
    job = train_job()
    assert integration.reclaimable_pods(job) == []
    job["status"] = {"jobsStatus": [{"name": "a", "succeeded": 0}, {"name": "node", "succeeded": 1}]}
    assert integration.reclaimable_pods(job) == [{"name": "node", "count": 3}]


def test_train_job_is_ready_when_all_jobs_are_ready_or_succeeded() -> None:
    integration = integration_of(runtime(replicated_job("a"), replicated_job("node", "trainer")))
    job = train_job()
    job["status"] = {"jobsStatus": [{"name": "a", "succeeded": 1}, {"name": "node", "ready": 0}]}
    assert not integration.pods_ready(job)
    job["status"]["jobsStatus"][1]["ready"] = 1
    assert integration.pods_ready(job)
    assert not integration_of().pods_ready(job)


@pytest.mark.parametrize(("type_", "succeeded"), [("Complete", True), ("Failed", False)])
def test_train_job_ends_with_message_of_condition(type_: str, succeeded: bool) -> None:
    job = train_job()
    job["status"] = {"conditions": [{"type": type_, "status": "True", "message": "done"}]}
    assert integration_of().completion(job) == JobCompletion(succeeded, "done")


def queued(job: Obj) -> Obj:
    namespace = make.namespace()
    return queue_described_job(job, lambda key: namespace if key.kind == scheme.NAMESPACE else None, ManagedJobs())


def test_new_train_job_is_suspended_and_gets_patch_once() -> None:
    job = train_job(suspend=False, runtimePatches=[])
    prepared = queued(job)
    assert (prepared["spec"]["suspend"], prepared["spec"]["runtimePatches"]) == (True, [kueue_patch()])
    assert queued(prepared) == prepared


def test_train_job_without_queue_gets_patch_and_runs() -> None:
    job = train_job(suspend=False, runtimePatches=[])
    job["metadata"]["labels"] = {}
    prepared = queued(job)
    assert (prepared["spec"]["suspend"], prepared["spec"]["runtimePatches"]) == (False, [kueue_patch()])


def errors_of(job: Obj, *runtimes: Obj) -> list[str]:
    return [
        f"{each.path}: {each.problem}" for each in described_job_errors(job, None, ManagedJobs(), finder(*runtimes))
    ]


def finder(*runtimes: Obj) -> Any:
    return {Key(RUNTIME_KIND, "", "torch"): each for each in runtimes}.get


def test_topology_annotations_of_patches_and_runtime_are_validated() -> None:
    assert errors_of(train_job(), runtime()) == []
    both = {f"kueue.x-k8s.io/podset-{mode}-topology": "block" for mode in ("required", "preferred")}
    job = train_job(patch_of("example.com/user", job_patch("node", {"annotations": both})))
    (error,) = errors_of(job, runtime())
    assert error.startswith("job[node].annotations: Invalid value: must not contain more than one topology annotation")
    assert error.endswith(
        '. Adjust either the "TrainJob.spec.runtimePatches" or the "TrainingRuntime.Template" annotations for the '
        "corresponding Job"
    )


def test_train_job_without_its_runtime_is_rejected() -> None:
    assert errors_of(train_job()) == [": runtime 'torch' not found"]


def test_deletion_of_train_job_does_not_need_its_runtime() -> None:
    job = train_job()
    job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert list(described_job_errors(job, train_job(), ManagedJobs(), finder())) == []


def stage_with_admitted_job(*runtimes: Obj) -> Stage:
    integration = find_integration(KIND, {})
    assert integration is not None
    stage = Stage()
    stage.replace_controllers(DescribedJobReconciler(integration, {}, stage.client))
    stage.put(make.namespace(), make.local_queue(), make.flavor(), train_job(), *runtimes)
    if runtimes:
        admit(stage)
    return stage


def admit(stage: Stage) -> None:
    workload = stage.only_workload()
    stage.put(lifecycle.reserve_quota(workload, make.admission("cq", node=1), make.NOW, admitted=True))


def test_admitted_train_job_starts_in_two_writes_with_one_event() -> None:
    stage = stage_with_admitted_job(runtime())
    job = stage.get(KIND, "a")
    assert job["spec"]["suspend"] is False
    (patch,) = value_at(job["spec"]["runtimePatches"][0], JOBS_PATH)
    labels = value_at(patch, ("template", "spec", "template", "metadata", "labels"))
    assert labels["kueue.x-k8s.io/podset"] == "node"
    assert stage.reasons().count("Started") == 1
    assert len(stage.workloads()) == 1


def test_train_job_gets_workload_when_its_runtime_appears() -> None:
    stage = stage_with_admitted_job()
    assert (stage.workloads(), stage.reasons()) == ([], ["ErrWorkloadCompose"])
    stage.put(runtime())
    assert stage.only_workload()["spec"]["podSets"][0]["name"] == "node"


def test_train_job_gets_workload_when_its_runtime_is_corrected() -> None:
    broken = runtime()
    broken["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"] = {"template": {"spec": 1}}
    stage = stage_with_admitted_job()
    stage.put(broken)
    assert stage.workloads() == []
    stage.put(runtime())
    assert stage.only_workload()["spec"]["podSets"][0]["name"] == "node"


def test_evicted_train_job_keeps_quota_until_its_jobs_are_inactive() -> None:
    stage = stage_with_admitted_job(runtime())
    active = {"jobsStatus": [{"name": "node", "active": 1}]}
    stage.put({**stage.get(KIND, "a"), "status": active})
    stage.put(evictions.evict(stage.only_workload(), reason="Preempted", message="make room", now=make.NOW))
    job = stage.get(KIND, "a")
    assert job["spec"]["suspend"] is True
    assert value_at(job["spec"]["runtimePatches"][0], JOBS_PATH)
    assert lifecycle.has_quota_reservation(stage.only_workload())
    stage.put(with_path(job, ("status",), {"jobsStatus": [{"name": "node", "active": 0}]}))
    patch = stage.get(KIND, "a")["spec"]["runtimePatches"][0]
    assert not value_at(patch, JOBS_PATH[:-1]).get("replicatedJobs")
    assert condition_state(stage.only_workload(), "QuotaReserved")[0] == "False"
    assert stage.reasons().count("Stopped") == 1


def test_succeeded_job_of_train_job_releases_its_quota() -> None:
    stage = stage_with_admitted_job(runtime())
    stage.put({**stage.get(KIND, "a"), "status": {"jobsStatus": [{"name": "node", "succeeded": 1}]}})
    assert stage.only_workload()["status"]["reclaimablePods"] == [{"name": "node", "count": 1}]


def test_finished_train_job_finishes_its_workload() -> None:
    stage = stage_with_admitted_job(runtime())
    conditions = [{"type": "Complete", "status": "True", "message": "all done"}]
    stage.put({**stage.get(KIND, "a"), "status": {"conditions": conditions}})
    assert condition_state(stage.only_workload(), "Finished") == ("True", "Succeeded", "all done")
