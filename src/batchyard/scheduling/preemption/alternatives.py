"""Holders of the missing quota, and why each was not preempted."""

from collections.abc import Sequence
from heapq import nsmallest
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.decisions import Preempt
from batchyard.scheduling.preemption.context import PreemptionContext
from batchyard.scheduling.quota import QuotaNode, is_within_nominal
from batchyard.scheduling.snapshot import Snapshot

POLICY: Final = "policy"
PRIORITY: Final = "priority"
NOMINAL: Final = "nominal"
BORROWING: Final = "borrowing"
FAIRNESS: Final = "fairness"
INACTIVE: Final = "inactive"


class ProtectionReason(NamedTuple):
    """Why a Workload is not preempted: the kind of rule, and a text."""

    rule: str
    text: str


class MissingQuotaHolder(NamedTuple):
    """A Workload that holds some of the missing quota."""

    workload: AdmittedWorkload
    #: What it holds, by flavor-resource id.
    amounts: tuple[tuple[int, int], ...]
    #: Whether its ClusterQueue uses more than its own quota.
    borrows: bool


#: A sort key (queue rank, largest amount, unique Workload key), and the data of the holder.
_Found: TypeAlias = tuple[int, int, str, AdmittedWorkload, bool, Sequence[int]]


def holders_of(
    snapshot: Snapshot, scope: QuotaNode, queue: ClusterQueue, frs: Sequence[int]
) -> list[MissingQuotaHolder]:
    """Return all holders below a node: borrowers first if the queue is under its quota, then its own Workloads.

    Within each group the largest holder comes first, then by key.
    """
    return [_holder(found) for found in sorted(_found(snapshot, scope, queue, frs))]


def first_holders(
    snapshot: Snapshot, scope: QuotaNode, queue: ClusterQueue, frs: Sequence[int], most: int
) -> tuple[list[MissingQuotaHolder], int]:
    """Return the first holders, and their total number; sorting all of many would be slow."""
    found = _found(snapshot, scope, queue, frs)
    return [_holder(each) for each in nsmallest(most, found)], len(found)


def _found(snapshot: Snapshot, scope: QuotaNode, queue: ClusterQueue, frs: Sequence[int]) -> list[_Found]:
    """Return the holders below a node, unsorted."""
    is_under = not [fr for fr in frs if queue.node.usage[fr] >= queue.node.subtree[fr]]
    found: list[_Found] = []
    for each in snapshot.queues_below(scope):
        if not each.workloads:
            continue
        borrows, own = each.node.parent is not None and not is_within_nominal(each.node, frs), each is queue
        place = (0 if borrows and not own else 1 if own else 2) if is_under else (0 if own else 1)
        for workload in each.workloads.values():
            largest = max([amount for fr, amount in workload.usage if fr in frs], default=0)
            if largest > 0:
                found.append((place, -largest, workload.key, workload, borrows, frs))
    return found


def _holder(found: _Found) -> MissingQuotaHolder:
    *_, workload, borrows, frs = found
    return MissingQuotaHolder(
        workload, tuple([(fr, amount) for fr, amount in workload.usage if amount > 0 and fr in frs]), borrows
    )


def protection_reason(
    request: PreemptionContext, holder: AdmittedWorkload, *, fair_sharing: bool
) -> ProtectionReason | None:
    """Return the rule that protects a holder from preemption for this request; None if it may be preempted."""
    queue, rules = request.queue, request.queue.view.preemption
    if holder.queue is queue:
        policy = rules.within_cluster_queue
        if policy == "Never":
            return ProtectionReason(POLICY, f"withinClusterQueue of {queue.name} is Never")
        return None if holder in request.eligible(queue, policy) else _by_priority(request.workload, holder, policy)
    policy = rules.reclaim_within_cohort
    if policy == "Never":
        return ProtectionReason(POLICY, f"reclaimWithinCohort of {queue.name} is Never")
    if not holder.queue.active:
        return ProtectionReason(
            INACTIVE, f"{holder.queue.name} is inactive, and Kueue preempts nothing in such a queue"
        )
    if is_within_nominal(holder.queue.node, request.contested):
        return ProtectionReason(NOMINAL, f"{holder.queue.name} uses no more than its own quota")
    if holder not in request.eligible(holder.queue, policy):
        return _by_priority(request.workload, holder, policy)
    return (
        ProtectionReason(FAIRNESS, "shares would not become fairer")
        if fair_sharing
        else _while_borrowing(request, holder)
    )


def _by_priority(workload: WorkloadView, holder: AdmittedWorkload, policy: str) -> ProtectionReason:
    if holder.priority == workload.priority and policy == "LowerOrNewerEqualPriority":
        return ProtectionReason(PRIORITY, f"its priority {holder.priority} is the same, and it came first")
    return ProtectionReason(PRIORITY, f"its priority {holder.priority} is not lower than {workload.priority}")


def _while_borrowing(request: PreemptionContext, holder: AdmittedWorkload) -> ProtectionReason | None:
    """Return the rule that forbids preemption while borrowing; None if the queue would not borrow, or may."""
    node, rules = request.queue.node, request.queue.view.preemption
    if all(node.usage[fr] + amount <= node.subtree[fr] for fr, amount in request.usage):
        return None
    if not rules.borrow_within_cohort:
        return ProtectionReason(BORROWING, f"{request.queue.name} would borrow, and borrowWithinCohort is Never")
    if holder.priority >= request.workload.priority:
        return _by_priority(request.workload, holder, "LowerPriority")
    threshold = rules.priority_threshold_max
    if threshold is not None and holder.priority > threshold:
        return ProtectionReason(BORROWING, f"its priority {holder.priority} is above maxPriorityThreshold {threshold}")
    return None


# --- alternatives ---
#
# Workloads that were not preempted when others were, with the rules: the alternatives to a decision.


NEEDLESS: Final = ProtectionReason("needless", "there is room enough without it")
_RECORDED_MAX: Final = 32


class PassedOver(NamedTuple):
    """A Workload that holds some of the missing quota, and why it was not preempted."""

    holder: MissingQuotaHolder
    reason: ProtectionReason


class Alternatives(NamedTuple):
    """The alternatives to the victims: the most relevant ones, and their total number."""

    spared: tuple[PassedOver, ...]
    in_all: int


NO_ALTERNATIVES: Final = Alternatives((), 0)


def preemption_alternatives(decision: Preempt, snapshot: Snapshot, *, fair_sharing: bool) -> Alternatives:
    """Return the alternatives to a preemption, for the snapshot of the decision."""
    assignment = decision.why.assignment
    if assignment is None:
        return NO_ALTERNATIVES
    queue, contested = decision.queue, assignment.preempting
    request = PreemptionContext(decision.head.workload, queue, snapshot, assignment.usage, contested)
    victims = {target.workload.key for target in decision.targets}
    most = _RECORDED_MAX + len(victims)
    found, count = first_holders(snapshot, queue.node.path[0], queue, contested, most)
    others = [holder for holder in found if holder.workload.key not in victims]
    alternatives = [
        PassedOver(holder, protection_reason(request, holder.workload, fair_sharing=fair_sharing) or NEEDLESS)
        for holder in others[:_RECORDED_MAX]
    ]
    return Alternatives(tuple(alternatives), count - sum(_holds(snapshot.holder(key), contested) for key in victims))


def _holds(workload: AdmittedWorkload | None, frs: Sequence[int]) -> bool:
    """Report whether it holds any of these flavor-resources."""
    return workload is not None and any(amount > 0 and fr in frs for fr, amount in workload.usage)
