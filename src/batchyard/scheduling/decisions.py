"""Decisions of a scheduling cycle: admit, preempt or stay pending, with the head and the reason."""

from typing import NamedTuple, TypeAlias

from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.flavor_assigner import Assignment, LastAssignment
from batchyard.scheduling.messages import RequeueReason, format_pod_set_reasons
from batchyard.scheduling.preemption.context import PreemptionTarget


class Head(NamedTuple):
    """The Workload at the head of a ClusterQueue, with the state of its last flavor search."""

    workload: WorkloadView
    queue: str
    last_assignment: LastAssignment | None = None


class InadmissibleReason(NamedTuple):
    """The reason why a Workload is not admitted; its message is formatted on demand."""

    #: The reason of the Workload's QuotaReserved condition; '' takes the reason from `assignment`.
    condition_reason: str
    #: The result of the flavor search; None if no search was made.
    assignment: Assignment | None = None
    text: str = ""
    suffix: str = ""

    @property
    def reason(self) -> str:
        """The reason of the Workload's QuotaReserved condition."""
        return self.condition_reason or ("" if self.assignment is None else self.assignment.no_fit_reason)

    @property
    def message(self) -> str:
        """The message of the Workload's QuotaReserved condition, in Kueue's wording."""
        facts = () if self.assignment is None else self.assignment.pod_set_facts
        return (self.text or format_pod_set_reasons(facts)) + self.suffix


class Admit(NamedTuple):
    """Decision to admit: quota is reserved for the head."""

    head: Head
    queue: ClusterQueue
    assignment: Assignment


class Preempt(NamedTuple):
    """Decision to preempt targets; the head stays first in its queue until the targets have stopped."""

    head: Head
    queue: ClusterQueue
    targets: tuple[PreemptionTarget, ...]
    why: InadmissibleReason
    requeue: RequeueReason = RequeueReason.PENDING_PREEMPTION
    last_assignment: LastAssignment | None = None


class StayPending(NamedTuple):
    """Decision to keep the head pending; `requeue` decides whether it stays in line or is parked."""

    head: Head
    why: InadmissibleReason
    requeue: RequeueReason
    last_assignment: LastAssignment | None = None


Decision: TypeAlias = Admit | Preempt | StayPending
