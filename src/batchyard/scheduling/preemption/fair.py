"""Preemption under fair sharing: from the queues with the highest share first, while fairness improves.

The tree is walked from the root to the child with the highest share that still has candidates. Shares are compared in
the two branches below the lowest common Cohort. Rule S2-a allows a preemption if the preemptor's share with the new
Workload is at most the victim's share without the old one. If that does not free enough quota, rule S2-b allows one
more per queue while the preemptor's share is below the victim's present one. If a platform chooses only one rule, the
walk uses that. Children are visited in order of name; of equal Cohorts the last one counts.
Source: Kueue's pkg/scheduler/preemption (fairPreemptions) and preemption/fairsharing; KEP 1714.
"""

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Final

from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.messages import PreemptionReason
from batchyard.scheduling.preemption.context import PreemptionContext, PreemptionTarget, fill_back_workloads
from batchyard.scheduling.quota import LOWEST, QuotaNode, Share, compare, is_borrowing_with, share_of


class FairSharingStrategy(StrEnum):
    """When a preemption is fair, named as in Kueue's fairSharing.preemptionStrategies."""

    FINAL_SHARE = "LessThanOrEqualToFinalShare"
    INITIAL_SHARE = "LessThanInitialShare"


#: Kueue's default: the second rule applies where the first does not free enough quota.
BOTH: Final = (FairSharingStrategy.FINAL_SHARE, FairSharingStrategy.INITIAL_SHARE)


def find_targets(
    request: PreemptionContext, strategies: Sequence[FairSharingStrategy] = BOTH
) -> list[PreemptionTarget]:
    """Return the Workloads to preempt; empty if preemption cannot free enough quota."""
    candidates = sorted(_candidates(request), key=request.order)
    if not candidates or not request.could_ever_fit(candidates):
        return []
    snapshot = request.snapshot
    with snapshot.what_if():
        snapshot.add_usage(request.queue, request.usage)  # shares include the new Workload
        fits, targets, rest = _first_rule(request, candidates, strategies[0])
        if not fits and len(strategies) > 1:
            fits, targets = _second_rule(request, rest, targets)
        snapshot.remove_usage(request.queue, request.usage)
        return fill_back_workloads(request, targets, may_borrow=True) if fits else []


def _candidates(request: PreemptionContext) -> Iterator[AdmittedWorkload]:
    preemption = request.queue.view.preemption
    own, others = preemption.within_cluster_queue, preemption.reclaim_within_cohort
    yield from request.eligible(request.queue, own)
    if request.queue.node.parent is None or others == "Never":
        return
    for queue in request.snapshot.queues_below(request.queue.node.path[0]):
        if queue is not request.queue and any(is_borrowing_with(queue.node, fr, 0) for fr in request.contested):
            yield from request.eligible(queue, others)


def _fits(request: PreemptionContext) -> bool:
    """Report whether the Workload fits, with its own usage removed for the test."""
    snapshot = request.snapshot
    snapshot.remove_usage(request.queue, request.usage)
    fits = request.fits(may_borrow=True)
    snapshot.add_usage(request.queue, request.usage)
    return fits


def _first_rule(
    request: PreemptionContext, candidates: Sequence[AdmittedWorkload], strategy: FairSharingStrategy
) -> tuple[bool, list[PreemptionTarget], list[AdmittedWorkload]]:
    """Apply S2-a, or the configured rule. Return whether it fits, the targets, and the candidates left for S2-b."""
    order = _TargetOrder(request, candidates, strategy)
    entitled = not any(is_borrowing_with(request.queue.node, fr, 0) for fr in request.contested)
    targets: list[PreemptionTarget] = []
    rest: list[AdmittedWorkload] = []
    while (queue := order.next_queue()) is not None:
        if queue is request.queue or entitled:
            own = queue is request.queue
            reason = PreemptionReason.IN_CLUSTER_QUEUE if own else PreemptionReason.IN_COHORT_RECLAMATION
            taken: AdmittedWorkload | None = order.pop(queue)
        else:
            reason = PreemptionReason.IN_COHORT_FAIR_SHARING
            taken = _take_fairly(request, order, queue, rest)
        if taken is not None:
            request.snapshot.remove_usage(taken.queue, taken.usage)
            targets.append(PreemptionTarget(taken, reason))
            if _fits(request):
                return True, targets, []
    return False, targets, rest


def _take_fairly(
    request: PreemptionContext, order: "_TargetOrder", queue: ClusterQueue, rest: list[AdmittedWorkload]
) -> AdmittedWorkload | None:
    """Return the first candidate of a queue that the rule allows; earlier ones are left for S2-b."""
    ours, theirs = order.branches(queue)
    our_share, before = order.share(ours), order.share(theirs)
    if order.strategy is FairSharingStrategy.INITIAL_SHARE:
        if compare(our_share, before) < 0:
            return order.pop(queue)
        order.drop(queue)  # independent of the candidate
        return None
    hopeless = math.isinf(our_share.weighted) and not math.isinf(before.weighted)
    while order.has_workload(queue):
        candidate = order.pop(queue)
        if not hopeless and compare(our_share, _share_without(request, order, theirs, candidate)) <= 0:
            return candidate
        rest.append(candidate)
    return None


