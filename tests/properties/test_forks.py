"""A world that goes on from a state does what the one it was taken from does; a what-if tells what doing it brings.

Records of one instant may come in another order: that of what nobody decides is the order of arrival, of which objects
tell only their last change.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from batchyard.base.instant import MILLISECOND, SECOND, Duration, seconds
from batchyard.sim.random_worlds.cluster import random_cluster_scenario
from batchyard.sim.random_worlds.queues import SeededDraws, WorldBounds, random_scenario
from batchyard.sim.scenario import Scenario, ScenarioStep
from batchyard.sim.simulate import Simulation, SimulationOptions
from batchyard.sim.state import State
from batchyard.sim.whatif import PlannedChange, RunStart, course
from batchyard.sim.world import World
from properties.worlds import STEPS_MAX

CUTS = [7_500 * MILLISECOND, 33_500 * MILLISECOND, 61_500 * MILLISECOND]
CLUSTER_CUTS = [20_500 * MILLISECOND, 400_500 * MILLISECOND]


def queues_of(seed: int) -> Scenario:
    """A world of queues; every second one shares fairly."""
    return random_scenario(SeededDraws(seed), WorldBounds(fair_sharing=seed % 2 == 0))


def cluster_of(seed: int) -> Scenario:
    """A world with machines, in which nothing goes wrong by itself."""
    return replace(random_cluster_scenario(SeededDraws(seed)), faults=())


def whole_log(scenario: Scenario, state: State | None = None, began: Duration = 0) -> list[dict[str, Any]]:
    """What happens in a world, its times counted from so long before it began."""
    log: list[Any] = []
    World(scenario, sink=log.append, state=state).kernel.run(steps_max=STEPS_MAX)
    return [moved(record, began) for record in log]


def moved(record: dict[str, Any], by: Duration) -> dict[str, Any]:
    """A record so much later."""
    return {**record, "time": seconds(round(record["time"] * SECOND) + by)}


def forked(scenario: Scenario, at: Duration) -> list[dict[str, Any]]:
    """What happens after a moment in a world that begins there with the state of another."""
    world = World(scenario)
    world.run_until(at)
    rest = [step._replace(at=step.at - at) for step in scenario.steps if step.at > at]
    return whole_log(replace(scenario, steps=rest), world.state(), at)


def in_order(log: Iterable[Mapping[str, Any]], after: Duration) -> list[tuple[float, str]]:
    """The records after a moment, those of one instant in one order."""
    return sorted((record["time"], repr(record)) for record in log if record["time"] > seconds(after))


@pytest.mark.parametrize("seed", range(4000, 4020))
def test_a_fork_of_queues_goes_on_as_they_do(seed: int) -> None:
    scenario = queues_of(seed)
    log = whole_log(scenario)
    for at in CUTS:
        assert in_order(forked(scenario, at), at) == in_order(log, at)


@pytest.mark.parametrize("seed", range(4100, 4110))
def test_a_fork_of_a_cluster_goes_on_as_it_does(seed: int) -> None:
    scenario = cluster_of(seed)
    log = whole_log(scenario)
    for at in CLUSTER_CUTS:
        assert in_order(forked(scenario, at), at) == in_order(log, at)


def change_of(seed: int) -> PlannedChange:
    """What the users of another random world do, all at once, a while later."""
    steps = queues_of(seed).steps
    return PlannedChange([ScenarioStep(2 * SECOND, [obj for step in steps for obj in step.apply], ())])


@pytest.mark.parametrize("seed", range(4200, 4210))
def test_what_a_what_if_tells_is_what_doing_it_brings(seed: int) -> None:
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
    reported = course(RunStart(scenario, at=at), change).log
    assert in_order(reported, 0) == in_order([moved(each, -at) for each in log], 0)


@pytest.mark.parametrize("seed", range(4300, 4310))
def test_a_what_if_of_a_state_tells_what_doing_it_there_brings(seed: int) -> None:
    scenario, change, at = queues_of(seed), change_of(seed + 1000), CUTS[1]
    world = World(scenario)
    world.run_until(at)
    reported = course(RunStart(Scenario((), kueue=scenario.kueue), world.state()), change).log
    alone = replace(scenario, steps=change.steps, faults=())
    log = whole_log(alone, world.state())
    assert in_order([each for each in reported if each["event"] != "Final"], 0) == in_order(log, 0)
