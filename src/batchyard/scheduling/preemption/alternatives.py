"""For a preemption decision: the admitted Workloads that could have been preempted instead, and why they were not."""

from collections.abc import Sequence
from heapq import nsmallest
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.times import format_second
from batchyard.api.views.preemption import TRIGGERS
from batchyard.api.views.workload import WorkloadView
from batchyard.api.well_known import PREEMPT_MIN_RUNTIME, RECLAIM_MIN_RUNTIME
from batchyard.base.instant import format_age
from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.decisions import Preempt
from batchyard.scheduling.preemption.context import (
    PreemptionContext,
    config_of,
    min_runtime_of,
    protection_end,
    rule_candidates,
)
from batchyard.scheduling.preemption.fair import FairSharingStrategy, is_fair_victim
from batchyard.scheduling.quota import QuotaNode, is_within_nominal
from batchyard.scheduling.snapshot import Snapshot

POLICY_RULE: Final = "policy"
PRIORITY_RULE: Final = "priority"
NOMINAL_RULE: Final = "nominal"
BORROWING_RULE: Final = "borrowing"
FAIRNESS_RULE: Final = "fairness"
INACTIVE_RULE: Final = "inactive"
MIN_RUNTIME_RULE: Final = "minRuntime"


class ProtectionReason(NamedTuple):
    """Why an admitted Workload is not preempted: the kind of rule that protects it, and an explanation for users."""

    rule: str
    text: str


class MissingQuotaHolder(NamedTuple):
    """An admitted Workload that uses some of the quota that a pending Workload lacks."""

    workload: AdmittedWorkload
    #: The held amounts by flavor-resource id.
    held_amounts: tuple[tuple[int, int], ...]
    #: Whether the Workload's ClusterQueue exceeds its own quota of a missing flavor-resource.
    is_borrowing: bool


#: A sort key (queue rank, negative largest amount, Workload key), then the fields of the holder.
_RankedHolder: TypeAlias = tuple[int, int, str, AdmittedWorkload, bool, Sequence[int]]


def ranked_quota_holders(
    snapshot: Snapshot, top_node: QuotaNode, queue: ClusterQueue, frs: Sequence[int]
) -> list[MissingQuotaHolder]:
    """Return the admitted Workloads below `top_node` that use a flavor-resource in `frs`, the best victims first.

    If `queue` uses less than its quota of every flavor-resource in `frs`, the Workloads of other ClusterQueues that
    borrow come first. Then come those of `queue`, then the rest. Otherwise those of `queue` come first. Each group is
    sorted by the largest amount that a Workload uses, in descending order, then by Workload key.
    """
    return [_unpack_holder(ranked) for ranked in sorted(_rank_holders(snapshot, top_node, queue, frs))]


def first_ranked_holders(
    snapshot: Snapshot, top_node: QuotaNode, queue: ClusterQueue, frs: Sequence[int], max_count: int
) -> tuple[list[MissingQuotaHolder], int]:
    """Return the first `max_count` Workloads in the order of `ranked_quota_holders()`, and the number of all."""
    ranked_holders = _rank_holders(snapshot, top_node, queue, frs)
    return [_unpack_holder(holder) for holder in nsmallest(max_count, ranked_holders)], len(ranked_holders)


def _rank_holders(snapshot: Snapshot, root: QuotaNode, queue: ClusterQueue, frs: Sequence[int]) -> list[_RankedHolder]:
    is_under = not [fr for fr in frs if queue.node.usage[fr] >= queue.node.subtree_quota[fr]]
    ranked_holders: list[_RankedHolder] = []
    for candidate_queue in snapshot.queues_below(root):
        if not candidate_queue.workloads:
            continue
        is_borrowing, is_own = (
            candidate_queue.node.parent is not None and not is_within_nominal(candidate_queue.node, frs),
            candidate_queue is queue,
        )
        queue_rank = (0 if is_borrowing and not is_own else 1 if is_own else 2) if is_under else (0 if is_own else 1)
        for workload in candidate_queue.workloads.values():
            largest_amount = max([amount for fr, amount in workload.usage if fr in frs], default=0)
            if largest_amount > 0:
                ranked_holders.append((queue_rank, -largest_amount, workload.key, workload, is_borrowing, frs))
    return ranked_holders


def _unpack_holder(ranked_holder: _RankedHolder) -> MissingQuotaHolder:
    *_, workload, is_borrowing, held_frs = ranked_holder
    held_usage = tuple([(fr, amount) for fr, amount in workload.usage if amount > 0 and fr in held_frs])
    return MissingQuotaHolder(workload, held_usage, is_borrowing)


def protection_reason(
    context: PreemptionContext, holder: AdmittedWorkload, fair_strategies: Sequence[FairSharingStrategy]
) -> ProtectionReason | None:
    """Return the rule that protects an admitted Workload (`holder`) from this preemption; None if no rule does.

    `fair_strategies` are the preemption strategies of fair sharing; empty without fair sharing.
    """
    queue, preemption_policy = context.queue, context.queue.view.preemption
    config = config_of(context.snapshot, queue)
    if config is not None:
        selected_workloads = [each for trigger in TRIGGERS for each, _ in rule_candidates(context, config, trigger)]
        if holder in selected_workloads:
            return None
    if holder.queue is queue:
        policy = preemption_policy.within_cluster_queue
        if policy == "Never":
            return ProtectionReason(POLICY_RULE, f"withinClusterQueue of {queue.name} is Never")
        return (
            None if holder in context.eligible_workloads(queue, policy) else _ineligible_reason(context, holder, policy)
        )
    policy = preemption_policy.reclaim_within_cohort
    if policy == "Never":
        return ProtectionReason(POLICY_RULE, f"reclaimWithinCohort of {queue.name} is Never")
    if not holder.queue.active:
        return ProtectionReason(
            INACTIVE_RULE, f"{holder.queue.name} is inactive; Kueue does not preempt in inactive queues"
        )
    if is_within_nominal(holder.queue.node, context.contested_frs):
        return ProtectionReason(NOMINAL_RULE, f"{holder.queue.name} uses no more than its own quota")
    if holder not in context.eligible_workloads(holder.queue, policy):
        return _ineligible_reason(context, holder, policy)
    if not fair_strategies:
        return _borrowing_reason(context, holder)
    if is_fair_victim(context, holder, fair_strategies):
        return None
    return ProtectionReason(FAIRNESS_RULE, "the preemption would not make the shares fairer")


