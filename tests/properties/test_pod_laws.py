"""Laws of pods and groups of pods in queues, in random worlds with write conflicts and crashes.

No pod runs without quota, a group starts whole, and no finalizer outlives the Workload of its pod.
"""

from typing import Any

import pytest

import make
from batchyard.api import well_known
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
    cpus = [1, rng.draw_integer(1, 2)]
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


@pytest.mark.parametrize("seed", range(12))
def test_pod_worlds_keep_all_invariants(seed: int) -> None:
    assert invariant_violations(random_world(seed)) == ""


@pytest.mark.parametrize("seed", range(100, 106))
def test_pod_worlds_keep_invariants_despite_conflicts_and_crashes(seed: int) -> None:
    assert violations_with_faults(random_world(seed), conflicts=0.2, crash_every=7) == ""
