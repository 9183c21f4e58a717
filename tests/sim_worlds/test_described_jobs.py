"""Jobs of custom kinds in simulations: batchyard's descriptions, and JobKinds in the manifests."""

from typing import Any, Final

import pytest
import yaml

from batchyard import simulate
from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key, key_of
from batchyard.base.instant import MINUTE
from batchyard.jobs.described.description import built_in_descriptions
from batchyard.jobs.described.kinds import find_integration
from batchyard.sim.forecast import ForecastOptions, forecast_workloads
from batchyard.sim.forecasting.run_times import EstimateBasis
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World

QUEUES: Final = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: spot}
spec: {nodeLabels: {pool: spot}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: research}
spec:
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups:
  - {coveredResources: [cpu], flavors: [{name: spot, resources: [{name: cpu, nominalQuota: 4}]}]}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: training, namespace: default}
spec: {clusterQueue: research}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: high}
value: 10
"""
JOB_KIND: Final = """
apiVersion: jobs.batchyard.dev/v1alpha1
kind: JobKind
metadata: {name: trainings.ml.example.com}
spec:
  group: ml.example.com
  version: v1
  kind: Training
  resource: trainings
  suspend: spec.paused
  podSets: [{name: workers, path: spec, count: item.workers}]
  active: job.?status.?active.orValue(0) > 0
  ready: job.?status.?ready.orValue(0) == job.spec.workers
  succeeded: {when: job.?status.?phase.orValue('') == 'Succeeded', message: "'done'"}
  failed: {when: job.?status.?phase.orValue('') == 'Failed', message: "'broken'"}
  simulatedStatus:
    starting: "{'active': job.spec.workers}"
    ready: "{'active': job.spec.workers, 'ready': job.spec.workers}"
    succeeded: "{'phase': 'Succeeded'}"
    failed: "{'phase': 'Failed'}"
