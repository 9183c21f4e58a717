"""Preemption with fair sharing: victims come from the queues with the highest dominant resource share.

The search descends from the root of the cohort tree, at each level to the child with the highest share that still has
candidates. Shares are compared between the two branches below the lowest common Cohort. Rule S2-a allows a preemption
if the preemptor's share with the new Workload is at most the victim branch's share without the victim. If that does not
free enough quota, rule S2-b allows one more victim per queue while the preemptor's share is below the victim branch's
share. If only one strategy is configured, only its rule applies. Of Cohorts with equal shares the last wins. Source:
Kueue's pkg/scheduler/preemption (fairPreemptions) and preemption/fairsharing; KEP 1714.
"""

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import partial
from typing import Final

from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.fair_sharing.admission_fair_sharing import order_victims
from batchyard.scheduling.messages import PreemptionReason
from batchyard.scheduling.preemption.context import (
    PreemptionContext,
    PreemptionTarget,
    add_rule_targets,
    config_of,
    fill_back_workloads,
)
from batchyard.scheduling.preemption.shrinking import releasable_part
from batchyard.scheduling.quota import LOWEST_SHARE, QuotaNode, Share, compare_shares, is_borrowing_with, weighted_share


class FairSharingStrategy(StrEnum):
    """Rule that decides if a preemption is fair; the values are those of Kueue's `fairSharing.preemptionStrategies`."""

    FINAL_SHARE = "LessThanOrEqualToFinalShare"
    INITIAL_SHARE = "LessThanInitialShare"


#: Kueue's default: the second rule applies where the first does not free enough quota.
BOTH_STRATEGIES: Final = (FairSharingStrategy.FINAL_SHARE, FairSharingStrategy.INITIAL_SHARE)


def find_targets(
    context: PreemptionContext,
    strategies: Sequence[FairSharingStrategy] = BOTH_STRATEGIES,
    *,
    reevaluates: bool = False,
) -> list[PreemptionTarget]:
    """Return the Workloads to preempt with fair sharing; empty if preemption cannot free enough quota.

    With `reevaluates`, the first strategy runs once more on the refused candidates if victims in the preemptor's own
    ClusterQueue have lowered its share.
    """
    usage_of = context.snapshot.usage_of
    candidates = sorted(_preemption_candidates(context), key=context.order_key)
    if usage_of is not None:
        candidates = order_victims(candidates, context.queue, usage_of)
    snapshot = context.snapshot
    has_rules = bool(snapshot.preemption.configs) and config_of(snapshot, context.queue) is not None
    if (not candidates or not context.could_ever_fit(candidates)) and not has_rules:
        return []
    with snapshot.what_if():
        snapshot.add_usage(context.queue, context.usage)  # shares include the new Workload
        does_fit, targets, skipped_candidates = _apply_first_rule(context, candidates, strategies[0])
        if reevaluates and not does_fit and any(target.workload.queue is context.queue for target in targets):
            does_fit, new_targets, skipped_candidates = _apply_first_rule(context, skipped_candidates, strategies[0])
            targets += new_targets
        if not does_fit and len(strategies) > 1:
            does_fit, targets = _apply_second_rule(context, skipped_candidates, targets)
        snapshot.remove_usage(context.queue, context.usage)
        if not does_fit and has_rules:
            fits = partial(context.fits, may_borrow=True)
            does_fit = add_rule_targets(context, targets, fits, context.fits_in_quota)
        return fill_back_workloads(context, targets, may_borrow=True) if does_fit else []


def is_fair_victim(
    context: PreemptionContext, candidate: AdmittedWorkload, strategies: Sequence[FairSharingStrategy]
) -> bool:
    """Return whether a Workload of another queue may be the first victim.

    It may if the preemptor's queue stays within its own quota, or if any of `strategies` allows the preemption.
    """
    with context.snapshot.what_if():
        context.snapshot.add_usage(context.queue, context.usage)
        if _is_within_nominal_quota(context):
            return True
        orders = [_TargetOrder(context, [candidate], strategy) for strategy in strategies]
        return any(_next_fair_candidate(context, order, candidate.queue, []) is not None for order in orders)


def offered_parts(
    context: PreemptionContext, strategies: Sequence[FairSharingStrategy], _may_borrow: bool
) -> list[PreemptionTarget]:
    """Return the parts of Workloads that the preemptor may have released, the best victims first."""
    offered: list[PreemptionTarget] = []
    for candidate in sorted(_preemption_candidates(context), key=context.order_key):
        part = releasable_part(candidate, context.snapshot)
        if part is None:
            continue
        if candidate.queue is context.queue:
            offered.append(PreemptionTarget(part, PreemptionReason.IN_CLUSTER_QUEUE))
        elif is_fair_victim(context, part, strategies):
            offered.append(PreemptionTarget(part, PreemptionReason.IN_COHORT_FAIR_SHARING))
    return offered


