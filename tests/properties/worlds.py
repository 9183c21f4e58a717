"""Random worlds, drawn by hypothesis, which shrinks what fails, or made from a seed; run to the end under all laws."""

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from batchyard.sim.faults.faults import WriteFaults
from batchyard.sim.invariants.checker import attach
from batchyard.sim.invariants.invariant import InvariantViolation
from batchyard.sim.random_worlds.cluster import random_cluster_scenario
from batchyard.sim.random_worlds.queues import SeededDraws, WorldBounds
from batchyard.sim.scenario import Scenario
from batchyard.sim.world import World

STEPS_MAX = 200_000
"""More work than any of these worlds needs: whoever does more spins."""

CRASHES_MAX = 50
"""More than any platform should suffer; whoever crashed so often is left in peace."""


class Drawn:
    """Chance that hypothesis decides."""

    def __init__(self, source: st.DataObject) -> None:
        self._source = source

    def below(self, bound: int) -> int:
        return self._source.draw(st.integers(0, bound - 1))


def examples() -> int:
    """How many examples a property is tried on, by the profile in use."""
    assert settings.default is not None
    return settings.default.max_examples


def troubled_laws(scenario: Scenario, *, conflicts: float, crash_every: int) -> str:
    """The same where writes meet conflicts, and the platform crashes five times, each after so many more."""
    trouble = WriteFaults()
    world = World(scenario, trouble=trouble)
    trouble.conflicts = conflicts
    crashes = [crash_every * number for number in range(1, 6)]
    trouble.on_write = lambda count: world.crash() if count in crashes else None
    return _broken(world)


def broken_laws(scenario: Scenario) -> str:
    """Run a world to the end; what it broke, told with the stories of the objects."""
    return _broken(World(scenario))


def _broken(world: World) -> str:
    inspection = attach(world)
    world.kernel.run(steps_max=STEPS_MAX)
    assert world.kernel.pending() == 0, f"the world still spins after {STEPS_MAX} steps, at {world.now()}"
    world.settle()
    return reported(inspection.finish())


def told_of_cluster(seed: int, *, conflicts: float = 0.0, crash_every: int = 0) -> str:
    """What the random cluster of a seed broke, and how to see it again; with more trouble than it draws itself."""
    trouble = WriteFaults(conflicts) if conflicts or crash_every else None
    world = World(random_cluster_scenario(SeededDraws(seed)), trouble=trouble)
    if trouble is not None and crash_every:
        last = CRASHES_MAX * crash_every
        trouble.on_write = lambda count: world.crash() if count % crash_every == 0 and count <= last else None
    inspection = attach(world)
    world.kernel.run(steps_max=STEPS_MAX)
    world.settle()
    world.kernel.run(steps_max=STEPS_MAX)
    again = f"again: python tools/worlds.py {seed} --conflicts {conflicts:g} --crash-every {crash_every}"
    assert world.kernel.pending() == 0, f"the world still spins after {world.kernel.steps} steps\n{again}"
    broken = reported(inspection.finish())
    return f"{broken}\n{again}" if broken else ""


def reported(violations: Sequence[InvariantViolation]) -> str:
    """The first few, in full."""
    return "\n".join(map(str, violations[:5]))


def event_log(scenario: Scenario) -> list[dict[str, Any]]:
    """What happens in a world."""
    log: list[Any] = []
    world = World(scenario, sink=log.append)
    world.kernel.run(steps_max=STEPS_MAX)
    world.log.final(world.client)
    return log


SMALL = WorldBounds(queues_max=4, workloads_max=14, edits_max=4)
