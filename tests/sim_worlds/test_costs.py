"""Costs and budgets in worlds: the example's budgets, and restarted ledgers."""

from pathlib import Path
from typing import Any

import pytest

from batchyard import simulate
from batchyard.accounting.accounts import WHOLE_MACHINE
from batchyard.accounting.controller import ChangeHistory, no_history, resume_ledger
from batchyard.accounting.records import make_cost_report
from batchyard.api import scheme
from batchyard.api.manifests import read_manifests
from batchyard.api.meta import Obj, find_condition
from batchyard.base.instant import HOUR, MINUTE
from batchyard.metrics.objects import CostMetrics
from batchyard.sim.faults import WriteFaults
from batchyard.sim.invariants.checker import attach_invariants
from batchyard.sim.scenario import Scenario, make_scenario, read_sources
from batchyard.sim.world import EPOCH, World
from batchyard.store.memory import changes_reader

EXAMPLE = Path(__file__).parents[2] / "examples" / "budgets"
FOREVER = 1 << 62
#: Rounding error in millionths of dollars of each write and read of a ledger.
ROUNDED = 3


def scenario() -> Scenario:
    return make_scenario(read_manifests(read_sources([str(EXAMPLE)], [])))


def world_at(hours: float, crash_every: int = 0) -> World:
    """Return the example after some hours; its platform crashes after every `crash_every` writes."""
    trouble = WriteFaults()
    world = World(scenario(), write_faults=trouble)
    if crash_every:
        trouble.on_write = lambda count: world.crash() if count % crash_every == 0 else None
    world.run_until(int(hours * HOUR))
    return world


def budget(world: World, namespace: str) -> Obj:
    (result,) = world.objects(scheme.BUDGET, namespace)
    return result


def queue(world: World, namespace: str) -> Obj:
    (result,) = world.objects(scheme.LOCAL_QUEUE, namespace)
    return result


def admissions(**options: Any) -> dict[str, float]:
    """Return the last admission time of each of the example's Jobs, in hours."""
    result = simulate(str(EXAMPLE), **options)
    reported = [event for event in result.events if type(event).__name__ == "Admitted"]
    return {event.workload.partition("/")[2].rpartition("-")[0]: event.time / 3600 for event in reported}  # type: ignore[attr-defined]


def test_jobs_above_budget_wait_for_next_day() -> None:
    at = admissions()
    assert [at[f"job-train-{number}"] for number in (2, 3, 4, 5)] == [24, 24, 48, 48]


def test_jobs_after_half_of_budget_are_admitted_after_others() -> None:
    at = admissions()
    assert at["job-transcribe-1"] < 3 < at["job-train-2"]


def test_held_queue_and_pending_workloads_name_budget() -> None:
    world = world_at(6)
    active = find_condition(queue(world, "vision"), "Active")
    assert active is not None
    assert active["message"] == "LocalQueue is stopped: held by Budget daily"
    waiting = [obj for obj in world.objects(scheme.WORKLOAD, "vision") if not obj["status"].get("admission")]
    reasons = {find_condition(obj, "QuotaReserved")["message"] for obj in waiting if "admission" not in obj["status"]}  # type: ignore[index]
    assert "LocalQueue main is inactive: held by Budget daily" in reasons


def test_budget_status_reports_spending() -> None:
    world = world_at(6)
    status = budget(world, "vision")["status"]
    exceeded = find_condition(status, "Exceeded")
    assert exceeded is not None
    assert (exceeded["status"], exceeded["reason"]) == ("True", "Held")
    assert float(status["spent"]) == pytest.approx(16, abs=0.2)  # running Jobs continue
    assert float(status["remaining"]) == pytest.approx(10 - float(status["spent"]), abs=0.02)
    assert status["periodEnd"] == "2026-01-02T00:00:00Z"


def test_new_period_releases_held_queue() -> None:
    world = world_at(24.01)
    assert queue(world, "vision")["spec"]["stopPolicy"] == "None"
    assert "annotations" not in queue(world, "vision")["metadata"]
    assert budget(world, "vision")["status"]["periodStart"] == "2026-01-02T00:00:00Z"


@pytest.mark.parametrize("crash_every", [5, 23])
def test_budget_holds_queue_despite_platform_crashes(crash_every: int) -> None:
    world = world_at(12, crash_every)
    assert float(budget(world, "vision")["status"]["spent"]) == pytest.approx(16, abs=0.4)
    assert queue(world, "vision")["spec"]["stopPolicy"] == "Hold"
    world.run_until(24 * HOUR + MINUTE)
    assert queue(world, "vision")["spec"]["stopPolicy"] == "None"


def test_world_with_budgets_keeps_all_invariants() -> None:
    world = World(scenario())
    inspection = attach_invariants(world)
    world.kernel.run(steps_max=100_000)
    world.flush_batched_writes()
    assert [str(violation) for violation in inspection.finish()] == []


def test_team_costs_agree_between_records_and_statement() -> None:
    world = World(scenario())
    world.kernel.run(steps_max=100_000)
    recorded = make_cost_report(world.objects(scheme.COST_RECORD), "team", 0, FOREVER)
    result = simulate(str(EXAMPLE))
    assert result.costs is not None
    stated: dict[str, int] = {}
    for line in result.costs.by_team:
        stated[line.team] = stated.get(line.team, 0) + line.cents
    for team in ("vision", "speech"):
        (row,) = [row for row in recorded.rows if row.name == team]
        assert abs(row.total - stated[team]) <= 1


@pytest.mark.parametrize("remembers", [True, False])
def test_resumed_ledger_equals_original_ledger(remembers: bool) -> None:
    world = World(scenario())
    history: ChangeHistory = changes_reader(world.store) if remembers else no_history
    for minutes in range(7, 60 * 6, 37):
        world.run_until(minutes * MINUTE)
        now = EPOCH + minutes * MINUTE
        costs = world.platform.costs
        assert costs is not None
        assert costs.ledger is not None
        expected = costs.ledger.accounts_until_now(now)
        ledger, missed, _ = resume_ledger(world.client, history, now)
        for change, then in missed:
            ledger.observe((change,), then)
        result = ledger.accounts_until_now(now)
        assert ledger.period_start == costs.ledger.period_start
        for place in {**expected, **result}:
            if not remembers and not place.team:
                continue  # the idle time of a machine deleted during the restart is unknown
            amounts = [each[place].cost if place in each else 0 for each in (expected, result)]
            assert abs(amounts[0] - amounts[1]) <= ROUNDED * HOUR * WHOLE_MACHINE, place


def test_prometheus_metrics_agree_with_budget_status() -> None:
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


def test_fork_continues_with_budgets() -> None:
    fork = World(Scenario(()), state=world_at(6).state())
    fork.run_until(HOUR)
    assert float(budget(fork, "vision")["status"]["spent"]) == pytest.approx(16, abs=0.2)
    assert queue(fork, "vision")["spec"]["stopPolicy"] == "Hold"
    fork.run_until(18 * HOUR + MINUTE)
    assert queue(fork, "vision")["spec"]["stopPolicy"] == "None"