def _is_within_nominal_quota(context: PreemptionContext) -> bool:
    """Return whether the preemptor's queue is within its nominal quota; the snapshot must include the preemptor."""
    return not any(is_borrowing_with(context.queue.node, fr, 0) for fr in context.contested_frs)


def _preemption_candidates(context: PreemptionContext) -> Iterator[AdmittedWorkload]:
    preemption = context.queue.view.preemption
    own_policy, cohort_policy = preemption.within_cluster_queue, preemption.reclaim_within_cohort
    yield from context.eligible_workloads(context.queue, own_policy)
    if context.queue.node.parent is None or cohort_policy == "Never":
        return
    for queue in context.snapshot.queues_below(context.queue.node.path[0]):
        if queue is not context.queue and any(is_borrowing_with(queue.node, fr, 0) for fr in context.contested_frs):
            yield from context.eligible_workloads(queue, cohort_policy)


def _preemptor_fits(context: PreemptionContext) -> bool:
    """Return whether the preemptor fits; its own usage, which the snapshot includes, is removed during the check."""
    snapshot = context.snapshot
    snapshot.remove_usage(context.queue, context.usage)
    does_fit = context.fits(may_borrow=True)
    snapshot.add_usage(context.queue, context.usage)
    return does_fit


def _apply_first_rule(
    context: PreemptionContext, candidates: Sequence[AdmittedWorkload], strategy: FairSharingStrategy
) -> tuple[bool, list[PreemptionTarget], list[AdmittedWorkload]]:
    """Select victims by the first strategy; return whether the preemptor fits, the victims, and refused candidates.

    The list of refused candidates is empty if the preemptor fits.
    """
    target_order = _TargetOrder(context, candidates, strategy)
    is_within_nominal_quota = _is_within_nominal_quota(context)
    targets: list[PreemptionTarget] = []
    skipped_candidates: list[AdmittedWorkload] = []
    while (queue := target_order.next_queue()) is not None:
        if queue is context.queue or is_within_nominal_quota:
            is_own_queue = queue is context.queue
            reason = PreemptionReason.IN_CLUSTER_QUEUE if is_own_queue else PreemptionReason.IN_COHORT_RECLAMATION
            candidate: AdmittedWorkload | None = target_order.pop_candidate(queue)
        else:
            reason = PreemptionReason.IN_COHORT_FAIR_SHARING
            candidate = _next_fair_candidate(context, target_order, queue, skipped_candidates)
        if candidate is not None:
            context.snapshot.release(candidate)
            targets.append(PreemptionTarget(candidate, reason))
            if _preemptor_fits(context):
                return True, targets, []
    return False, targets, skipped_candidates


def _next_fair_candidate(
    context: PreemptionContext, order: "_TargetOrder", queue: ClusterQueue, skipped_candidates: list[AdmittedWorkload]
) -> AdmittedWorkload | None:
    """Return a queue's first candidate that the strategy allows; None if there is none.

    Refused candidates are added to `skipped_candidates`. With INITIAL_SHARE, the whole queue is refused and excluded.
    """
    preemptor_branch, victim_branch = order.diverging_branches(queue)
    preemptor_share, victim_share = order.share(preemptor_branch), order.share(victim_branch)
    if order.strategy is FairSharingStrategy.INITIAL_SHARE:
        if compare_shares(preemptor_share, victim_share) < 0:
            return order.pop_candidate(queue)
        order.exclude_queue(queue)  # independent of the candidate
        while order.has_candidate(queue):
            skipped_candidates.append(order.pop_candidate(queue))
        return None
    can_never_be_fair = math.isinf(preemptor_share.weighted_value) and not math.isinf(victim_share.weighted_value)
    while order.has_candidate(queue):
        candidate = order.pop_candidate(queue)
        if (
            not can_never_be_fair
            and compare_shares(preemptor_share, _share_without_candidate(context, order, victim_branch, candidate)) <= 0
        ):
            return candidate
        skipped_candidates.append(candidate)
    return None


def _share_without_candidate(
    context: PreemptionContext, target_order: "_TargetOrder", branch: QuotaNode, candidate: AdmittedWorkload
) -> Share:
    snapshot = context.snapshot
    snapshot.remove_usage(candidate.queue, candidate.usage)
    share = target_order.share(branch)
    snapshot.add_usage(candidate.queue, candidate.usage)
    return share