"""


NODE: Final = {"name": "node", "template": {"spec": {"template": {"spec": {"containers": [{"name": "node"}]}}}}}
RUNTIME: Final = {"spec": {"template": {"spec": {"replicatedJobs": [NODE]}}}}


def template(**annotations: str) -> dict[str, Any]:
    container = {"name": "main", "image": "python", "resources": {"requests": {"cpu": "1"}}}
    names = {f"batchyard.dev/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return {"metadata": {"annotations": names}, "spec": {"containers": [container]}}


def training(name: str, labels: dict[str, str] | None = None, at: str = "0s", **annotations: str) -> str:
    metadata = {
        "name": name,
        "labels": {"kueue.x-k8s.io/queue-name": "training", **(labels or {})},
        "annotations": {"batchyard.dev/submit-at": at},
    }
    job = {"apiVersion": "ml.example.com/v1", "kind": "Training", "metadata": metadata}
    return yaml.safe_dump({**job, "spec": {"workers": 4, "template": template(**annotations)}})


def pytorch_job(name: str, at: str = "0s", **annotations: str) -> str:
    replicas = {"Master": {"template": template(**annotations)}, "Worker": {"replicas": 2, "template": template()}}
    labels, times = {"kueue.x-k8s.io/queue-name": "training"}, {"batchyard.dev/submit-at": at}
    metadata = {"name": name, "labels": labels, "annotations": times}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": metadata}
    return yaml.safe_dump({**job, "spec": {"pytorchReplicaSpecs": replicas}})


def world_of(*texts: str, queues: str = QUEUES) -> World:
    text = "\n---\n".join([*texts, queues])
    manifests = read_manifests([("manifests.yaml", text)])
    assert manifests.faults == []
    return World(make_scenario(manifests))


def test_jobs_of_described_kinds_wait_run_and_finish() -> None:
    result = simulate("\n---\n".join([QUEUES, pytorch_job("a", runtime="10m"), pytorch_job("b", "1m")]))
    assert [(each.owner, each.status, each.waited) for each in result.workloads] == [
        ("a", "finished", 0),
        ("b", "finished", 540),
    ]


def test_job_kind_in_manifests_enables_its_kind_and_preempted_job_runs_again() -> None:
    world = world_of(
        training("low", runtime="10m"),
        training("high", {"kueue.x-k8s.io/priority-class": "high"}, "2m", runtime="3m"),
        JOB_KIND,
    )
    world.run_until(3 * MINUTE)
    jobs = {job["metadata"]["name"]: job for job in world.objects("Training.ml.example.com")}
    assert (jobs["low"]["spec"]["paused"], jobs["low"].get("status") or {}) == (True, {})
    assert "nodeSelector" not in jobs["low"]["spec"]["template"]["spec"]
    assert (jobs["high"]["spec"]["paused"], jobs["high"]["status"]["ready"]) == (False, 4)
    assert jobs["high"]["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "spot"}
    world.run_until(None)
    jobs = {job["metadata"]["name"]: job for job in world.objects("Training.ml.example.com")}
    assert [job["status"] for job in jobs.values()] == [{"phase": "Succeeded"}] * 2
    conditions = [each for workload in world.objects(scheme.WORKLOAD) for each in workload["status"]["conditions"]]
    finished = [each["lastTransitionTime"] for each in conditions if each["type"] == "Finished"]
    assert finished == ["2026-01-01T00:05:00Z", "2026-01-01T00:15:00Z"]


def test_failed_pod_fails_its_job() -> None:
    world = world_of(training("a", exit_code="3"), JOB_KIND)
    world.run_until(None)
    (workload,) = world.objects(scheme.WORKLOAD)
    finished = next(each for each in workload["status"]["conditions"] if each["type"] == "Finished")
    assert (finished["reason"], finished["message"]) == ("Failed", "broken")


def test_waiting_workload_of_described_job_is_explained() -> None:
    world = world_of(pytorch_job("a", runtime="10m"), pytorch_job("b", "1m"))
    world.run_until(2 * MINUTE)
    document = world.platform.explainer.why(Key("PyTorchJob.kubeflow.org", "default", "b"), world.kernel.now())
    assert document is not None
    assert document["state"] == "Pending"
    (pod,) = world.objects(scheme.POD)[:1]
    document = world.platform.explainer.why(key_of(pod), world.kernel.now())
    assert document is not None
    assert document["facts"]["workload"].startswith("pytorchjob-a-")


@pytest.mark.parametrize("kind", built_in_descriptions())
def test_simulated_statuses_have_their_states(kind: str) -> None:
    integration = find_integration(kind, {})
    assert integration is not None
    integration = integration.with_objects(lambda _: RUNTIME)
    job: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {}}
    ready = {**job, "status": integration.simulated_status("ready", job)}
    assert (integration.is_active(ready), integration.pods_ready(ready), integration.completion(ready)) == (
        True,
        True,
        None,
    )
    assert not integration.is_active({**job, "status": {}})
    for state, succeeded in (("succeeded", True), ("failed", False)):
        status = integration.simulated_status(state, job)
        completion = integration.completion({**job, "status": status}) if status and integration.spec.failed else None
        assert completion is None or completion.succeeded is succeeded


def train_job(name: str, at: str = "0s") -> str:
    labels, annotations = {"kueue.x-k8s.io/queue-name": "training"}, {"batchyard.dev/runtime": "10m"}
    metadata = {"name": name, "labels": labels, "annotations": {"batchyard.dev/submit-at": at, **annotations}}
    job = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": metadata}
    trainer = {"numNodes": 3, "resourcesPerNode": {"requests": {"cpu": "1"}}}
    return yaml.safe_dump({**job, "spec": {"runtimeRef": {"name": "torch"}, "trainer": trainer}})


TRAINING_RUNTIME: Final = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch}
spec:
  mlPolicy: {numNodes: 1, torch: {}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec: {template: {spec: {containers: [{name: node, image: pytorch/pytorch}]}}}
"""


