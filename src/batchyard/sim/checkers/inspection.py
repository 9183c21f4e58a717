"""All laws, watching one world. A world without an inspection pays nothing for it."""

from collections.abc import Sequence
from typing import Final

from batchyard.ports.client import WatchEvent
from batchyard.sim.checkers.admitted_has_assignment import AdmittedHasAssignment
from batchyard.sim.checkers.assumed_equals_confirmed import AssumedEqualsConfirmed
from batchyard.sim.checkers.cloud_is_never_oversold import CloudIsNeverOversold
from batchyard.sim.checkers.costs_add_up import CostsAddUp
from batchyard.sim.checkers.exclusive_domains import ExclusiveDomains
from batchyard.sim.checkers.finished_holds_nothing import FinishedHoldsNothing
from batchyard.sim.checkers.hotswap_respects_priority import HotswapRespectsPriority
from batchyard.sim.checkers.idle_nodes_are_released import IdleNodesAreReleased
from batchyard.sim.checkers.jobs_count_right import JobsCountRight
from batchyard.sim.checkers.law import Law, Scene, Violation
from batchyard.sim.checkers.no_job_runs_without_admission import NoJobRunsWithoutAdmission
from batchyard.sim.checkers.no_pod_without_admission import NoPodWithoutAdmission
from batchyard.sim.checkers.nodes_are_never_overfull import NodesAreNeverOverfull
from batchyard.sim.checkers.nothing_hangs import NothingHangs
from batchyard.sim.checkers.nothing_is_orphaned import NothingIsOrphaned
from batchyard.sim.checkers.nothing_is_stuck import NothingIsStuck
from batchyard.sim.checkers.nothing_mutated import NothingMutated
from batchyard.sim.checkers.pods_suit_their_nodes import PodsSuitTheirNodes
from batchyard.sim.checkers.preemption_respects_priority import PreemptionRespectsPriority
from batchyard.sim.checkers.quota_never_oversubscribed import QuotaNeverOversubscribed
from batchyard.sim.checkers.requests_are_whole import RequestsAreWhole
from batchyard.sim.checkers.slices_are_whole import SlicesAreWhole
from batchyard.sim.checkers.usage_is_sum_of_admitted import UsageIsSumOfAdmitted
from batchyard.sim.checkers.watch_has_no_gap import WatchHasNoGap
from batchyard.sim.world import World

LAWS: Final[tuple[type[Law], ...]] = (
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


class Inspection:
    """Laws attached to a world. `violations` grows while it runs; `finish()` looks one last time."""

    def __init__(self, world: World, laws: Sequence[type[Law]] = LAWS) -> None:
        self._world = world
        self._scene = Scene(world)
        self._laws = [law(self._scene) for law in laws]
        self._unsettled = False
        world.client.subscribe(self._observe)

    @property
    def violations(self) -> list[Violation]:
        """What was broken so far."""
        return self._scene.violations

    def finish(self) -> list[Violation]:
        """Look at the end of the run; returns all that was broken."""
        self._settle()
        for law in self._laws:
            law.finish()
        return self.violations

    def _observe(self, batch: Sequence[WatchEvent]) -> None:
        """Let every law look at each change, and again when the instant is over."""
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


def attach(world: World, laws: Sequence[type[Law]] = LAWS) -> Inspection:
    """Hold a world to the laws. Attach before it runs."""
    return Inspection(world, laws)
