"""Faults in a world: the effect of each on machines, nodes, the cloud and the platform, and its end."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import HOUR, MINUTE, SECOND
from batchyard.cloud.catalog.instances import phase_of
from batchyard.sim.faults import WriteFaults
from batchyard.sim.faults.injection import has_unfinished_work
from batchyard.sim.scenario import make_scenario
from batchyard.sim.world import World

CLUSTER = """
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: c}
spec:
  region: r
  zones: [r-a]
  nodePools:
  - {name: cpu, machineType: e2-standard-4, nodeCount: 2}
  - {name: spot, machineType: e2-standard-4, provisioning: spot, nodeCount: 2}
  - {name: tpu, machineType: ct5lp-hightpu-4t, tpuTopology: 2x4, nodeCount: 2}
  capacity: [{machineType: n2-standard-2, zone: r-a, count: 5}]
  times: {repair: 5m}
---
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: j, namespace: team}
spec:
  completions: %d
  template:
    spec:
      restartPolicy: Never
      nodeSelector: {cloud.google.com/gke-nodepool: cpu}
      containers: [{name: c, image: i, command: [sleep, "%d"]}]
---
"""


def world_of(*faults: str, job: str = "") -> tuple[World, list[dict[str, Any]]]:
    """A world with these faults, and the fault records of its event log."""
    head = "apiVersion: sim.batchyard.dev/v1alpha1\nkind: Scenario\nmetadata: {name: s}\nspec: {faults: ["
    text = f"{head}{', '.join(faults)}]}}\n---\n{CLUSTER}{job}"
    log: list[Any] = []

    def keep(record: Mapping[str, Any]) -> None:
        if record["event"] == "Fault":
            log.append(record)

    return World(make_scenario(read_manifests([("world.yaml", text)])), sink=keep), log


def phases(world: World, pool: str) -> list[str]:
    """The phases of a pool's machines."""
    return [phase_of(obj) for obj in world.objects(scheme.INSTANCE) if obj["spec"]["pool"] == pool]


def fault_events(log: list[dict[str, Any]]) -> list[tuple[float, str]]:
    """The time and the name of each recorded fault."""
    return [(record["time"], record["fault"]) for record in log]


def cluster_of(world: World) -> Obj:
    """The Cluster as it is."""
    return world.objects(scheme.CLUSTER)[0]


def test_failed_machines_of_pool_crash_and_are_repaired() -> None:
    world, log = world_of("{at: 1m, fail: {pool: cpu, count: 1}}")
    world.run_until(MINUTE)
    assert sorted(phases(world, "cpu")) == ["Crashed", "Running"]
    assert (fault_events(log), len(log[0]["nodes"])) == ([(60, "fail")], 1)
    world.run_until(HOUR)
    assert phases(world, "cpu") == ["Running", "Running"]


def test_node_failure_crashes_named_node() -> None:
    name = world_of()[0]
    name.run_until(MINUTE)
    node = name.objects(scheme.NODE)[1]["metadata"]["name"]
    world, log = world_of(f"{{at: 1m, fail: {{node: {node}}}}}")
    world.run_until(MINUTE)
    assert log[0]["nodes"] == [node]
    assert [phase_of(obj) for obj in world.objects(scheme.INSTANCE) if obj["metadata"]["name"] == node] == ["Crashed"]


def test_slice_failure_crashes_all_its_machines() -> None:
    world, _ = world_of("{at: 1m, fail: {slice: tpu}}")
    world.run_until(MINUTE)
    assert phases(world, "tpu") == ["Crashed", "Crashed"]


def test_pod_failure_crashes_machine_of_pod() -> None:
    world, log = world_of("{at: 1m, fail: {pod: team/j-0}}", job=JOB % (1, 600))
    world.run_until(MINUTE - SECOND)
    (pod,) = world.objects(scheme.POD)
    assert pod["metadata"]["name"] != "j-0"
    world, log = world_of(f"{{at: 1m, fail: {{pod: team/{pod['metadata']['name']}}}}}", job=JOB % (1, 600))
    world.run_until(MINUTE)
    assert log[-1]["nodes"] == [pod["spec"]["nodeName"]]


def test_fault_without_target_is_recorded_as_missed() -> None:
    world, log = world_of("{at: 1m, fail: {jobSet: team/none}}", "{at: 2m, drain: {node: none}}")
    world.run_until(None)
    assert [record["nodes"] for record in log] == [[], []]
    assert world.rejected_writes == []
    assert [fault.path for fault in world.missed_faults] == ["spec.faults[0]", "spec.faults[1]"]


def test_random_fault_without_target_is_not_recorded_as_missed() -> None:
    world, log = world_of("{every: {mean: 1m, until: 10m}, fail: {jobSet: team/none}}", job=JOB % (1, 600))
    world.run_until(None)
    assert log
    assert world.missed_faults == []


def test_reclaimed_spot_machine_stops_after_notice() -> None:
    world, _ = world_of("{at: 1m, reclaimSpot: {pool: spot}}")
    world.run_until(MINUTE)
    assert sorted(phases(world, "spot")) == ["Running", "Stopping"]
    assert phases(world, "cpu") == ["Running", "Running"]
    before = {obj["metadata"]["name"] for obj in world.objects(scheme.INSTANCE) if phase_of(obj) == "Stopping"}
    world.run_until(HOUR)
    assert not before & {obj["metadata"]["name"] for obj in world.objects(scheme.INSTANCE)}


