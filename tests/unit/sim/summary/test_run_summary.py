"""The summary of a run: conclusion, groups, pending Workloads and its document."""

from collections.abc import Sequence
from typing import Any

import pytest

from batchyard.base.instant import SECOND, Duration
from batchyard.cli.simulation_output import run_remarks
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
from batchyard.sim.summary.run_watch import RunWatch, WatchedSimulation
from unit.admissionchecks.provisioning_make import check, config
from unit.sim.forks_make import queue, workload
from unit.sim.test_simulate import without_birth

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


def test_pending_workloads_have_reason_and_wait() -> None:
    summary = summary_of([*queue(1), workload("one", 30), workload("large", 30, cpus=2)])
    (pending,) = summary_document(summary)["pending"]
    assert (pending["name"], pending["waitSeconds"]) == ("large", 30)
    assert "insufficient quota for cpu" in pending["reason"]
    assert conclusion_of(summary)[0] == "1 of 2 Workloads finished within 30s, 1 pending."


def test_workload_with_pending_check_is_not_admitted() -> None:
    checked = queue(1, admissionChecksStrategy={"admissionChecks": [{"name": "prov"}]})
    summary = summary_of(
        [
            *(without_birth(dict(each)) for each in (check(), config())),
            *checked,
            workload("one", 30),
            workload("two", 30),
        ]
    )
    counts = summary.run.result.counts
    assert (counts.admitted, counts.awaiting_checks, counts.pending) == (0, 1, 1)
    (group,) = summary_document(summary)["groups"]
    assert (group["admitted"], group["awaitingChecks"], group["pending"]) == (0, 1, 1)
    assert "1 waiting for admission checks, 1 pending." in conclusion_of(summary)[0]
    *_, last = run_remarks(summary.run.result)
    assert "0 finished, 0 admitted, 1 waiting for admission checks, 1 pending;" in last


def test_conclusion_says_that_preempted_work_was_interrupted() -> None:
    """Without machines it is unknown how much of the work was saved, so the text does not call it lost."""
    preempting = queue(1, preemption={"withinClusterQueue": "LowerPriority"})
    objects = [*preempting, workload("low", 30), workload("high", 30, 10, priority=100)]
    assert "1 preemption; 10s of work was interrupted." in conclusion_of(summary_of(objects))


@pytest.mark.parametrize("grouping", list(SummaryGrouping))
def test_each_grouping_counts_every_workload_once(grouping: SummaryGrouping) -> None:
    rows = summary_document(summary_of([*THREE, workload("large", 30, cpus=2)], grouping))["groups"]
    assert sum(row["workloads"] for row in rows) == 4
    assert sum(row["finished"] for row in rows) == 3


def test_flavor_of_waiting_workload_is_never_admitted() -> None:
    rows = summary_of([*THREE, workload("large", 30, cpus=2)], SummaryGrouping.FLAVOR).groups.rows
    assert rows["(never admitted)"]["workloads"] == 1


def test_interrupted_run_ends_between_slices_and_says_so() -> None:
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


def test_run_without_workloads_says_so() -> None:
    assert conclusion_of(summary_of(queue(1))) == ["The run had no Workloads."]


def test_series_cover_the_run_and_carry_waits_forward() -> None:
    series = {each["name"]: each["values"] for each in series_document(summary_of(THREE).run)}
    assert {len(values) for values in series.values()} == {INTERVAL_COUNT}
    assert max(series["Workloads pending"]) == 2
    assert series["mean wait of Workloads that start"][-1] == 60
    assert set(series["cpu quota in use"]) == {1}
