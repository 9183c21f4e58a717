"""The summary of a run: conclusion, groups, pending Workloads and its document."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.well_known import REQUIRED_TOPOLOGY
from batchyard.base.instant import SECOND, Duration
from batchyard.cli.figure_tables import figure_table_text
from batchyard.cli.simulation_output import run_remarks
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.simulate import Simulation, SimulationOptions, read_scenario
from batchyard.sim.summary.run_summary import (
    INTERVAL_COUNT,
    RunSummary,
    SummaryGrouping,
    conclusion_of,
    series_document,
    summarize_run,
    summary_document,
)
from batchyard.sim.summary.run_watch import RunWatch, TopologyWatch, WatchedSimulation
from unit.admissionchecks.provisioning_make import check, config
from unit.sim.forks_make import queue, workload
from unit.sim.test_simulate import user_object

EXAMPLES = Path(__file__).parents[4] / "examples"
THREE = [*queue(1), workload("one", 30), workload("two", 30), workload("three", 30)]


def summary_of(
    objects: Sequence[dict[str, Any]], grouping: SummaryGrouping = SummaryGrouping.QUEUE, until: Duration | None = None
) -> RunSummary:
    simulation = Simulation(read_scenario(objects)[0], SimulationOptions(until=until))
    watch = RunWatch(simulation.world)
    simulation.advance()
    result = simulation.result()
    return summarize_run(WatchedSimulation(result, watch, result.now), grouping)


def test_document_has_waits_in_seconds_and_usage() -> None:
    document = summary_document(summary_of(THREE))
    overall, (group,), (quota,) = document["overall"], document["groups"], document["quotaByFlavor"]
    assert (overall["meanWaitSeconds"], overall["p50WaitSeconds"], overall["maxWaitSeconds"]) == (30, 30, 60)
    assert (overall["workloads"], overall["finished"], overall["makespanSeconds"]) == (3, 3, 90)
    assert (group["workloads"], group["meanWaitSeconds"], group["meanUse"]) == (3, 30, 1)
    assert (quota["nominal"], quota["meanUse"]) == (1, 1)
    assert (document["ending"], document["durationSeconds"], document["pending"]) == ("idle", 90, [])


def test_memory_quota_has_unit_in_text_and_is_number_in_document() -> None:
    objects = queue(1)
    (group,) = objects[1]["spec"]["resourceGroups"]
    group["coveredResources"].append("memory")
    group["flavors"][0]["resources"].append({"name": "memory", "nominalQuota": "64Gi"})
    summary = summary_of([*objects, workload("one", 30)])
    rows = {row["name"]: row["nominal"] for row in summary_document(summary)["quotaByFlavor"]}
    assert rows == {"f cpu": 1, "f memory": 64}
    table = next(table for table in summary.tables if table.name == "quotaByFlavor")
    assert figure_table_text(table, wide=False).splitlines()[3].split()[:3] == ["f", "memory", "64Gi"]


def test_pending_workloads_have_reason_and_wait() -> None:
    summary = summary_of([*queue(1), workload("one", 30), workload("large", 30, cpus=2)])
    (pending,) = summary_document(summary)["pending"]
    assert (pending["name"], pending["waitSeconds"]) == ("large", 30)
    assert "insufficient quota for cpu" in pending["reason"]
    assert conclusion_of(summary)[0] == "1 of 2 Workloads finished within 30s, 1 pending."


@pytest.mark.parametrize("strategy", ["StrictFIFO", "BestEffortFIFO"])
def test_workload_behind_blocked_head_names_the_head(strategy: str) -> None:
    objects = [
        *queue(1, queueingStrategy=strategy),
        workload("one"),
        workload("large", 30, 1, cpus=2),
        workload("small", 30, 2),
        workload("next", 30, 120),
    ]
    document = summary_document(summary_of(objects, until=120 * SECOND))
    pending = {row["name"]: row["reason"] for row in document["pending"]}
    is_blocked = strategy == "StrictFIFO"
    behind = "not considered by the scheduler, because team/large is ahead of it in ClusterQueue cq"
    assert (pending["small"] == behind) is is_blocked
    assert "insufficient quota for cpu" in pending["large"]
    assert (pending["next"] == behind) is is_blocked


def test_lost_work_is_reported_with_its_cause() -> None:
    preempts = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    by_preemption = [*queue(1, **preempts), workload("low", 30), workload("high", 30, 10, priority=5)]
    assert "1 preemption; 10s of work was interrupted." in conclusion_of(summary_of(by_preemption))
    stopped = queue(1, stopPolicy="HoldAndDrain")[1]
    stopped["metadata"]["annotations"] = {"batchyard.dev/submit-at": "10s"}
    by_eviction = [*queue(1), workload("low", 30), stopped]
    assert "1 eviction; 10s of work was interrupted." in conclusion_of(summary_of(by_eviction))
    by_machine = Simulation(read_scenario([str(EXAMPLES / "hotswap")])[0], SimulationOptions())
    watch = RunWatch(by_machine.world)
    by_machine.advance()
    run = WatchedSimulation(by_machine.result(), watch, by_machine.result().now)
    (sentence,) = [each for each in conclusion_of(summarize_run(run)) if "lost" in each]
    assert sentence.startswith("1 preemption, 1 machine loss; 29m56s of machine time was lost")


def test_workload_with_pending_check_is_not_admitted() -> None:
    checked = queue(1, admissionChecksStrategy={"admissionChecks": [{"name": "prov"}]})
    summary = summary_of(
        [*(user_object(dict(each)) for each in (check(), config())), *checked, workload("one", 30), workload("two", 30)]
    )
    counts = summary.run.result.counts
    assert (counts.admitted, counts.awaiting_checks, counts.pending) == (0, 1, 1)
    (group,) = summary_document(summary)["groups"]
    assert (group["admitted"], group["awaitingChecks"], group["pending"]) == (0, 1, 1)
    assert "1 waiting for admission checks, 1 pending." in conclusion_of(summary)[0]
    *_, last = run_remarks(summary.run.result)
    assert "0 finished, 0 admitted, 1 waiting for admission checks, 1 pending;" in last


@pytest.mark.parametrize("grouping", list(SummaryGrouping))
def test_each_grouping_counts_every_workload_once(grouping: SummaryGrouping) -> None:
    rows = summary_document(summary_of([*THREE, workload("large", 30, cpus=2)], grouping))["groups"]
    assert sum(row["workloads"] for row in rows) == 4
    assert sum(row["finished"] for row in rows) == 3


def test_flavor_of_waiting_workload_is_never_admitted() -> None:
    rows = summary_of([*THREE, workload("large", 30, cpus=2)], SummaryGrouping.FLAVOR).groups.rows
    assert rows["(never admitted)"]["workloads"] == 1


def test_interrupted_run_ends_between_slices_and_is_reported() -> None:
    simulation = Simulation(read_scenario(THREE)[0])
    watch = RunWatch(simulation.world)
    while simulation.world.now() < 30 * SECOND:
        simulation.advance(1)
    simulation.interrupt()
    assert simulation.advance() is False
    result = simulation.result()
    summary = summarize_run(WatchedSimulation(result, watch, result.now))
    assert conclusion_of(summary)[0].startswith("Interrupted after 30s: ")
    assert summary_document(summary)["ending"] == "interrupted"


def test_interrupt_after_end_has_no_effect() -> None:
    simulation = Simulation(read_scenario(THREE)[0])
    simulation.advance()
    simulation.interrupt()
    assert simulation.result().ending.value == "idle"


def test_run_without_workloads_is_reported() -> None:
    assert conclusion_of(summary_of(queue(1))) == ["The run had no Workloads."]


def pod_event(kind: EventType, phase: str, *annotations: str) -> WatchEvent:
    metadata = {"name": "p", "namespace": "team", "annotations": dict.fromkeys(annotations, "rack")}
    obj = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": phase}}
    return WatchEvent(kind, Key(scheme.POD, "team", "p"), obj, obj, 1)


def node_event(heartbeat: str, cpu: str = "4") -> WatchEvent:
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]
    obj = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": cpu}, "conditions": conditions}}
    return WatchEvent(EventType.MODIFIED, Key(scheme.NODE, "", "n"), obj, obj, 1)


def test_topology_watch_keeps_only_events_that_change_topology_or_capacity() -> None:
    watch, modified, deleted = TopologyWatch(), EventType.MODIFIED, EventType.DELETED
    kept = [node_event("1"), pod_event(modified, "Pending"), pod_event(modified, "Failed"), node_event("3", cpu="8")]
    of_topology = pod_event(modified, "Running", REQUIRED_TOPOLOGY)
    skipped = [node_event("2"), pod_event(modified, "Running"), pod_event(deleted, "Failed"), of_topology]
    for event in (kept[0], skipped[0], kept[1], skipped[1], kept[2], *skipped[2:], kept[3]):
        watch.observe(event, 0)
    assert [event for _, event in watch.events] == [event._replace(old=None) for event in kept]


def test_series_cover_the_run_and_carry_waits_forward() -> None:
    series = {each["name"]: each["values"] for each in series_document(summary_of(THREE).run)}
    assert {len(values) for values in series.values()} == {INTERVAL_COUNT}
    assert max(series["Workloads pending"]) == 2
    assert series["mean wait of Workloads that start"][-1] == 60
    assert set(series["cpu quota in use"]) == {1}
