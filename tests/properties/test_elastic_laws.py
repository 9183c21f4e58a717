"""Laws of elastic Jobs in random worlds: partial scale-up and partial preemption.

No Job runs with fewer pods than its minimum because of a partial preemption, no revision exceeds a quota, and a Job
shrinks only as often as its backoff allows. A shrinking Job releases the quota of a pod only when the pod has stopped.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

import make
from batchyard.api import scheme, well_known
from batchyard.api.meta import Obj, annotation, is_true
from batchyard.api.views.pods import is_terminal
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.jobframework import slices
from batchyard.jobframework.shrinking import backoff_after, is_shrinking
from batchyard.scheduling.workload import lifecycle
from batchyard.sim.invariants.checker import attach_invariants
from batchyard.sim.random_worlds import RandomChoices, SeededDraws, scenario_of
from batchyard.sim.world import World
from yard import preemption, queue

SECOND = 1_000_000
UNTIL = 1500
GATES = {well_known.PARTIAL_SCALE_UP_GATE: True, well_known.PARTIAL_PREEMPTION_GATE: True}
POLICIES = (preemption("LowerPriority", "Any"), preemption("LowerOrNewerEqualPriority", "LowerPriority"), preemption())
CLASSES = {"low": 0, "middle": 50, "high": 100}
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "large"},
    "status": {
        "allocatable": {"cpu": "100", "memory": "100Gi", "pods": "500"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}


def without_creation_time(obj: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {name: value for name, value in obj["metadata"].items() if name not in {"creationTimestamp", "uid"}}
    return {**{name: value for name, value in obj.items() if name != "status"}, "metadata": metadata}


def random_job(rng: RandomChoices, number: int) -> list[dict[str, Any]]:
    """A plain or an elastic Job, which may be scaled later."""
    name, is_elastic, size = f"j{number}", rng.draw_bool(60), rng.draw_integer(1, 6)
    labels = {
        well_known.QUEUE_NAME: f"lq{rng.draw_integer(0, 1)}",
        well_known.PRIORITY_CLASS: rng.choose(["low", "low", "middle"] if is_elastic else ["low", "middle", "high"]),
    }
    annotations = {well_known.RUNTIME: f"{rng.draw_integer(20, 400)}s"}
    if is_elastic:
        annotations[well_known.ELASTIC_JOB] = "true"
        if rng.draw_bool(70):
            annotations[well_known.PARTIAL_PREEMPTION] = "true"
            annotations[well_known.MIN_PARALLELISM] = str(rng.draw_integer(1, size))
        if rng.draw_bool(60):
            annotations[well_known.SCALE_UP_STRATEGY] = "partial"
    steps, at = [], rng.draw_integer(0, UNTIL // 2)
    for _ in range(1 + (rng.draw_integer(0, 2) if is_elastic else 0)):
        spec = make.job(name, parallelism=size, completions=60 if is_elastic else size)
        metadata = {
            **spec["metadata"],
            "labels": labels,
            "annotations": {**annotations, well_known.SUBMIT_AT: f"{at}s"},
        }
        steps.append(without_creation_time({**spec, "metadata": metadata}))
        size, at = rng.draw_integer(1, 9), at + rng.draw_integer(1, 200)
    return steps


def random_world(seed: int, *, with_nodes: bool = False) -> World:
    """A world with two queues of a cohort. On nodes, pods take a second to stop; elsewhere, they stop at once."""
    rng = RandomChoices(SeededDraws(seed))
    fair = rng.draw_bool(40)
    queues = [queue(f"cq{i}", rng.draw_integer(3, 10), cohort="all", preemption=rng.choose(POLICIES)) for i in range(2)]
    objects = [make.flavor("spot"), *queues]
    objects += [{**make.local_queue(f"lq{i}"), "spec": {"clusterQueue": f"cq{i}"}} for i in range(2)]
    kueue = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "WorkloadPriorityClass"}
    classes = [{**kueue, "metadata": {"name": name}, "value": value} for name, value in CLASSES.items()]
    jobs = [step for number in range(rng.draw_integer(8, 16)) for step in random_job(rng, number)]
    objects = [*classes, *([NODE] if with_nodes else ()), *map(without_creation_time, objects), *jobs]
    return World(scenario_of(objects, fair_sharing=fair, settings={"featureGates": GATES}), seed=seed)


class ElasticLaws:
    """Observes a world: sizes of Jobs that shrink, and the times at which Workloads begin to shrink, by Job."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults: list[str] = []
        self.shrink_times: dict[str, list[int]] = {}
        #: By job, the pods that may be scheduled and have not ended, by uid: whether each is stopping.
        self.pods: dict[str, dict[str, bool]] = {}
        self.stopping_count = 0

    def observe(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            if event.key.kind == scheme.POD:
                self.count_pod(event)
        for event in events:
            if event.key.kind == scheme.WORKLOAD and event.type is not EventType.DELETED and is_shrinking(event.obj):
                self.check_stopped_pods(event.obj)
        for event in events:
            if event.key.kind != scheme.WORKLOAD or event.old is None or not is_shrinking(event.obj):
                continue
            if not is_shrinking(event.old):
                self.shrink_times.setdefault(str(owner_of(event.obj)), []).append(self.world.kernel.now())
            self.check_minimum(event.obj)

    def count_pod(self, event: WatchEvent) -> None:
        """Count a pod that may be scheduled until it has ended; a pod that is being deleted counts too."""
        metadata = event.obj["metadata"]
        if annotation(event.obj, well_known.SLICE_NAME) is None:
            return
        pods = self.pods.setdefault(owner_of(event.obj), {})
        if event.type is EventType.DELETED or slices.has_gate(event.obj) or is_terminal(event.obj):
            pods.pop(metadata["uid"], None)
        else:
            pods[metadata["uid"]] = "deletionTimestamp" in metadata

    def check_stopped_pods(self, workload: Obj) -> None:
        """A shrinking Workload holds the quota of all pods that have not stopped."""
        pods, granted = self.pods.get(owner_of(workload), {}), sum(slices.granted_counts(workload).values())
        self.stopping_count += sum(pods.values())
        if len(pods) > granted:
            self.faults.append(f"{len(pods)} pods have not stopped, but {workload['metadata']['name']} holds {granted}")

    def check_minimum(self, workload: Obj) -> None:
        for pod_set in workload["spec"]["podSets"]:
            granted = slices.granted_counts(workload)[pod_set["name"]]
            if granted < pod_set.get("minCount", 0):
                self.faults.append(f"{workload['metadata']['name']} has {granted} pods, minimum {pod_set['minCount']}")

    def check_backoff(self) -> None:
        """A Job shrinks again at the earliest when the backoff after the last time has passed."""
        for job, times in self.shrink_times.items():
            for number, (last, next_time) in enumerate(pairwise(times), 1):
                if next_time - last < backoff_after(number):
                    self.faults.append(f"{job} shrinks after {(next_time - last) / SECOND} s, time {number + 1}")


def owner_of(workload: Obj) -> str:
    (owner,) = workload["metadata"]["ownerReferences"]
    return str(owner["uid"])


def run_world(seed: int, *, with_nodes: bool = False) -> tuple[ElasticLaws, World]:
    world = random_world(seed, with_nodes=with_nodes)
    checker, laws = attach_invariants(world), ElasticLaws(world)
    world.client.subscribe(laws.observe)
    world.run_until(UNTIL * SECOND)
    checker.finish()
    laws.check_backoff()
    assert [str(violation) for violation in checker.violations] == []
    assert laws.faults == []
    return laws, world


@pytest.mark.parametrize("seed", range(12))
def test_laws_of_elastic_jobs_hold_in_random_worlds(seed: int) -> None:
    run_world(seed)


def test_shrinking_jobs_hold_quota_until_their_pods_have_stopped() -> None:
    """On nodes, pods are still stopping while Workloads shrink; otherwise, the law would hold trivially."""
    assert sum(run_world(seed, with_nodes=True)[0].stopping_count for seed in range(12, 18)) > 0


def test_random_worlds_shrink_and_grow_jobs() -> None:
    """Otherwise the laws would hold trivially."""
    shrunk = grown = 0
    for seed in range(12):
        laws, world = run_world(seed)
        shrunk += sum(map(len, laws.shrink_times.values()))
        workloads = world.objects(scheme.WORKLOAD)
        grown += sum(is_partly_granted(each) for each in workloads)
    assert shrunk > 3
    assert grown > 3


def is_partly_granted(workload: Obj) -> bool:
    is_slice = annotation(workload, well_known.SCALE_UP_STRATEGY) == "partial"
    counts = slices.counts_of(workload["spec"]["podSets"])
    return is_slice and is_true(workload, lifecycle.ADMITTED) and slices.granted_counts(workload) != counts
