"""Random worlds with jobs of all kinds in the queues of one cohort: preemption, failures, deletions, dependencies."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import make
from batchyard.api import well_known
from batchyard.api.manifests import read_manifests
from batchyard.sim.random_worlds import RandomChoices, SeededDraws, make_object
from batchyard.sim.scenario import Scenario, make_scenario
from properties.test_pod_laws import CLASSES, POLICIES, plain, pod, pod_group
from properties.worlds import troubled_violations
from yard import queue

UNTIL = 900
ObjectDict = dict[str, Any]
TRAINING = "trainings.ml.example.com"
#: A user's description of a kind of job.
JOB_KIND: ObjectDict = {
    **make_object("jobs.batchyard.dev/v1alpha1", "JobKind", TRAINING),
    "spec": {
        "group": "ml.example.com",
        "version": "v1",
        "kind": "Training",
        "resource": "trainings",
        "suspend": "spec.paused",
        "podSets": [{"name": "workers", "path": "spec", "count": "item.workers"}],
        "active": "job.?status.?active.orValue(0) > 0",
        "ready": "job.?status.?ready.orValue(0) == job.spec.workers",
        "succeeded": {"when": "job.?status.?phase.orValue('') == 'Succeeded'"},
        "failed": {"when": "job.?status.?phase.orValue('') == 'Failed'"},
        "simulatedStatus": {
            "starting": "{'active': job.spec.workers}",
            "ready": "{'active': job.spec.workers, 'ready': job.spec.workers}",
            "succeeded": "{'phase': 'Succeeded'}",
            "failed": "{'phase': 'Failed'}",
        },
    },
}
RUNTIME_JOB = {
    "name": "node",
    "template": {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {"containers": [{"name": "node", "image": "i", "resources": {}}]}}},
    },
}
RUNTIME = {
    **make_object("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime", "torch"),
    "spec": {"mlPolicy": {"numNodes": 2}, "template": {"spec": {"replicatedJobs": [RUNTIME_JOB]}}},
}


def template(rng: RandomChoices, **spec: Any) -> ObjectDict:
    """A pod template that requests 1 or 2 CPUs."""
    requests = {"cpu": str(rng.draw_integer(1, 2))}
    container = {"name": "main", "image": "i", "resources": {"requests": requests}}
    return {"spec": {"containers": [container], **spec}}


def kubeflow_spec(rng: RandomChoices, field: str, *roles: str) -> ObjectDict:
    """The replicas of a job of Kubeflow: one pod of the first role, some of the others."""
    counts = [1, *(rng.draw_integer(1, 3) for _ in roles[1:])]
    return {field: {r: {"replicas": n, "template": template(rng)} for r, n in zip(roles, counts, strict=True)}}


def ray_cluster_spec(rng: RandomChoices) -> ObjectDict:
    """The spec of a Ray cluster."""
    workers = {"groupName": "w", "replicas": rng.draw_integer(1, 2), "rayStartParams": {}, "template": template(rng)}
    return {"headGroupSpec": {"rayStartParams": {}, "template": template(rng)}, "workerGroupSpecs": [workers]}


def app_wrapper_spec(rng: RandomChoices) -> ObjectDict:
    """A wrapped Job and sometimes a wrapped pod."""
    job_spec = {"parallelism": rng.draw_integer(1, 3), "template": template(rng, restartPolicy="Never")}
    job = {**make_object("batch/v1", "Job", "inner"), "spec": job_spec}
    wrapped_pod = {**make_object("v1", "Pod", "inner"), "spec": template(rng)["spec"]}
    return {"components": [{"template": each} for each in (job, wrapped_pod)[: rng.draw_integer(1, 2)]]}


def job_spec(rng: RandomChoices) -> ObjectDict:
    """The spec of an Indexed Job."""
    size = rng.draw_integer(1, 5)
    pods = {"parallelism": rng.draw_integer(1, size), "completions": size, "completionMode": "Indexed"}
    return {**pods, "backoffLimit": 1, "suspend": True, "template": template(rng, restartPolicy="Never")}


def job_set_spec(rng: RandomChoices) -> ObjectDict:
    """The spec of a JobSet with one replicated job."""
    job = {"parallelism": 2, "completions": 2, "template": template(rng, restartPolicy="Never")}
    return {"suspend": True, "replicatedJobs": [{"name": "r", "replicas": 1, "template": {"spec": job}}]}


def spark_spec(rng: RandomChoices) -> ObjectDict:
    """The spec of a SparkApplication."""
    executor = {"instances": rng.draw_integer(1, 3), "cores": 1}
    roles = {"driver": {"cores": rng.draw_integer(1, 2)}, "executor": executor}
    return {"type": "Scala", "mode": "cluster", "mainApplicationFile": "f", "sparkVersion": "4.0.0", **roles}


def ray_job_spec(rng: RandomChoices) -> ObjectDict:
    """The spec of a RayJob that a queue accepts."""
    fields = {"entrypoint": "true", "submissionMode": "HTTPMode", "shutdownAfterJobFinishes": True}
    return {**fields, "rayClusterSpec": ray_cluster_spec(rng)}


def train_job_spec(rng: RandomChoices) -> ObjectDict:
    """The spec of a TrainJob."""
    resources = {"requests": {"cpu": "1"}}
    trainer = {"numNodes": rng.draw_integer(1, 3), "resourcesPerNode": resources}
    return {"runtimeRef": {"name": "torch"}, "trainer": trainer}


def training_spec(rng: RandomChoices) -> ObjectDict:
    """The spec of a job of a user's kind."""
    return {"workers": rng.draw_integer(1, 3), "template": template(rng)}