def test_overlapping_stockouts_restore_capacity() -> None:
    outs = [f"{{at: {at}m, stockout: {{machine: n2-standard-2, zone: r-a, for: 4m}}}}" for at in (1, 3)]
    world, _ = world_of(*outs)
    counts = {}
    for minute in (0, 1, 3, 5, 7):
        world.run_until(minute * MINUTE)
        counts[minute] = [row["count"] for row in cluster_of(world)["spec"]["capacity"]]
    assert counts == {0: [5], 1: [5, 0], 3: [5, 0, 0], 5: [5, 0], 7: [5]}


def test_overlapping_slow_boots_multiply_and_end() -> None:
    given = "slowBoot: {machine: e2-standard-4, times: 2, for: 4m}"
    world, _ = world_of(f"{{at: 1m, {given}}}", f"{{at: 3m, {given}}}")
    seen = {}
    for minute in (0, 1, 3, 5, 7):
        world.run_until(minute * MINUTE)
        rows = cluster_of(world)["spec"]["times"].get("byMachine") or {}
        seen[minute] = rows.get("e2-standard-4", {}).get("boot", {}).get("min")
    assert seen == {0: None, 1: "50000000us", 3: "100000000us", 5: "50000000us", 7: None}


def test_drained_node_is_emptied_and_uncordoned() -> None:
    calm, _ = world_of(job=JOB % (1, 600))
    calm.run_until(MINUTE)
    node = calm.objects(scheme.POD)[0]["spec"]["nodeName"]
    world, log = world_of(f"{{at: 1m, drain: {{node: {node}, for: 10m}}}}", job=JOB % (1, 600))
    world.run_until(2 * MINUTE)
    assert world.objects(scheme.NODE)
    obj = world.client.get(Key(scheme.NODE, "", node))
    assert obj is not None
    assert obj["spec"]["unschedulable"]
    assert [pod["spec"]["nodeName"] for pod in world.objects(scheme.POD)] != [node]
    world.run_until(11 * MINUTE)
    obj = world.client.get(Key(scheme.NODE, "", node))
    assert obj is not None
    assert "unschedulable" not in obj["spec"]
    assert fault_events(log) == [(60, "drain")]


@pytest.mark.parametrize("fault", ["conflicts: {percent: 30, for: 5m}", "restart: true"])
def test_conflicts_and_restarts_do_not_change_result_of_job(fault: str) -> None:
    world, log = world_of(f"{{at: 1s, {fault}}}", f"{{at: 3s, {fault}}}", job=JOB % (3, 30))
    world.run_until(None)
    assert [job["status"]["succeeded"] for job in world.objects(scheme.JOB)] == [3]
    assert len(fault_events(log)) == 2


def test_repeating_faults_end_when_work_ends() -> None:
    world, log = world_of("{every: {mean: 1m, seed: 3}, fail: {pool: cpu}}", job=JOB % (2, 300))
    world.run_until(None)
    assert not has_unfinished_work(world.client)
    assert len(fault_events(log)) > 2
    assert len({node for record in log for node in record["nodes"]}) > 1


def test_repeating_faults_end_at_until() -> None:
    world, log = world_of("{every: {mean: 1m, until: 10m}, fail: {pool: spot}}", job=JOB % (1, 3600))
    world.run_until(None)
    assert fault_events(log)
    assert all(at <= 600 for at, _ in fault_events(log))


def continued(world: World, write_faults: WriteFaults | None = None) -> World:
    """A world that starts from the state of another, with the later faults of its scenario."""
    later_faults = [replace(fault, elapsed=world.now()) for fault in world.scenario.faults]
    scenario = replace(world.scenario, steps=[], faults=later_faults)
    return World(scenario, state=world.state(), write_faults=write_faults)


def test_shortages_that_last_at_start_end_on_time() -> None:
    slow = "slowBoot: {machine: e2-standard-4, times: 2, for: 4m}"
    out = "stockout: {machine: n2-standard-2, zone: r-a, for: 4m}"
    world, _ = world_of(f"{{at: 1m, {slow}}}", f"{{at: 1m, {out}}}", f"{{at: 3m, {out}}}")
    world.run_until(2 * MINUTE)
    world = continued(world)
    seen = {}
    for minute in (0, 1, 3, 5):
        world.run_until(minute * MINUTE)
        spec = cluster_of(world)["spec"]
        is_slow = "e2-standard-4" in (spec["times"].get("byMachine") or {})
        seen[minute] = ([row["count"] for row in spec["capacity"]], is_slow)
    assert seen == {0: ([5, 0], True), 1: ([5, 0, 0], True), 3: ([5, 0], False), 5: ([5], False)}


def test_drained_node_is_uncordoned_after_continuation() -> None:
    calm, _ = world_of()
    calm.run_until(MINUTE)
    node = Key(scheme.NODE, "", calm.objects(scheme.NODE)[0]["metadata"]["name"])
    world, _ = world_of(f"{{at: 1m, drain: {{node: {node.name}, for: 10m}}}}")
    world.run_until(2 * MINUTE)
    world = continued(continued(world))
    seen = []
    for minute in (8, 9):
        world.run_until(minute * MINUTE)
        obj = world.client.get(node)
        assert obj is not None
        seen.append("unschedulable" in obj["spec"])
    assert seen == [True, False]


def test_conflicts_that_last_at_start_end_on_time() -> None:
    world, _ = world_of("{at: 1m, conflicts: {percent: 30, for: 5m}}")
    world.run_until(2 * MINUTE)
    write_faults = WriteFaults()
    world = continued(world, write_faults)
    rates = []
    for minute in (0, 3, 4):
        world.run_until(minute * MINUTE)
        rates.append(write_faults.conflict_rate)
    assert rates == [0.3, 0.3, 0]
