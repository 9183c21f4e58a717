"""Random worlds, drawn by hypothesis or made from a seed, run to the end with checks of all invariants."""

from collections.abc import Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from batchyard.sim.faults import WriteFaults
from batchyard.sim.invariants.checker import attach_invariants
from batchyard.sim.invariants.invariant import InvariantViolation
from batchyard.sim.random_clusters import random_cluster_scenario
from batchyard.sim.random_worlds import SeededDraws, WorldBounds
from batchyard.sim.scenario import Scenario
from batchyard.sim.world import World

STEPS_MAX = 200_000
"""An upper bound of the work of each of these worlds: more work means an endless loop."""

CRASHES_MAX = 50
"""The maximum number of crashes of a platform."""


class HypothesisDraws:
    """Random numbers drawn by hypothesis."""

    def __init__(self, source: st.DataObject) -> None:
        self._source = source

    def draw_below(self, stop: int) -> int:
        return self._source.draw(st.integers(0, stop - 1))


def examples() -> int:
    """Return the number of examples of a property in the current profile."""
    assert settings.default is not None
    return settings.default.max_examples


def violations_with_faults(scenario: Scenario, *, conflicts: float, crash_every: int) -> str:
    """Run a world with write conflicts and five crashes, one per `crash_every` writes; return its violations."""
    trouble = WriteFaults()
    world = World(scenario, write_faults=trouble)
    trouble.conflict_rate = conflicts
    crashes = [crash_every * number for number in range(1, 6)]
    trouble.on_write = lambda count: world.crash() if count in crashes else None
    return _violations(world)


def invariant_violations(scenario: Scenario) -> str:
    """Run a world to the end; return its violations with the histories of the objects."""
    return _violations(World(scenario))


def _violations(world: World) -> str:
    inspection = attach_invariants(world)
    world.kernel.run(steps_max=STEPS_MAX)
    assert world.kernel.pending_count() == 0, f"the world still spins after {STEPS_MAX} steps, at {world.now()}"
    world.flush_batched_writes()
    return violation_text(inspection.finish())


def cluster_violations(seed: int, *, conflicts: float = 0.0, crash_every: int = 0) -> str:
    """Run the random cluster of a seed with more faults; return its violations and the command to reproduce them."""
    again = f"python tools/worlds.py {seed}"
    return troubled_violations(random_cluster_scenario(SeededDraws(seed)), again, conflicts, crash_every)


def troubled_violations(scenario: Scenario, command: str, conflicts: float, crash_every: int) -> str:
    """Run a world with repeated crashes; return its violations and the command to reproduce them."""
    trouble = WriteFaults(conflicts) if conflicts or crash_every else None
    world = World(scenario, write_faults=trouble)
    if trouble is not None and crash_every:
        last = CRASHES_MAX * crash_every
        trouble.on_write = lambda count: world.crash() if count % crash_every == 0 and count <= last else None
    inspection = attach_invariants(world)
    world.kernel.run(steps_max=STEPS_MAX)
    world.flush_batched_writes()
    world.kernel.run(steps_max=STEPS_MAX)
    again = f"again: {command} --conflicts {conflicts:g} --crash-every {crash_every}"
    assert world.kernel.pending_count() == 0, f"the world still spins after {world.kernel.steps} steps\n{again}"
    broken = violation_text(inspection.finish())
    return f"{broken}\n{again}" if broken else ""


def violation_text(violations: Sequence[InvariantViolation]) -> str:
    """Return the first five violations as text."""
    return "\n".join(map(str, violations[:5]))


def event_log(scenario: Scenario) -> list[dict[str, Any]]:
    """Return the event log of a world."""
    log: list[Any] = []
    world = World(scenario, sink=log.append)
    world.kernel.run(steps_max=STEPS_MAX)
    world.log.record_end(world.client)
    return log


SMALL = WorldBounds(queues_max=4, workloads_max=14, edits_max=4)