def _kubeflow(kind: str, field: str, *roles: str) -> tuple[str, str, Callable[[RandomChoices], ObjectDict]]:
    version = "kubeflow.org/v2beta1" if kind == "MPIJob" else "kubeflow.org/v1"
    return version, kind, lambda rng: kubeflow_spec(rng, field, *roles)


#: The kinds of jobs that end: apiVersion, kind, and what makes their spec.
ENDING_KINDS: Sequence[tuple[str, str, Callable[[RandomChoices], ObjectDict]]] = (
    ("batch/v1", "Job", job_spec),
    ("jobset.x-k8s.io/v1alpha2", "JobSet", job_set_spec),
    _kubeflow("PyTorchJob", "pytorchReplicaSpecs", "Master", "Worker"),
    _kubeflow("TFJob", "tfReplicaSpecs", "Chief", "PS", "Worker"),
    _kubeflow("XGBoostJob", "xgbReplicaSpecs", "Master", "Worker"),
    _kubeflow("PaddleJob", "paddleReplicaSpecs", "Master", "Worker"),
    _kubeflow("JAXJob", "jaxReplicaSpecs", "Worker"),
    _kubeflow("MPIJob", "mpiReplicaSpecs", "Launcher", "Worker"),
    ("ray.io/v1", "RayJob", ray_job_spec),
    ("trainer.kubeflow.org/v1alpha1", "TrainJob", train_job_spec),
    ("workload.codeflare.dev/v1beta2", "AppWrapper", app_wrapper_spec),
    ("sparkoperator.k8s.io/v1beta2", "SparkApplication", spark_spec),
    ("ml.example.com/v1", "Training", training_spec),
)


def queued(rng: RandomChoices, obj: ObjectDict, at: int, *, ends: bool = True) -> ObjectDict:
    """An object in a queue with a time of submission; one that does not end is deleted later."""
    labels = {well_known.QUEUE_NAME: f"lq{rng.draw_integer(0, 1)}"}
    if rng.draw_bool(60):
        labels[well_known.PRIORITY_CLASS] = rng.choose(list(CLASSES))
    annotations = {well_known.SUBMIT_AT: f"{at}s", well_known.RUNTIME: f"{rng.draw_integer(20, 200)}s"}
    if ends and rng.draw_bool(10):
        annotations[well_known.EXIT_CODE] = "1"
    if not ends or rng.draw_bool(15):
        annotations[well_known.DELETE_AT] = f"{at + rng.draw_integer(30, 400)}s"
    own = obj["metadata"].get("annotations") or {}
    metadata = {**obj["metadata"], "namespace": "team", "labels": labels, "annotations": {**own, **annotations}}
    return {**obj, "metadata": metadata}