def _apply_second_rule(
    context: PreemptionContext, skipped_candidates: Sequence[AdmittedWorkload], targets: list[PreemptionTarget]
) -> tuple[bool, list[PreemptionTarget]]:
    target_order = _TargetOrder(context, skipped_candidates)
    while (queue := target_order.next_queue()) is not None:
        preemptor_branch, victim_branch = target_order.diverging_branches(queue)
        candidate = target_order.pop_candidate(queue)
        if compare_shares(target_order.share(preemptor_branch), target_order.share(victim_branch)) < 0:
            context.snapshot.release(candidate)
            targets.append(PreemptionTarget(candidate, PreemptionReason.IN_COHORT_FAIR_SHARING))
            if _preemptor_fits(context):
                return True, targets
        target_order.exclude_queue(queue)
    return False, targets


class _TargetOrder:
    """Chooses the queue of the next victim: at each level of the cohort tree, the child with the highest share."""

    def __init__(
        self,
        context: PreemptionContext,
        candidates: Sequence[AdmittedWorkload],
        strategy: FairSharingStrategy = FairSharingStrategy.INITIAL_SHARE,
    ) -> None:
        self.strategy = strategy
        self._context = context
        self._remaining_candidates: dict[QuotaNode, list[AdmittedWorkload]] = {}
        for candidate in reversed(candidates):
            self._remaining_candidates.setdefault(candidate.queue.node, []).append(candidate)
        #: Nodes without further candidates, or not to be considered further.
        self._excluded_nodes: dict[QuotaNode, None] = {}
        self._preemptor_path = dict.fromkeys(context.queue.node.path)

    def share(self, node: QuotaNode) -> Share:
        return weighted_share(node, self._context.snapshot.flavor_resource_names)

    def has_candidate(self, queue: ClusterQueue) -> bool:
        return bool(self._remaining_candidates.get(queue.node))

    def pop_candidate(self, queue: ClusterQueue) -> AdmittedWorkload:
        return self._remaining_candidates[queue.node].pop()

    def exclude_queue(self, queue: ClusterQueue) -> None:
        self._excluded_nodes[queue.node] = None

    def diverging_branches(self, queue: ClusterQueue) -> tuple[QuotaNode, QuotaNode]:
        """Return the children of the lowest common Cohort that contain the preemptor's queue and `queue`, respectively.

        `queue` must be another queue than the preemptor's.
        """
        preemptor_path, queue_path = self._context.queue.node.path, queue.node.path
        level = 0
        while preemptor_path[level] is queue_path[level]:
            level += 1
        return preemptor_path[level], queue_path[level]

    def next_queue(self) -> ClusterQueue | None:
        root = self._context.queue.node.path[0]
        if root is self._context.queue.node:
            own_queue = self._context.queue
            return own_queue if self.has_candidate(own_queue) and root not in self._excluded_nodes else None
        while root not in self._excluded_nodes:
            candidate_queue = self._descend_to_queue(root)
            if candidate_queue is not None:
                return candidate_queue
        return None

    def _descend_to_queue(self, root: QuotaNode) -> ClusterQueue | None:
        """Return the queue with the highest share; None if a Cohort on the way had no candidates and was excluded."""
        queue_of = self._context.snapshot.queue_of
        cohort = root
        while True:
            best_queue, queue_share = self._best_queue(cohort)
            best_cohort, cohort_share = self._best_cohort(cohort)
            if best_queue is None and best_cohort is None:
                self._excluded_nodes[cohort] = None
                return None
            if best_cohort is None or (best_queue is not None and compare_shares(cohort_share, queue_share) < 0):
                assert best_queue is not None
                return queue_of[best_queue]
            cohort = best_cohort

    def _best_queue(self, cohort: QuotaNode) -> tuple[QuotaNode | None, Share]:
        best: QuotaNode | None = None
        best_share = LOWEST_SHARE
        own_node = self._context.queue.node
        order = self._context.order_key
        for node in self._child_nodes(cohort, are_queues=True):
            share = self.share(node)
            if not self._remaining_candidates.get(node) or (not share.is_borrowing and node is not own_node):
                self._excluded_nodes[node] = None
                continue
            sign = compare_shares(share, best_share)
            if sign > 0:
                best, best_share = node, share
            elif (
                sign == 0
                and best is not None
                and order(self._remaining_candidates[node][-1]) < order(self._remaining_candidates[best][-1])
            ):
                best = node
        return best, best_share

    def _best_cohort(self, cohort: QuotaNode) -> tuple[QuotaNode | None, Share]:
        best_node: QuotaNode | None = None
        best_share = LOWEST_SHARE
        for node in self._child_nodes(cohort, are_queues=False):
            share = self.share(node)
            if not share.is_borrowing and node not in self._preemptor_path:
                self._excluded_nodes[node] = None
            elif compare_shares(share, best_share) >= 0:
                best_node, best_share = node, share
        return best_node, best_share

    def _child_nodes(self, cohort: QuotaNode, *, are_queues: bool) -> list[QuotaNode]:
        queue_of = self._context.snapshot.queue_of
        return [n for n in cohort.children.values() if n not in self._excluded_nodes and (n in queue_of) is are_queues]
