"""The effects of a change: start times, preemptions, waits and costs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Key
from batchyard.base.instant import SECOND
from batchyard.sim.faults import Drain, ScheduledFault
from batchyard.sim.random_worlds import scenario_of
from batchyard.sim.scenario import InvalidScenario, make_scenario
from batchyard.sim.simulate import read_scenario
from batchyard.sim.whatif import (
    Difference,
    RunStart,
    WorkloadDifference,
    WorkloadTimeline,
    compare,
    difference_of,
    document_of,
    read_change,
    start_from_state,
)
from batchyard.sim.world import World
from racks import rack_nodes, rack_queues, rack_workload
from unit.sim.forks_make import queue, state, workload

EXAMPLES = Path(__file__).parents[3] / "examples"
PREEMPTS = {"preemption": {"withinClusterQueue": "LowerPriority"}}
THERE = [*queue(1), workload("a", 30), workload("b", 30, 1)]


def difference(start: RunStart, *manifests: Any, deleted: tuple[Key, ...] = ()) -> Difference:
    change, _ = read_change([msgspec.json.encode(each).decode() for each in manifests], deleted, start)
    return difference_of(compare(start, change), 0)


def effects(found: Difference) -> dict[str, tuple[str, float | None]]:
    return {row.name.partition("/")[2]: (row.effect, row.sooner_by) for row in found.workloads}


@pytest.mark.parametrize("is_state", [False, True])
def test_more_quota_lets_workload_start_sooner(is_state: bool) -> None:
    start = start_from_state(state(THERE, 10)) if is_state else RunStart(scenario_of(THERE), at=10 * SECOND)
    result = difference(start, queue(2)[1])
    assert effects(result) == {"b": ("sooner", 20)}
    assert result.summary == "1 Workload starts sooner"
    assert (result.queues[0].waited_without, result.queues[0].waited_changed) == (10, 0)


def test_new_workload_preempts_lower_priority() -> None:
    start = start_from_state(state([*queue(1, **PREEMPTS), workload("a", 30)], 10))
    result = difference(start, workload("urgent", 5, priority=100))
    assert effects(result) == {"a": ("preempted", 0), "urgent": ("new", None)}
    (row,) = [row for row in document_of(result)["workloads"] if row["name"] == "team/a"]
    assert row["changed"] == {"startsAfter": -10, "endsAfter": 35, "preemptions": 1, "preemptedBy": "team/urgent"}
    assert result.summary == "1 Workload is new, 1 is preempted only with the change, 1 more preemption"


def test_deletion_of_an_ended_workload_affects_no_workload() -> None:
    start = start_from_state(state([*queue(1), workload("a", 5), workload("b", 30, 1)], 10))
    result = difference(start, deleted=(Key(scheme.WORKLOAD, "team", "a"),))
    assert effects(result) == {}
    assert result.summary == "the change affects no Workload"


def test_drained_workload_does_not_finish() -> None:
    result = difference(start_from_state(state(THERE, 10)), queue(1, stopPolicy="HoldAndDrain")[1])
    assert effects(result) == {"a": ("does not finish", 0), "b": ("does not start", None)}
    assert result.summary == "1 Workload no longer starts, 1 no longer finishes"
    (row,) = [row for row in document_of(result)["workloads"] if row["name"] == "team/a"]
    assert ["endsAfter" in row[side] for side in ("without", "changed")] == [True, False]


@pytest.mark.parametrize(
    ("without", "changed", "effect"),
    [
        ((0, 5), (0, None), "does not finish"),
        ((0, None), (0, 5), "finishes"),
        ((0, 5), (0, 6), "ends at another time"),
        ((0, 5), (1, None), "later"),
        ((1, None), (0, 5), "sooner"),
        ((1, 5), (0, None), "does not finish"),
    ],
)
def test_effect_names_first_consequence(
    without: tuple[float, float | None], changed: tuple[float, float | None], effect: str
) -> None:
    timelines = [WorkloadTimeline("team/lq", 0, *moments) for moments in (without, changed)]
    assert WorkloadDifference("team/a", "team/lq", *timelines).effect == effect


def test_deletion_is_compared_as_change() -> None:
    result = difference(start_from_state(state(THERE, 10)), deleted=(Key(scheme.WORKLOAD, "team", "a"),))
    assert effects(result) == {"a": ("gone", 0), "b": ("sooner", 20)}


def test_change_is_applied_at_its_submit_time() -> None:
    manifest = queue(2)[1]
    manifest["metadata"]["annotations"] = {"batchyard.dev/submit-at": "5s"}
    assert effects(difference(start_from_state(state(THERE, 10)), manifest)) == {"b": ("sooner", 15)}


def test_change_without_effect_is_reported() -> None:
    result = difference(start_from_state(state(THERE, 10)), queue(1)[1])
    assert (result.workloads, result.summary) == ([], "the change affects no Workload")


def test_rejected_change_is_reported() -> None:
    moved = workload("a", 30, cpus=2)
    result = difference(start_from_state(state(THERE, 10)), moved)
    assert result.comparison.refused[0].reason == "Invalid"
    assert not result.workloads


def test_scenario_document_changes_policy_of_run() -> None:
    scenario, _ = read_scenario([str(EXAMPLES / "fair-sharing")])
    policy = {"apiVersion": "sim.batchyard.dev/v1alpha1", "kind": "Scenario", "metadata": {"name": "other"}}
    change, _ = read_change([msgspec.json.encode(policy).decode()], (), RunStart(scenario))
    assert (scenario.fair_sharing, change.kueue is not None and change.kueue.policy.fair_sharing) == (True, False)
    assert compare(RunStart(scenario, at=5 * SECOND), change).changed.result.counts.pending == 0


FAIR_SHARING = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "fairSharing": {"preemptionStrategies": ["LessThanInitialShare"]},
}


def test_change_of_settings_keeps_later_faults() -> None:
    scenario, _ = read_scenario([str(EXAMPLES / "hotswap")])
    (fault,) = scenario.faults
    result = difference(RunStart(scenario, at=600 * SECOND), FAIR_SHARING).comparison
    logged_faults = [[each for each in run.log if "fault" in each] for run in (result.without, result.changed)]
    assert fault.at == 900 * SECOND
    assert [[each["time"] for each in records] for records in logged_faults] == [[300], [300]]


def test_change_of_settings_keeps_end_of_lasting_fault() -> None:
    scenario, _ = read_scenario([str(EXAMPLES / "hotswap")])
    node = next(name for name in _nodes(scenario) if name)
    drain = ScheduledFault(Drain(node, 100 * SECOND), at=120 * SECOND)
    start = RunStart(replace(scenario, faults=[drain], horizon=300 * SECOND), at=150 * SECOND)
    result = difference(start, FAIR_SHARING).comparison
    for run in (result.without, result.changed):
        (spec,) = [n["spec"] for n in run.result.objects[scheme.NODE] if n["metadata"]["name"] == node]
        assert "unschedulable" not in spec


def test_change_of_settings_keeps_end_of_scenario() -> None:
    scenario = replace(scenario_of(THERE), horizon=50 * SECOND)
    found = difference(RunStart(scenario, at=10 * SECOND), FAIR_SHARING)
    assert found.comparison.changed.result.now - found.comparison.without.result.now == 0
    assert found.comparison.changed.timelines["team/b"].ended_at is None


def test_drained_node_changes_nodes_in_report() -> None:
    scenario, _ = read_scenario([str(EXAMPLES / "hotswap")])
    start = RunStart(scenario, at=120 * SECOND)
    node = next(name for name in _nodes(scenario) if name)
    result = document_of(difference(start, deleted=(Key(scheme.NODE, "", node),)))
    assert result["nodes"]["without"] != result["nodes"]["changed"]


def test_pool_change_requires_existing_cluster() -> None:
    pool = {"apiVersion": "cloud.batchyard.dev/v1alpha1", "kind": "NodePool", "metadata": {"name": "p"}}
    spec = {"machineType": "e2-standard-4", "nodeCount": 1}
    with pytest.raises(InvalidScenario, match="this NodePool has no Cluster"):
        difference(start_from_state(state(THERE, 10)), {**pool, "spec": spec})


def _nodes(scenario: Any) -> list[str]:
    from batchyard.sim.world import World  # noqa: PLC0415 - used only here

    world = World(scenario)
    world.run_until(120 * SECOND)
    return [node["metadata"]["name"] for node in world.objects(scheme.NODE)]


# Topologies: nodes that are added, deleted or cordoned, and the first Topology.


RACK = rack_nodes("b1r1h1", "b1r1h2")
FREE_OF_TOPOLOGY = rack_queues().replace("topologyName: racks, ", "").partition("---")[2]


def rack_effects(manifests: str, change: str, deleted: tuple[Key, ...] = (), *, is_state: bool = False) -> Any:
    """The effects of a change after 20 seconds, and the topology assignments with it."""
    scenario = make_scenario(read_manifests([("objects.yaml", manifests)]))
    start = RunStart(scenario, at=20 * SECOND)
    if is_state:
        world = World(scenario)
        world.run_until(20 * SECOND)
        start = start_from_state(world.state())
    planned, _ = read_change([change] if change else [], deleted, start)
    comparison = compare(start, planned, 3600 * SECOND)
    records = [each for each in comparison.changed.log if each["event"] in {"QuotaReserved", "Reassigned"}]
    domains = {
        each["workload"].partition("/")[2]: " ".join(
            f"{domain['values'][-1]}:{domain['count']}"
            for domain in each["podSets"][0].get("topologyAssignment", {}).get("domains", ())
        )
        for each in records
    }
    return {name: effect for name, (effect, _) in effects(difference_of(comparison, 0)).items()}, domains


@pytest.mark.parametrize("is_state", [False, True])
def test_added_node_gives_room_in_its_domain(is_state: bool) -> None:
    manifests = rack_queues() + RACK + rack_workload("a", 6) + rack_workload("b", 5, at=2)
    assert rack_effects(manifests, rack_nodes("b1r2h1", cpu=8), is_state=is_state) == (
        {"b": "starts"},
        {"b": "b1r2h1:5"},
    )
    assert rack_effects(manifests, rack_nodes("b1r1h3", cpu=1), is_state=is_state)[0] == {}


def test_deleted_node_is_replaced_in_the_same_rack() -> None:
    manifests = rack_queues() + RACK + rack_nodes("b1r1h3") + rack_workload("a", 6)
    assert rack_effects(manifests, "", (Key(scheme.NODE, "", "b1r1h1"),))[1] == {"a": "b1r1h2:2 b1r1h3:4"}


def test_workload_with_other_domains_is_placed_elsewhere() -> None:
    manifests = rack_queues() + RACK + rack_workload("a", 3, at=30)
    found, domains = rack_effects(manifests, rack_nodes("b1r2h1", cpu=3))
    assert (found, domains) == ({"a": "placed elsewhere"}, {"a": "b1r2h1:3"})


def test_cordoned_node_has_no_room() -> None:
    manifests = rack_queues() + RACK + rack_workload("a", 2) + rack_workload("b", 5, at=30)
    cordoned = "{apiVersion: v1, kind: Node, metadata: {name: b1r1h2}, spec: {unschedulable: true}}"
    assert rack_effects(manifests, cordoned)[0]["b"] == "does not start"


@pytest.mark.parametrize("is_state", [False, True])
def test_first_topology_enables_topology_aware_scheduling(is_state: bool) -> None:
    manifests = FREE_OF_TOPOLOGY + RACK + rack_workload("a", 3, "{required: rack}", at=1)
    late = rack_workload("b", 5, at=0) + rack_workload("c", 4, at=0)
    found = rack_effects(manifests, rack_queues() + late, is_state=is_state)[1]
    assert found == {"b": "b1r1h1:4 b1r1h2:1"}