def _share_without(
    request: PreemptionContext, order: "_TargetOrder", branch: QuotaNode, candidate: AdmittedWorkload
) -> Share:
    """Return a branch's share without one of its Workloads."""
    snapshot = request.snapshot
    snapshot.remove_usage(candidate.queue, candidate.usage)
    share = order.share(branch)
    snapshot.add_usage(candidate.queue, candidate.usage)
    return share


def _second_rule(
    request: PreemptionContext, rest: Sequence[AdmittedWorkload], targets: list[PreemptionTarget]
) -> tuple[bool, list[PreemptionTarget]]:
    """Apply S2-b: at most one candidate of each queue."""
    order = _TargetOrder(request, rest)
    while (queue := order.next_queue()) is not None:
        ours, theirs = order.branches(queue)
        candidate = order.pop(queue)
        if compare(order.share(ours), order.share(theirs)) < 0:
            request.snapshot.remove_usage(candidate.queue, candidate.usage)
            targets.append(PreemptionTarget(candidate, PreemptionReason.IN_COHORT_FAIR_SHARING))
            if _fits(request):
                return True, targets
        order.drop(queue)
    return False, targets


class _TargetOrder:
    """Chooses the next queue to preempt in: at each level of the tree the child with the highest share."""

    def __init__(
        self,
        request: PreemptionContext,
        candidates: Sequence[AdmittedWorkload],
        strategy: FairSharingStrategy = FairSharingStrategy.INITIAL_SHARE,
    ) -> None:
        self.strategy = strategy
        self._request = request
        self._left: dict[QuotaNode, list[AdmittedWorkload]] = {}
        for candidate in reversed(candidates):
            self._left.setdefault(candidate.queue.node, []).append(candidate)
        #: Nodes without further candidates.
        self._pruned: dict[QuotaNode, None] = {}
        self._home = dict.fromkeys(request.queue.node.path)

    def share(self, node: QuotaNode) -> Share:
        """Return a node's current share."""
        return share_of(node, self._request.snapshot.names)

    def has_workload(self, queue: ClusterQueue) -> bool:
        """Report whether the queue has candidates left."""
        return bool(self._left.get(queue.node))

    def pop(self, queue: ClusterQueue) -> AdmittedWorkload:
        """Return and remove the queue's next candidate."""
        return self._left[queue.node].pop()

    def drop(self, queue: ClusterQueue) -> None:
        """Exclude a queue from now on."""
        self._pruned[queue.node] = None

    def branches(self, queue: ClusterQueue) -> tuple[QuotaNode, QuotaNode]:
        """Return the branches of the preemptor and of the queue below their lowest common Cohort."""
        ours, theirs = self._request.queue.node.path, queue.node.path
        level = 0
        while ours[level] is theirs[level]:
            level += 1
        return ours[level], theirs[level]

    def next_queue(self) -> ClusterQueue | None:
        """Return the next queue; None if there is none."""
        root = self._request.queue.node.path[0]
        if root is self._request.queue.node:
            alone = self._request.queue
            return alone if self.has_workload(alone) and root not in self._pruned else None
        while root not in self._pruned:
            found = self._descend(root)
            if found is not None:
                return found
        return None

    def _descend(self, root: QuotaNode) -> ClusterQueue | None:
        """Walk down to the child with the highest share, level by level; None if a dead end was pruned instead."""
        queue_of = self._request.snapshot.queue_of
        cohort = root
        while True:
            best_queue, queue_share = self._best_queue(cohort)
            best_cohort, cohort_share = self._best_cohort(cohort)
            if best_queue is None and best_cohort is None:
                self._pruned[cohort] = None
                return None
            if best_cohort is None or (best_queue is not None and compare(cohort_share, queue_share) < 0):
                assert best_queue is not None
                return queue_of[best_queue]
            cohort = best_cohort

    def _best_queue(self, cohort: QuotaNode) -> tuple[QuotaNode | None, Share]:
        best: QuotaNode | None = None
        best_share = LOWEST
        own = self._request.queue.node
        order = self._request.order
        for node in self._children(cohort, queues=True):
            share = self.share(node)
            if not self._left.get(node) or (not share.is_borrowing and node is not own):
                self._pruned[node] = None
                continue
            relation = compare(share, best_share)
            if relation > 0:
                best, best_share = node, share
            elif relation == 0 and best is not None and order(self._left[node][-1]) < order(self._left[best][-1]):
                best = node
        return best, best_share

    def _best_cohort(self, cohort: QuotaNode) -> tuple[QuotaNode | None, Share]:
        best: QuotaNode | None = None
        best_share = LOWEST
        for node in self._children(cohort, queues=False):
            share = self.share(node)
            if not share.is_borrowing and node not in self._home:
                self._pruned[node] = None
            elif compare(share, best_share) >= 0:
                best, best_share = node, share
        return best, best_share

    def _children(self, cohort: QuotaNode, *, queues: bool) -> list[QuotaNode]:
        queue_of = self._request.snapshot.queue_of
        return [n for n in cohort.children.values() if n not in self._pruned and (n in queue_of) is queues]
