"""What the models of the page are made from: the objects, what the scheduler knows, and what happened so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import Instant
from batchyard.core.readiness import Readiness
from batchyard.core.snapshot import Snapshot
from batchyard.ports.client import Reader
from batchyard.web.history import History
from batchyard.web.roster import Roster

Model: TypeAlias = dict[str, Any]
"""A document of JSON values: what a view shows, in the words and numbers in which it shows it."""

Query: TypeAlias = Mapping[str, str]
"""What is asked of a view, as the query of its address has it."""


class Standing(Protocol):
    """What the scheduler knows: who waits where and in which order, who holds what."""

    @property
    def snapshot(self) -> Snapshot:
        """Queues, Cohorts and their quota."""

    def first_pending(self, cluster_queue: str, count: int) -> Sequence[WorkloadView]:
        """The first of those that wait in a ClusterQueue, in the order of their turn."""

    def count_pending(self, cluster_queue: str) -> int:
        """How many wait in a ClusterQueue."""

    def place_of(self, cluster_queue: str, workload: str) -> int | None:
        """How many have their turn before a Workload; None if it does not wait there."""

    def cluster_queue_of(self, namespace: str, local_queue: str) -> str | None:
        """The ClusterQueue of a LocalQueue; None if there is no such queue."""

    def readiness(self, name: str) -> Readiness:
        """Whether a ClusterQueue can admit, and why not."""


class CostLine(Protocol):
    """What one use of a pool's machines, or of all machines by a team, came to."""

    @property
    def pool(self) -> str:
        """The pool; '' where all pools count together."""

    @property
    def provisioning(self) -> str:
        """How its machines are paid for."""

    @property
    def team(self) -> str:
        """The namespace of the pods; '' for what no pod took."""

    @property
    def use(self) -> str:
        """`booting`, `idle`, `done`, `lost` or `running`."""

    @property
    def machine_hours(self) -> float:
        """Hours of machines."""

    @property
    def accelerator_hours(self) -> float:
        """Hours of accelerators."""

    @property
    def cents(self) -> int:
        """What it cost."""


class Costs(Protocol):
    """What the machines came to, told by pool and by team; the sums of both are one."""

    @property
    def by_pool(self) -> Sequence[CostLine]:
        """By pool and use."""

    @property
    def by_team(self) -> Sequence[CostLine]:
        """By team and use."""

    @property
    def cents(self) -> int:
        """All of it."""


@dataclass(frozen=True, slots=True)
class Source:
    """See the module."""

    reader: Reader
    standing: Standing
    history: History
    roster: Roster
    #: What time it is for the platform.
    now: Instant
    #: None where nobody keeps books.
    costs: Costs | None = None
    #: Whether lists are to be whole, however long they are.
    whole: bool = False
