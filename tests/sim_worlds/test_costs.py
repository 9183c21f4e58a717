"""Costs and budgets in worlds: the example's budgets, and ledgers that start anew."""

from pathlib import Path
from typing import Any

import pytest

from batchyard import simulate
from batchyard.accounting.accounts import WHOLE
from batchyard.accounting.controller import History, nothing_remembered, resume_ledger
from batchyard.accounting.records import report
from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, find_condition
from batchyard.base.instant import HOUR, MINUTE
from batchyard.metrics.machines import CostMetrics
from batchyard.sim.faults.faults import WriteFaults
from batchyard.sim.invariants.checker import attach
from batchyard.sim.scenario import Scenario, make_scenario, read_sources
from batchyard.sim.world import EPOCH, World
from batchyard.store.memory import changes_reader

EXAMPLE = Path(__file__).parents[2] / "examples" / "budgets"
FOREVER = 1 << 62
#: Millionths of dollars that may be lost by rounding whenever a ledger is written and read.
ROUNDED = 3


def scenario() -> Scenario:
    return make_scenario(read_manifests(read_sources([str(EXAMPLE)], [])))


def world_at(hours: float, crash_every: int = 0) -> World:
    """The example after so many hours; its platform crashes after so many writes each."""
    trouble = WriteFaults()
    world = World(scenario(), trouble=trouble)
    if crash_every:
        trouble.on_write = lambda count: world.crash() if count % crash_every == 0 else None
    world.run_until(int(hours * HOUR))
    return world


def budget(world: World, namespace: str) -> Obj:
    (found,) = world.objects(scheme.BUDGET, namespace)
    return found


def queue(world: World, namespace: str) -> Obj:
    (found,) = world.objects(scheme.LOCAL_QUEUE, namespace)
    return found


def admissions(**options: Any) -> dict[str, float]:
    """When the example's Jobs were admitted last, in hours."""
    result = simulate(str(EXAMPLE), **options)
    reported = [event for event in result.events if type(event).__name__ == "Admitted"]
    return {event.workload.partition("/")[2].rpartition("-")[0]: event.time / 3600 for event in reported}  # type: ignore[attr-defined]


def test_who_has_spent_his_budget_waits_for_the_next_day() -> None:
    at = admissions()
    assert [at[f"job-train-{number}"] for number in (2, 3, 4, 5)] == [24, 24, 48, 48]


def test_who_has_spent_half_of_it_goes_behind_others() -> None:
    at = admissions()
    assert at["job-transcribe-1"] < 3 < at["job-train-2"]


def test_the_held_queue_and_those_who_wait_name_the_budget() -> None:
    world = world_at(6)
    active = find_condition(queue(world, "vision"), "Active")
    assert active is not None
    assert active["message"] == "LocalQueue is stopped: held by Budget daily"
    waiting = [obj for obj in world.objects(scheme.WORKLOAD, "vision") if not obj["status"].get("admission")]
    reasons = {find_condition(obj, "QuotaReserved")["message"] for obj in waiting if "admission" not in obj["status"]}  # type: ignore[index]
    assert "LocalQueue main is inactive: held by Budget daily" in reasons


def test_a_budget_says_how_it_stands() -> None:
    world = world_at(6)
    status = budget(world, "vision")["status"]
    exceeded = find_condition(status, "Exceeded")
    assert exceeded is not None
    assert (exceeded["status"], exceeded["reason"]) == ("True", "Held")
    assert float(status["spent"]) == pytest.approx(16, abs=0.2)  # what runs goes on
    assert float(status["remaining"]) == pytest.approx(10 - float(status["spent"]), abs=0.02)
    assert status["periodEnd"] == "2026-01-02T00:00:00Z"


def test_a_new_period_lets_go() -> None:
    world = world_at(24.01)
    assert queue(world, "vision")["spec"]["stopPolicy"] == "None"
    assert "annotations" not in queue(world, "vision")["metadata"]
    assert budget(world, "vision")["status"]["periodStart"] == "2026-01-02T00:00:00Z"


