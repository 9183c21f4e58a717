"""Simulated worlds with elastic Jobs, in which jobs grow in part and are preempted in part."""

from collections.abc import Mapping
from typing import Any, Final

import make
from batchyard.api import well_known
from batchyard.api.meta import Obj, with_metadata
from batchyard.base.instant import SECOND
from batchyard.sim.invariants.checker import attach_invariants
from batchyard.sim.random_worlds import scenario_of
from batchyard.sim.world import World
from yard import preemption, queue

ELASTIC: Final = {well_known.ELASTIC_JOB: "true"}
PARTIAL: Final = {**ELASTIC, well_known.SCALE_UP_STRATEGY: "partial"}
ARRAY: Final = {**PARTIAL, well_known.PARTIAL_START: "true"}
SHRINKABLE: Final = {**ELASTIC, well_known.PARTIAL_PREEMPTION: "true", well_known.MIN_PARALLELISM: "2"}
GATES: Final = {well_known.PARTIAL_SCALE_UP_GATE: True, well_known.PARTIAL_PREEMPTION_GATE: True}


def world_of(*objects: Obj, quota: int, until: int) -> tuple[World, list[Mapping[str, Any]]]:
    """A world with both feature gates, in which all invariants hold, and its log."""
    config = {"apiVersion": "config.kueue.x-k8s.io/v1beta2", "kind": "Configuration", "featureGates": GATES}
    cluster_queue = queue("cq", quota, preemption=preemption("LowerPriority"))
    rest = [without_creation_time(each) for each in (make.flavor("spot"), cluster_queue, make.local_queue("lq"))]
    records: list[Mapping[str, Any]] = []
    world = World(scenario_of([config, *rest, *objects]), sink=records.append)
    checker = attach_invariants(world)
    world.run_until(until * SECOND)
    checker.finish()
    assert [str(violation) for violation in checker.violations] == []
    return world, records


def without_creation_time(obj: Obj) -> Obj:
    metadata = {name: value for name, value in obj["metadata"].items() if name != "creationTimestamp"}
    return {**{name: value for name, value in obj.items() if name != "status"}, "metadata": metadata}


def submitted(name: str, at: int, parallelism: int, annotations: Mapping[str, str], runtime: str = "5000s") -> Obj:
    submission = {**annotations, well_known.SUBMIT_AT: f"{at}s", well_known.RUNTIME: runtime}
    obj = make.job(name, parallelism=parallelism, completions=50 if annotations else parallelism)
    return without_creation_time(with_metadata(obj, annotations=submission, uid=None))


def urgent(name: str, at: int, parallelism: int) -> list[Obj]:
    """A job of high priority that runs for 100 s."""
    job = submitted(name, at, parallelism, {}, "100s")
    labels = {**(job["metadata"].get("labels") or {}), well_known.PRIORITY_CLASS: "high"}
    return [with_metadata(job, labels=labels)]


HIGH: Obj = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "WorkloadPriorityClass",
    "metadata": {"name": "high"},
    "value": 100,
}
