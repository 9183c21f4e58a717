"""Decisions of a cycle about a head, with their reasons."""

from typing import NamedTuple, TypeAlias

from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.flavor_assigner import Assignment, LastAssignment
from batchyard.scheduling.messages import RequeueReason, message_of
from batchyard.scheduling.preemption.context import PreemptionTarget


class Head(NamedTuple):
    """The Workload at the head of a ClusterQueue."""

    workload: WorkloadView
    queue: str
    last: LastAssignment | None = None


class InadmissibleReason(NamedTuple):
    """Why a Workload is not admitted; formatted on demand."""

    #: The reason of its QuotaReserved condition; '' to use that of the flavor search.
    stated: str
    #: The result of the flavor search; None if no search was made.
    assignment: Assignment | None = None
    text: str = ""
    after: str = ""

    @property
    def reason(self) -> str:
        """The reason of its QuotaReserved condition."""
        return self.stated or ("" if self.assignment is None else self.assignment.no_fit_reason)

    @property
    def message(self) -> str:
        """The message, in Kueue's words."""
        facts = () if self.assignment is None else self.assignment.pod_set_facts
        return (self.text or message_of(facts)) + self.after


class Admit(NamedTuple):
    """Quota is reserved for the head."""

    head: Head
    queue: ClusterQueue
    assignment: Assignment


class Preempt(NamedTuple):
    """Targets are preempted for the head; it stays at the head of its queue until they are gone."""

    head: Head
    queue: ClusterQueue
    targets: tuple[PreemptionTarget, ...]
    why: InadmissibleReason
    requeue: RequeueReason = RequeueReason.PENDING_PREEMPTION
    last: LastAssignment | None = None


class StayPending(NamedTuple):
    """The head stays pending; `requeue` decides whether it stays in line or is parked."""

    head: Head
    why: InadmissibleReason
    requeue: RequeueReason
    last: LastAssignment | None = None


Decision: TypeAlias = Admit | Preempt | StayPending