def test_train_jobs_wait_run_and_finish() -> None:
    world = world_of(train_job("a"), train_job("b", "1m"), TRAINING_RUNTIME)
    world.run_until(2 * MINUTE)
    pods = world.objects(scheme.POD)
    assert [(pod["metadata"]["name"], pod["spec"]["nodeSelector"]) for pod in pods] == [
        (f"a-node-{index}", {"pool": "spot"}) for index in range(3)
    ]
    world.run_until(None)
    ends = [world.objects("TrainJob.trainer.kubeflow.org")[i]["status"]["conditions"][0]["type"] for i in range(2)]
    assert ends == ["Complete", "Complete"]


def test_app_wrapper_waits_runs_and_finishes() -> None:
    wrapped = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "w"}}
    job = {**wrapped, "spec": {"parallelism": 3, "template": template(runtime="10m")}}
    metadata = {"name": "a", "labels": {"kueue.x-k8s.io/queue-name": "training"}}
    spec = {"components": [{"template": job}]}
    header = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "metadata": metadata}
    world = world_of(yaml.safe_dump({**header, "spec": spec}), training("b", at="1m", runtime="5m"), JOB_KIND)
    world.run_until(2 * MINUTE)
    pods = world.objects(scheme.POD)
    assert [(pod["metadata"]["name"], pod["spec"]["nodeSelector"]) for pod in pods] == [
        (f"a-a-0-{index}", {"pool": "spot"}) for index in range(3)
    ]
    world.run_until(None)
    (app_wrapper,) = world.objects("AppWrapper.workload.codeflare.dev")
    assert app_wrapper["status"] == {"phase": "Succeeded"}


def test_spark_application_waits_runs_and_finishes() -> None:
    metadata = {
        "name": "pi",
        "labels": {"kueue.x-k8s.io/queue-name": "training"},
        "annotations": {"batchyard.dev/runtime": "10m", "batchyard.dev/submit-at": "1m"},
    }
    header = {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "metadata": metadata}
    spec = {"type": "Scala", "mode": "cluster", "driver": {}, "executor": {"instances": 3, "cores": 1}}
    with_memory = "[{name: memory, nominalQuota: 16Gi}, "
    queues = QUEUES.replace("[cpu]", "[memory, cpu]").replace("resources: [", f"resources: {with_memory}")
    texts = yaml.safe_dump({**header, "spec": spec}), training("b", runtime="5m"), JOB_KIND
    world = world_of(*texts, queues=queues)
    world.run_until(7 * MINUTE)
    assert sorted(pod["metadata"]["name"] for pod in world.objects(scheme.POD) if "pi-" in pod["metadata"]["name"]) == [
        *("pi-driver-0", "pi-executor-0", "pi-executor-1", "pi-executor-2")
    ]
    (application,) = world.objects("SparkApplication.sparkoperator.k8s.io")
    assert application["status"]["executorState"] == {f"pi-exec-{index}": "RUNNING" for index in (1, 2, 3)}
    world.run_until(None)
    (application,) = world.objects("SparkApplication.sparkoperator.k8s.io")
    assert application["status"] == {"applicationState": {"state": "COMPLETED"}}


def test_start_of_waiting_job_is_forecast_from_run_times_of_templates() -> None:
    world = world_of(training("a", runtime="10m"), training("b", at="1m", runtime="5m"), JOB_KIND)
    world.run_until(2 * MINUTE)
    (waiting,) = [each for each in world.objects(scheme.WORKLOAD) if "admission" not in each["status"]]
    name = f"default/{waiting['metadata']['name']}"
    forecast = forecast_workloads(world.state(), [name], ForecastOptions(expects_arrivals=False))[name]
    assert (forecast.basis, forecast.waits) == (EstimateBasis.MANIFEST, [8 * MINUTE])
