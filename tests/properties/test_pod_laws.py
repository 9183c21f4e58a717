"""Laws of pods and groups of pods in queues, in random worlds with write conflicts and crashes.

No pod runs without quota, a group starts whole, and no finalizer outlives the Workload of its pod.
"""

from dataclasses import replace
from typing import Any

import pytest

import make
from batchyard.api import well_known
from batchyard.api.meta import Obj, label
from batchyard.sim.random_clusters import random_cluster_scenario
from batchyard.sim.random_worlds import RandomChoices, SeededDraws, scenario_of
from batchyard.sim.scenario import Scenario
from properties.worlds import invariant_violations, violations_with_faults
from yard import preemption, queue

UNTIL = 1500
CLASSES = {"low": 0, "high": 100}
POLICIES = (preemption("LowerPriority", "Any"), preemption("LowerOrNewerEqualPriority", "LowerPriority"), preemption())


def plain(obj: Any) -> dict[str, Any]:
    metadata = {name: value for name, value in obj["metadata"].items() if name not in {"creationTimestamp", "uid"}}
    return {**{name: value for name, value in obj.items() if name != "status"}, "metadata": metadata}


def pod(rng: RandomChoices, name: str, at: int, cpu: int, **metadata: Any) -> dict[str, Any]:
    """A pod that is created at a time, and deleted later in some worlds."""
    annotations = {
        well_known.RUNTIME: f"{rng.draw_integer(20, 300)}s",
        well_known.SUBMIT_AT: f"{at}s",
        **metadata.get("annotations", {}),
    }
    if rng.draw_bool(15):
        annotations[well_known.DELETE_AT] = f"{at + rng.draw_integer(1, 400)}s"
    if rng.draw_bool(15):
        annotations[well_known.EXIT_CODE] = "1"
    labels = {well_known.QUEUE_NAME: f"lq{rng.draw_integer(0, 1)}", **metadata.get("labels", {})}
    if rng.draw_bool(60):
        labels[well_known.PRIORITY_CLASS] = rng.choose(list(CLASSES))
    container = {"name": "c", "image": "pause", "resources": {"requests": {"cpu": str(cpu)}}}
    meta = {"name": name, "namespace": "team", "labels": labels, "annotations": annotations}
    spec = {"restartPolicy": "Never", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def pod_group(rng: RandomChoices, number: int) -> list[dict[str, Any]]:
    """A group that may be incomplete, too large, or get pods that replace failed ones."""
    size, name, at = rng.draw_integer(1, 4), f"g{number}", rng.draw_integer(0, UNTIL // 2)
    created = max(1, size + rng.draw_integer(-1, 2))
    annotations = {well_known.POD_GROUP_COUNT: str(size)}
    switches = {
        well_known.POD_GROUP_FAST_ADMISSION: "true",
        well_known.RETRIABLE_IN_GROUP: "false",
        well_known.POD_GROUP_SERVING: "true",
    }
    annotations |= {key: value for key, value in switches.items() if rng.draw_bool(20)}
    labels = {well_known.POD_GROUP_NAME: name, well_known.QUEUE_NAME: f"lq{rng.draw_integer(0, 1)}"}
    # Fast admission requires equal pods: the Workload has the first pod's role only.
    cpus = [1, 1 if well_known.POD_GROUP_FAST_ADMISSION in annotations else rng.draw_integer(1, 2)]
    return [
        pod(rng, f"{name}-{i}", at + rng.draw_integer(0, 200), rng.choose(cpus), labels=labels, annotations=annotations)
        for i in range(created)
    ]


def random_world(seed: int) -> Scenario:
    rng = RandomChoices(SeededDraws(seed))
    queues = [queue(f"cq{i}", rng.draw_integer(2, 8), cohort="all", preemption=rng.choose(POLICIES)) for i in range(2)]
    local_queues = [{**make.local_queue(f"lq{i}"), "spec": {"clusterQueue": f"cq{i}"}} for i in range(2)]
    kueue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
    classes = [{**kueue, "metadata": {"name": name}, "value": value} for name, value in CLASSES.items()]
    singles = [pod(rng, f"p{i}", rng.draw_integer(0, UNTIL), rng.draw_integer(1, 3)) for i in range(6)]
    groups = [each for i in range(rng.draw_integer(2, 5)) for each in pod_group(rng, i)]
    objects = [*classes, *map(plain, (make.flavor("spot"), *queues, *local_queues)), *singles, *groups]
    return scenario_of(objects, fair_sharing=rng.draw_bool(30))


def pod_like(rng: RandomChoices, job: Obj, name: str, **metadata: Any) -> dict[str, Any]:
    """A pod with the queue and the spec of the pods of a Job."""
    made = pod(rng, name, rng.draw_integer(0, UNTIL), 1, **metadata)
    queue_label = {well_known.QUEUE_NAME: job["metadata"]["labels"][well_known.QUEUE_NAME]}
    labels = {key: value for key, value in made["metadata"]["labels"].items() if key != well_known.PRIORITY_CLASS}
    spec = {**job["spec"]["template"]["spec"], "restartPolicy": "Never"}
    return {**made, "metadata": {**made["metadata"], "labels": {**labels, **queue_label}}, "spec": spec}


def mixed_world(seed: int) -> Scenario:
    """A cluster with nodes and faults, Jobs and JobSets, and pods and groups of pods like those of its Jobs."""
    cluster = random_cluster_scenario(SeededDraws(seed))
    rng = RandomChoices(SeededDraws(seed + 1_000_000))
    applied = [obj for step in cluster.steps for obj in step.apply]
    jobs = [obj for obj in applied if obj["kind"] == "Job" and label(obj, well_known.QUEUE_NAME)]
    objects: list[dict[str, Any]] = []
    for number in range(rng.draw_integer(1, 4) if jobs else 0):
        job, size = rng.choose(jobs), rng.draw_integer(1, 3)
        objects.append(pod_like(rng, job, f"p{number}"))
        labels, annotations = {well_known.POD_GROUP_NAME: f"g{number}"}, {well_known.POD_GROUP_COUNT: str(size)}
        count = size + rng.draw_integer(0, 1)
        group = [pod_like(rng, job, f"g{number}-{i}", labels=labels, annotations=annotations) for i in range(count)]
        objects += group
    steps = sorted([*cluster.steps, *scenario_of(objects).steps], key=lambda step: step.at)
    return replace(cluster, steps=steps)


@pytest.mark.parametrize("seed", range(6))
def test_clusters_with_jobs_and_pods_keep_all_invariants(seed: int) -> None:
    assert invariant_violations(mixed_world(seed)) == ""


@pytest.mark.parametrize("seed", range(12))
def test_pod_worlds_keep_all_invariants(seed: int) -> None:
    assert invariant_violations(random_world(seed)) == ""


@pytest.mark.parametrize("seed", range(100, 106))
def test_pod_worlds_keep_invariants_despite_conflicts_and_crashes(seed: int) -> None:
    assert violations_with_faults(random_world(seed), conflicts=0.2, crash_every=7) == ""
