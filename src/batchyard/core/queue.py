"""A ClusterQueue as decisions see it, and the Workloads that hold quota in it."""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from batchyard.api.views.queues import ClusterQueueView
from batchyard.base.instant import Instant
from batchyard.core.plan import Coverage
from batchyard.core.quota import QuotaNode, Usage


@dataclass(slots=True, eq=False)
class Admitted:
    """A Workload that holds quota."""

    key: str
    uid: str
    queue: "ClusterQueue"
    usage: Usage
    #: Every flavor-resource assigned, those with an amount of zero included.
    flavor_resources: frozenset[int] = frozenset()
    priority: int = 0
    queued: Instant = 0
    reserved_at: Instant = 0
    evicted: bool = False
    is_admitted: bool = True
    local_queue: str = ""
    #: How much of the priority a Budget has added.
    boost: int = 0
    #: Its place among those to be preempted: low priority, lately reserved, uid.
    rank: tuple[int, int, str] = field(init=False)

    def is_like(self, other: "Admitted") -> bool:
        """Whether they differ in nothing that bears on decisions."""
        return (
            self.queue is other.queue
            and self.rank == other.rank
            and self.usage == other.usage
            and self.evicted == other.evicted
            and self.is_admitted == other.is_admitted
            and self.queued == other.queued
            and self.flavor_resources == other.flavor_resources
            and self.local_queue == other.local_queue
        )

    def __post_init__(self) -> None:
        self.rank = (self.priority, -self.reserved_at, self.uid)
        if not self.flavor_resources:
            self.flavor_resources = frozenset(fr for fr, _ in self.usage)


#: The sort key of candidates for preemption.
RANK: Final = attrgetter("rank")


class ClusterQueue:
    """See the module. `workloads` is changed through the snapshot only."""

    __slots__ = (
        "_ranked",
        "active",
        "coverage",
        "generation",
        "in_cycle",
        "name",
        "node",
        "view",
        "workloads",
    )

    def __init__(self, view: ClusterQueueView, node: QuotaNode, coverage: Coverage) -> None:
        self.name = view.name
        self.view = view
        self.node = node
        self.coverage = coverage
        self.workloads: dict[str, Admitted] = {}
        #: Grows whenever quota may have become free here; an older flavor search is then started over.
        self.generation = 1
        self.active = True
        #: Its Cohort's parents lead into a cycle.
        self.in_cycle = False
        self._ranked: list[Admitted] | None = None

    def put(self, workload: Admitted) -> None:
        """Add a Workload."""
        self.workloads[workload.key] = workload
        self._ranked = None

    def take(self, key: str) -> None:
        """Remove a Workload."""
        del self.workloads[key]
        self._ranked = None

    def forget_ranks(self) -> None:
        """Drop what is remembered of their order."""
        self._ranked = None

    def ranked(self) -> list[Admitted]:
        """Its Workloads in the order in which they would be preempted."""
        if self._ranked is None:
            self._ranked = sorted(self.workloads.values(), key=RANK)
        return self._ranked
