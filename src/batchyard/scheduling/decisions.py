"""Decisions of a scheduling cycle about a head (first Workload of a ClusterQueue): admit, preempt or stay pending."""

from typing import NamedTuple, TypeAlias

from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.flavor_assigner import Assignment, LastAssignment
from batchyard.scheduling.messages import RequeueReason, format_pod_set_reasons
from batchyard.scheduling.preemption.context import PreemptionTarget


class Head(NamedTuple):
    """The first pending Workload of a ClusterQueue, with the position at which its last flavor search stopped."""

    workload: WorkloadView
    queue: str
    last_assignment: LastAssignment | None = None


class InadmissibleReason(NamedTuple):
    """Why a Workload is not admitted; the message is formatted only when it is read."""

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
        rejections = () if self.assignment is None else self.assignment.pod_set_rejections
        return (self.text or format_pod_set_reasons(rejections)) + self.suffix


class Admit(NamedTuple):
    """Decision to reserve quota for a head, which is admitted once its admission checks are Ready."""

    head: Head
    queue: ClusterQueue
    assignment: Assignment
    #: The slice of the same elastic job that the head replaces, and that finishes once the admission is written.
    replaced: AdmittedWorkload | None = None


class Preempt(NamedTuple):
    """Decision to preempt Workloads for a head, which stays pending until these Workloads have stopped."""

    head: Head
    queue: ClusterQueue
    targets: tuple[PreemptionTarget, ...]
    why: InadmissibleReason
    requeue_reason: RequeueReason = RequeueReason.PENDING_PREEMPTION
    last_assignment: LastAssignment | None = None


class StayPending(NamedTuple):
    """Decision to keep a head pending; `requeue_reason` and `last_assignment` affect when it is tried again."""

    head: Head
    why: InadmissibleReason
    requeue_reason: RequeueReason
    last_assignment: LastAssignment | None = None


Decision: TypeAlias = Admit | Preempt | StayPending