def _ineligible_reason(context: PreemptionContext, holder: AdmittedWorkload, policy: str) -> ProtectionReason:
    """Return why `holder` is not eligible: its priority, or else the minimal run time that protects it."""
    snapshot, priority = context.snapshot, context.workload.priority
    is_newer_equal = holder.priority == priority and context.workload.queued < holder.queued
    if policy == "Any" or holder.priority < priority or (policy != "LowerPriority" and is_newer_equal):
        min_runtime = (
            min_runtime_of(snapshot, holder.queue, context.queue) if snapshot.preemption.has_min_runtimes else 0
        )
        end = protection_end(holder, min_runtime)
        if end > snapshot.preemption.now:
            annotation = PREEMPT_MIN_RUNTIME if holder.queue is context.queue else RECLAIM_MIN_RUNTIME
            text = f"protected until {format_second(end)} ({annotation}: {format_age(min_runtime)})"
            return ProtectionReason(MIN_RUNTIME_RULE, text)
    return _priority_reason(context.workload, holder, policy)


def _priority_reason(workload: WorkloadView, holder: AdmittedWorkload, policy: str) -> ProtectionReason:
    if holder.priority == workload.priority and policy == "LowerOrNewerEqualPriority":
        return ProtectionReason(PRIORITY_RULE, f"its priority {holder.priority} is equal, and it was queued first")
    return ProtectionReason(PRIORITY_RULE, f"its priority {holder.priority} is not lower than {workload.priority}")


def _borrowing_reason(context: PreemptionContext, holder: AdmittedWorkload) -> ProtectionReason | None:
    node, preemption_policy = context.queue.node, context.queue.view.preemption
    if all(node.usage[fr] + amount <= node.subtree_quota[fr] for fr, amount in context.usage):
        return None
    if not preemption_policy.borrow_within_cohort:
        return ProtectionReason(BORROWING_RULE, f"{context.queue.name} would borrow, and borrowWithinCohort is Never")
    if holder.priority >= context.workload.priority:
        return _priority_reason(context.workload, holder, "LowerPriority")
    priority_threshold = preemption_policy.priority_threshold_max
    if priority_threshold is not None and holder.priority > priority_threshold:
        return ProtectionReason(
            BORROWING_RULE, f"its priority {holder.priority} is above maxPriorityThreshold {priority_threshold}"
        )
    return None


# Workloads that were not preempted although they use the quota that the preemptor lacks.


NEEDLESS_REASON: Final = ProtectionReason("needless", "the other victims free enough quota")
#: Explains why a Workload that may be preempted is not preempted.
INSUFFICIENT_REASON: Final = ProtectionReason(
    "insufficient", "it could be preempted, but all possible victims together do not free enough quota"
)
_RECORDED_WORKLOADS_MAX: Final = 32


class SparedWorkload(NamedTuple):
    """A Workload that uses some of the quota that a preemptor lacked, and the reason why it was not preempted."""

    holder: MissingQuotaHolder
    reason: ProtectionReason


class SparedWorkloads(NamedTuple):
    """Workloads that use the quota that a preemptor lacked but were not preempted: at most 32, and how many exist."""

    spared_workloads: tuple[SparedWorkload, ...]
    total_count: int


NO_SPARED_WORKLOADS: Final = SparedWorkloads((), 0)


def find_spared_workloads(
    decision: Preempt, snapshot: Snapshot, fair_strategies: Sequence[FairSharingStrategy]
) -> SparedWorkloads:
    """Return the Workloads that use the quota which a preemptor lacked, but that it did not preempt.

    The first 32 are returned, each with the reason why it was spared, and the number of all such Workloads. `snapshot`
    must be the state before the preemption.
    """
    assignment = decision.why.assignment
    assert assignment is not None, "a preemption results from a flavor search"
    queue, contested_frs = decision.queue, assignment.preempting_frs
    context = PreemptionContext(decision.head.workload, queue, snapshot, assignment.usage, contested_frs)
    victim_keys = {target.workload.key for target in decision.targets}
    max_count = _RECORDED_WORKLOADS_MAX + len(victim_keys)
    ranked_holders, count = first_ranked_holders(snapshot, queue.node.path[0], queue, contested_frs, max_count)
    spared_holders = [holder for holder in ranked_holders if holder.workload.key not in victim_keys]
    recorded_workloads = [
        SparedWorkload(holder, protection_reason(context, holder.workload, fair_strategies) or NEEDLESS_REASON)
        for holder in spared_holders[:_RECORDED_WORKLOADS_MAX]
    ]
    return SparedWorkloads(
        tuple(recorded_workloads),
        count - sum(_holds_any_flavor_resource(snapshot.holder(key), contested_frs) for key in victim_keys),
    )


def _holds_any_flavor_resource(workload: AdmittedWorkload | None, flavor_resources: Sequence[int]) -> bool:
    return workload is not None and any(amount > 0 and fr in flavor_resources for fr, amount in workload.usage)
