"""Attaches all invariants to a world. A world without an inspection has no overhead."""

from collections.abc import Sequence
from typing import Final

from batchyard.interfaces.client import WatchEvent
from batchyard.sim.invariants.cluster import (
    CloudIsNeverOversold,
    ExclusiveDomains,
    IdleNodesAreReleased,
    NodesAreNeverOverfull,
    PodsSuitTheirNodes,
    RequestsAreWhole,
    SlicesAreWhole,
)
from batchyard.sim.invariants.costs import CostsAddUp
from batchyard.sim.invariants.invariant import Invariant, InvariantViolation, WorldView
from batchyard.sim.invariants.jobs import (
    FinishedHoldsNothing,
    JobsCountRight,
    NoJobRunsWithoutAdmission,
    NoPodWithoutAdmission,
)
from batchyard.sim.invariants.liveness import NothingHangs, NothingIsOrphaned, NothingIsStuck
from batchyard.sim.invariants.preemption import HotswapRespectsPriority, PreemptionRespectsPriority
from batchyard.sim.invariants.quota import (
    AdmittedHasAssignment,
    AssumedEqualsConfirmed,
    QuotaNeverOversubscribed,
    UsageIsSumOfAdmitted,
)
from batchyard.sim.invariants.store import NothingMutated, WatchHasNoGap
from batchyard.sim.world import World

INVARIANTS: Final[tuple[type[Invariant], ...]] = (
    QuotaNeverOversubscribed,
    UsageIsSumOfAdmitted,
    AdmittedHasAssignment,
    PreemptionRespectsPriority,
    NoJobRunsWithoutAdmission,
    FinishedHoldsNothing,
    NothingIsStuck,
    WatchHasNoGap,
    NothingMutated,
    AssumedEqualsConfirmed,
    # Where there are nodes.
    NoPodWithoutAdmission,
    HotswapRespectsPriority,
    PodsSuitTheirNodes,
    NodesAreNeverOverfull,
    ExclusiveDomains,
    SlicesAreWhole,
    RequestsAreWhole,
    CloudIsNeverOversold,
    JobsCountRight,
    IdleNodesAreReleased,
    NothingIsOrphaned,
    NothingHangs,
    CostsAddUp,
)


class InvariantChecker:
    """Invariants attached to a world. `violations` grows while it runs; `finish()` runs the final checks."""

    def __init__(self, world: World, laws: Sequence[type[Invariant]] = INVARIANTS) -> None:
        self._world = world
        self._scene = WorldView(world)
        self._laws = [law(self._scene) for law in laws]
        self._unsettled = False
        world.client.subscribe(self._observe)

    @property
    def violations(self) -> list[InvariantViolation]:
        """Return the violations so far."""
        return self._scene.violations

    def finish(self) -> list[InvariantViolation]:
        """Run the checks of the end of the run; return all violations."""
        self._settle()
        for law in self._laws:
            law.finish()
        return self.violations

    def _observe(self, batch: Sequence[WatchEvent]) -> None:
        """Pass each change to every invariant, and schedule the checks of the end of the instant."""
        kernel = self._world.kernel
        if not self._unsettled:
            self._unsettled = True
            kernel.call_at(kernel.now() + 1, self._settle)
        for law in self._laws:
            law.begin(batch)
        for event in batch:
            for law in self._laws:
                law.look(event)
            self._scene.ledger.record(event)
            self._scene.stories.record(event, self._world.now())
        for law in self._laws:
            law.end(batch)

    def _settle(self) -> None:
        if self._unsettled:
            self._unsettled = False
            for law in self._laws:
                law.settle()


def attach(world: World, laws: Sequence[type[Invariant]] = INVARIANTS) -> InvariantChecker:
    """Attach invariants to a world, before it runs."""
    return InvariantChecker(world, laws)
