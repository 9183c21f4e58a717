"""A world that continues from a state behaves like the original; a what-if predicts the effect of a change.

Records of one instant may have another order: it follows the order of arrival, and objects record only their last
change.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from batchyard.base.instant import MILLISECOND, SECOND, Duration, duration_seconds
from batchyard.sim.random_clusters import random_cluster_scenario
from batchyard.sim.random_worlds import SeededDraws, WorldBounds, random_scenario
from batchyard.sim.scenario import Scenario, ScenarioStep
from batchyard.sim.simulate import Simulation, SimulationOptions
from batchyard.sim.state import State
from batchyard.sim.whatif import PlannedChange, RunStart, simulate_from_start
from batchyard.sim.world import World
from properties.worlds import STEPS_MAX

CUTS = [7_500 * MILLISECOND, 33_500 * MILLISECOND, 61_500 * MILLISECOND]
CLUSTER_CUTS = [20_500 * MILLISECOND, 400_500 * MILLISECOND]


def queues_of(seed: int) -> Scenario:
    """Return a world of queues; every second one uses fair sharing."""
    return random_scenario(SeededDraws(seed), WorldBounds(fair_sharing=seed % 2 == 0))


def cluster_of(seed: int) -> Scenario:
    """Return a world with machines, without faults."""
    return replace(random_cluster_scenario(SeededDraws(seed)), faults=())


def whole_log(scenario: Scenario, state: State | None = None, began: Duration = 0) -> list[dict[str, Any]]:
    """Return the log of a world; its times are later by `began`."""
    log: list[Any] = []
    World(scenario, sink=log.append, state=state).kernel.run(steps_max=STEPS_MAX)
    return [with_later_time(record, began) for record in log]


def with_later_time(record: dict[str, Any], by: Duration) -> dict[str, Any]:
    """Return a record with a later time."""
    return {**record, "time": duration_seconds(round(record["time"] * SECOND) + by)}


def log_of_fork(scenario: Scenario, at: Duration) -> list[dict[str, Any]]:
    """Return the log of a world that starts at an instant with the state of another world."""
    world = World(scenario)
    world.run_until(at)
    rest = [step._replace(at=step.at - at) for step in scenario.steps if step.at > at]
    return whole_log(replace(scenario, steps=rest), world.state(), at)


def sorted_records(log: Iterable[Mapping[str, Any]], after: Duration) -> list[tuple[float, str]]:
    """Return the records after an instant, sorted within each instant."""
    return sorted((record["time"], repr(record)) for record in log if record["time"] > duration_seconds(after))


@pytest.mark.parametrize("seed", range(4000, 4020))
def test_fork_of_queue_world_continues_like_original(seed: int) -> None:
    scenario = queues_of(seed)
    log = whole_log(scenario)
    for at in CUTS:
        assert sorted_records(log_of_fork(scenario, at), at) == sorted_records(log, at)


@pytest.mark.parametrize("seed", range(4100, 4110))
def test_fork_of_cluster_continues_like_original(seed: int) -> None:
    scenario = cluster_of(seed)
    log = whole_log(scenario)
    for at in CLUSTER_CUTS:
        assert sorted_records(log_of_fork(scenario, at), at) == sorted_records(log, at)


def change_of(seed: int) -> PlannedChange:
    """Return all user actions of another random world as one change after 2 s."""
    steps = queues_of(seed).steps
    return PlannedChange([ScenarioStep(2 * SECOND, [obj for step in steps for obj in step.apply], ())])


@pytest.mark.parametrize("seed", range(4200, 4210))
def test_whatif_predicts_effect_of_change(seed: int) -> None:
    scenario, change, at = queues_of(seed), change_of(seed + 1000), CUTS[1]
    done = {step.at: step for step in scenario.steps}
    for step in change.steps:
        there = done.get(at + step.at, ScenarioStep(0, (), ()))
        done[at + step.at] = ScenarioStep(at + step.at, (*there.apply, *step.apply), there.delete)
    log: list[Any] = []
    simulation = Simulation(
        replace(scenario, steps=[done[each] for each in sorted(done)]), SimulationOptions(sink=log.append)
    )
    simulation.advance()
    simulation.result()
    reported = simulate_from_start(RunStart(scenario, at=at), change).log
    assert sorted_records(reported, 0) == sorted_records([with_later_time(each, -at) for each in log], 0)


@pytest.mark.parametrize("seed", range(4300, 4310))
def test_whatif_of_state_predicts_effect_of_change(seed: int) -> None:
    scenario, change, at = queues_of(seed), change_of(seed + 1000), CUTS[1]
    world = World(scenario)
    world.run_until(at)
    reported = simulate_from_start(RunStart(Scenario((), kueue=scenario.kueue), world.state()), change).log
    alone = replace(scenario, steps=change.steps, faults=())
    log = whole_log(alone, world.state())
    assert sorted_records([each for each in reported if each["event"] != "Final"], 0) == sorted_records(log, 0)
