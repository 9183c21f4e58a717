"""Cost records add up in random clusters, also after crashes and restarts of the platform."""

from dataclasses import replace

import pytest

from batchyard.sim.faults import WriteFaults
from batchyard.sim.invariants.checker import CostsAddUp, attach_invariants
from batchyard.sim.random_clusters import random_cluster_scenario
from batchyard.sim.random_worlds import SeededDraws
from batchyard.sim.world import World
from properties.worlds import STEPS_MAX, violation_text

SEEDS = range(4000, 4008)


def with_records(seed: int, *, conflicts: float = 0.0, crash_every: int = 0) -> str:
    """Return the violations of a cluster that records its costs, and crashes after every `crash_every` writes."""
    scenario = random_cluster_scenario(SeededDraws(seed))
    scenario = replace(scenario, counts={**scenario.counts, "Budget": 1})
    trouble = WriteFaults(conflicts)
    world = World(scenario, write_faults=trouble)
    if crash_every:
        trouble.on_write = lambda count: world.crash() if count % crash_every == 0 else None
    inspection = attach_invariants(world, [CostsAddUp])
    world.kernel.run(steps_max=STEPS_MAX)
    assert world.kernel.pending_count() == 0, (
        f"the world still spins after {world.kernel.steps} steps, at {world.now()}"
    )
    return violation_text(inspection.finish())


@pytest.mark.parametrize("seed", SEEDS)
def test_cost_records_add_up_to_machine_costs(seed: int) -> None:
    assert with_records(seed) == ""


@pytest.mark.parametrize("crash_every", [7, 31, 97])
@pytest.mark.parametrize("seed", [*SEEDS][:4])
def test_cost_records_add_up_despite_repeated_restarts(seed: int, crash_every: int) -> None:
    assert with_records(seed, conflicts=0.2, crash_every=crash_every) == ""