def ending_job(rng: RandomChoices, number: int, others: Sequence[Mapping[str, Any]]) -> ObjectDict:
    """A job of a random kind, which may depend on another one."""
    api_version, kind, make_spec = rng.choose(ENDING_KINDS)
    obj = {**make_object(api_version, kind, f"j{number}"), "spec": make_spec(rng)}
    if kind == "Job" and rng.draw_bool(40):
        partial = {well_known.SCALE_UP_STRATEGY: well_known.PARTIAL_SCALE_UP, well_known.PARTIAL_START: "true"}
        strategy = partial if rng.draw_bool(60) else {}
        obj["metadata"]["annotations"] = {well_known.ELASTIC_JOB: "true", **strategy}
    named_jobs = [each for each in others if each["kind"] == "Job"]
    if named_jobs and rng.draw_bool(20):
        text = f"{rng.choose(['ok', 'any', 'notok'])}:{rng.choose(named_jobs)['metadata']['name']}"
        obj["metadata"].setdefault("annotations", {})[well_known.AFTER] = text
    return queued(rng, obj, rng.draw_integer(0, UNTIL // 3))


def serving_object(rng: RandomChoices, number: int) -> ObjectDict:
    """A Deployment, a StatefulSet or a RayCluster."""
    kind = rng.choose(["Deployment", "StatefulSet", "RayCluster"])
    name, at = f"s{number}", rng.draw_integer(0, UNTIL // 2)
    if kind == "RayCluster":
        return queued(rng, {**make_object("ray.io/v1", kind, name), "spec": ray_cluster_spec(rng)}, at, ends=False)
    pod_template = {"metadata": {"labels": {"app": name}}, **template(rng)}
    spec = {"replicas": rng.draw_integer(0, 3), "selector": {"matchLabels": {"app": name}}, "template": pod_template}
    if kind == "StatefulSet":
        spec["serviceName"] = name
    return queued(rng, {**make_object("apps/v1", kind, name), "spec": spec}, at, ends=False)


def random_world(seed: int) -> Scenario:
    """A world with about twenty jobs, pods and services in two queues of a cohort."""
    rng = RandomChoices(SeededDraws(seed))
    queues = [queue(f"cq{i}", rng.draw_integer(4, 7), cohort="all", preemption=rng.choose(POLICIES)) for i in range(2)]
    for each in queues:
        groups = each["spec"]["resourceGroups"]
        groups[0]["coveredResources"] = ["cpu", "memory"]
        for flavor in groups[0]["flavors"]:
            flavor["resources"] = [*flavor["resources"][:1], {"name": "memory", "nominalQuota": "100Gi"}]
    local_queues = [{**make.local_queue(f"lq{i}"), "spec": {"clusterQueue": f"cq{i}"}} for i in range(2)]
    classes = [
        make_object("kueue.x-k8s.io/v1beta2", "WorkloadPriorityClass", name, value=value)
        for name, value in CLASSES.items()
    ]
    jobs: list[ObjectDict] = []
    for number in range(rng.draw_integer(6, 18)):
        jobs.append(ending_job(rng, number, jobs))
    services = [serving_object(rng, number) for number in range(rng.draw_integer(0, 3))]
    pods = [
        pod(rng, f"p{i}", rng.draw_integer(0, UNTIL), rng.draw_integer(1, 3)) for i in range(rng.draw_integer(0, 3))
    ]
    groups = [each for number in range(rng.draw_integer(0, 2)) for each in pod_group(rng, number)]
    base = [*classes, *map(plain, (make.flavor("spot"), *queues, *local_queues)), JOB_KIND, RUNTIME]
    # Without the second gate, a cycle may exceed the quota when a slice replaces another, as in Kueue.
    gates = {well_known.PARTIAL_SCALE_UP_GATE: rng.draw_bool(70), well_known.PARTIAL_PREEMPTION_GATE: True}
    spec = {"fairSharing": rng.draw_bool(30), "featureGates": gates}
    settings = {**make_object("sim.batchyard.dev/v1alpha1", "Scenario", "random"), "spec": spec}
    text = "\n---\n".join(map(json.dumps, [settings, *base, *jobs, *services, *pods, *groups]))
    manifests = read_manifests([("random.yaml", text)])
    assert manifests.faults == []
    return make_scenario(manifests)


def kind_violations(seed: int, *, conflicts: float = 0.0, crash_every: int = 0) -> str:
    """Run the world of a seed with faults; return its violations and the command to reproduce them."""
    return troubled_violations(random_world(seed), f"python tools/worlds.py {seed} --kinds", conflicts, crash_every)
