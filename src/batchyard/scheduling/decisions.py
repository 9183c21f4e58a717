"""What a cycle decides about a head, with the reason inside."""

from typing import NamedTuple, TypeAlias

from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling.assignment import Assignment, LastAssignment
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.messages import RequeueReason, message_of
from batchyard.scheduling.preemption.context import Target


class Head(NamedTuple):
    """The front of a ClusterQueue: a Workload whose turn it is."""

    workload: WorkloadView
    queue: str
    last: LastAssignment | None = None


class Why(NamedTuple):
    """Why a Workload is not admitted; put into words when somebody asks."""

    #: The reason of its QuotaReserved condition; '' for the one that the search for flavors tells.
    stated: str
    #: What came of the search; None where it came to none.
    assignment: Assignment | None = None
    text: str = ""
    after: str = ""

    @property
    def reason(self) -> str:
        """The reason of its QuotaReserved condition."""
        return self.stated or ("" if self.assignment is None else self.assignment.no_fit_reason)

    @property
    def message(self) -> str:
        """In Kueue's words."""
        facts = () if self.assignment is None else self.assignment.pod_set_facts
        return (self.text or message_of(facts)) + self.after


class Admit(NamedTuple):
    """Quota is reserved for it."""

    head: Head
    queue: ClusterQueue
    assignment: Assignment


class Preempt(NamedTuple):
    """Others make room; it stays at the front until they have."""

    head: Head
    queue: ClusterQueue
    targets: tuple[Target, ...]
    why: Why
    requeue: RequeueReason = RequeueReason.PENDING_PREEMPTION
    last: LastAssignment | None = None


class Wait(NamedTuple):
    """Not now. `requeue` says whether it stays in line or is parked."""

    head: Head
    why: Why
    requeue: RequeueReason
    last: LastAssignment | None = None


Decision: TypeAlias = Admit | Preempt | Wait