@pytest.mark.parametrize("crash_every", [5, 23])
def test_budgets_hold_though_the_platform_crashes(crash_every: int) -> None:
    world = world_at(12, crash_every)
    assert float(budget(world, "vision")["status"]["spent"]) == pytest.approx(16, abs=0.4)
    assert queue(world, "vision")["spec"]["stopPolicy"] == "Hold"
    world.run_until(24 * HOUR + MINUTE)
    assert queue(world, "vision")["spec"]["stopPolicy"] == "None"


def test_a_world_with_budgets_keeps_all_laws() -> None:
    world = World(scenario())
    inspection = attach(world)
    world.kernel.run(steps_max=100_000)
    world.settle()
    assert [str(violation) for violation in inspection.finish()] == []


def test_teams_cost_the_same_in_the_records_and_in_the_statement() -> None:
    world = World(scenario())
    world.kernel.run(steps_max=100_000)
    recorded = report(world.objects(scheme.COST_RECORD), "team", 0, FOREVER)
    result = simulate(str(EXAMPLE))
    assert result.costs is not None
    stated: dict[str, int] = {}
    for line in result.costs.by_team:
        stated[line.team] = stated.get(line.team, 0) + line.cents
    for team in ("vision", "speech"):
        (row,) = [row for row in recorded.rows if row.name == team]
        assert abs(row.total - stated[team]) <= 1


@pytest.mark.parametrize("remembers", [True, False])
def test_a_ledger_that_starts_anew_is_what_it_was(remembers: bool) -> None:
    world = World(scenario())
    history: History = changes_reader(world.store) if remembers else nothing_remembered
    for minutes in range(7, 60 * 6, 37):
        world.run_until(minutes * MINUTE)
        now = EPOCH + minutes * MINUTE
        costs = world.platform.costs
        assert costs is not None
        assert costs.ledger is not None
        expected = costs.ledger.accounts(now)
        ledger, missed, _ = resume_ledger(world.client, history, now)
        for change, then in missed:
            ledger.observe((change,), then)
        found = ledger.accounts(now)
        assert ledger.begun == costs.ledger.begun
        for place in {**expected, **found}:
            if not remembers and not place.team:
                continue  # of a machine that went unseen nobody knows until when it was idle
            amounts = [each[place].cost if place in each else 0 for each in (expected, found)]
            assert abs(amounts[0] - amounts[1]) <= ROUNDED * HOUR * WHOLE, place


def test_figures_for_prometheus_come_to_the_same() -> None:
    world = world_at(5)
    costs = world.platform.costs
    assert costs is not None
    text = "".join(CostMetrics().texts(costs, world.client, world.kernel.now()))
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    vision = 'team="vision",cluster_queue="gpus",local_queue="main"'
    spent = float(budget(world, "vision")["status"]["spent"])
    assert float(samples[f"batchyard_cost_dollars_total{{{vision}}}"]) == pytest.approx(spent, abs=0.02)
    assert float(samples[f'batchyard_cost_outcome_dollars_total{{{vision},use="done"}}']) == pytest.approx(
        spent, abs=0.02
    )
    assert samples['batchyard_budget_amount{namespace="vision",budget="daily",unit="dollars"}'] == "10"
    assert float(samples['batchyard_budget_remaining{namespace="vision",budget="daily",unit="dollars"}']) < 0
    assert float(samples['batchyard_cost_unused_dollars_total{pool="l4",use="booting"}']) > 0


def test_a_fork_goes_on_with_its_budgets() -> None:
    fork = World(Scenario(()), state=world_at(6).state())
    fork.run_until(HOUR)
    assert float(budget(fork, "vision")["status"]["spent"]) == pytest.approx(16, abs=0.2)
    assert queue(fork, "vision")["spec"]["stopPolicy"] == "Hold"
    fork.run_until(18 * HOUR + MINUTE)
    assert queue(fork, "vision")["spec"]["stopPolicy"] == "None"
