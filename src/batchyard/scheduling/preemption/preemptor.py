"""Classical preemption, by priority and position in the cohort tree; and `Preemptor`, which caches found victims.

Candidates come from three sources: the preemptor's own ClusterQueue; subtrees over which it has a hierarchical
advantage (it may reclaim their quota regardless of borrowing rules); and the other subtrees. Candidates are preempted
one by one, in order, until the Workload fits. Then unneeded targets are removed. Source: Kueue's
pkg/scheduler/preemption (classicalPreemptions) and preemption/classical.
"""

from collections.abc import Sequence
from functools import partial

from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling.cluster_queue import PODS, PREEMPTION_RANK, AdmittedWorkload, ClusterQueue
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules
from batchyard.scheduling.fair_sharing.admission_fair_sharing import order_victims
from batchyard.scheduling.flavor_assigner import Assignment
from batchyard.scheduling.messages import PreemptionReason
from batchyard.scheduling.preemption import fair
from batchyard.scheduling.preemption.context import (
    PreemptionContext,
    PreemptionTarget,
    TopologyFit,
    add_rule_targets,
    config_of,
    fill_back_workloads,
)
from batchyard.scheduling.preemption.shrinking import releasable_part, shrink_where_possible
from batchyard.scheduling.quota import (
    HOPELESS,
    PREEMPT,
    RECLAIM,
    GranularMode,
    QuotaNode,
    Usage,
    fits_in_quota,
    is_within_nominal,
    lowest_fitting_height,
    request_to_parent,
)
from batchyard.scheduling.snapshot import Snapshot


def find_targets(context: PreemptionContext) -> list[PreemptionTarget]:
    """Return the Workloads to preempt by classical preemption; empty if it cannot free enough quota."""
    candidates = PreemptionCandidates(context)
    lists = [candidates.own_queue_candidates, candidates.priority_candidates, candidates.hierarchical_candidates]
    if not any(lists) or not context.could_ever_fit(*lists):
        configs = context.snapshot.preemption.configs
        if not configs or config_of(context.snapshot, context.queue) is None:
            return []
    ordered_candidates = candidates.ordered_candidates()
    for may_borrow in _borrowing_attempts(context, candidates):
        with context.snapshot.what_if():
            targets = _select_targets(context, candidates, ordered_candidates, may_borrow=may_borrow)
        if targets:
            return targets
    return []


class PreemptionCandidates:
    """The Workloads that a preemptor might preempt, grouped by the rule that makes them eligible."""

    __slots__ = (
        "_context",
        "_lowest_common_cohort",
        "_queues_with_advantage",
        "hierarchical_candidates",
        "own_queue_candidates",
        "priority_candidates",
        "protected_queues",
    )

    def __init__(self, context: PreemptionContext) -> None:
        self._context = context
        #: The lowest Cohort in common with the preemptor, by ClusterQueue.
        self._lowest_common_cohort: dict[ClusterQueue, QuotaNode] = {}
        self._queues_with_advantage: dict[ClusterQueue, None] = {}
        #: The queues that their nominal quota protects since a moment of the current attempt of the search.
        self.protected_queues: dict[ClusterQueue, None] = {}
        self.hierarchical_candidates: list[AdmittedWorkload] = []
        self.priority_candidates: list[AdmittedWorkload] = []
        preemption = context.queue.view.preemption
        self.own_queue_candidates = context.eligible_workloads(context.queue, preemption.within_cluster_queue)
        if context.queue.node.parent is not None and preemption.reclaim_within_cohort != "Never":
            self._collect_from_cohorts(
                only_with_advantage=not preemption.borrow_within_cohort and not _is_under_nominal(context)
            )

    def ordered_candidates(self) -> list[AdmittedWorkload]:
        """Return all candidates in order: evicted ones first, then hierarchical, priority and own-queue candidates."""
        context = self._context
        usage_of = context.snapshot.usage_of
        if usage_of is None and context.prefers_cheap_victims:
            groups = (self.hierarchical_candidates, self.priority_candidates, self.own_queue_candidates)
            candidate_lists = [sorted(each, key=context.order_key) for each in groups]
        elif usage_of is None:
            candidate_lists = [
                sorted(self.hierarchical_candidates, key=PREEMPTION_RANK),
                sorted(self.priority_candidates, key=PREEMPTION_RANK),
                self.own_queue_candidates,
            ]
        else:
            groups = (self.hierarchical_candidates, self.priority_candidates, self.own_queue_candidates)
            candidate_lists = [order_victims(each, context.queue, usage_of) for each in groups]
        candidates = [candidate for group in candidate_lists for candidate in group]
        if any(candidate.evicted for candidate in candidates):
            candidates.sort(key=lambda candidate: not candidate.evicted)
        return candidates

    def without_excluded(self, workloads: list[AdmittedWorkload], *, may_borrow: bool) -> list[AdmittedWorkload]:
        """Return the candidates without those that a preemptor which borrows may not preempt, whatever they use."""
        if not may_borrow or self._context.queue.view.preemption.borrow_within_cohort:
            return workloads
        queues = {**self._queues_with_advantage, self._context.queue: None}
        return [candidate for candidate in workloads if candidate.queue in queues]

    def may_preempt(self, candidate: AdmittedWorkload, *, may_borrow: bool) -> bool:
        """Return whether a candidate may still be preempted in the current snapshot.

        The snapshot must exclude the earlier targets. A candidate of another queue is protected if that queue, or a
        Cohort between it and the lowest common Cohort, is within its nominal quota. With `may_borrow`,
        `borrowWithinCohort` may also protect the candidate.
        """
        queue = candidate.queue
        if queue is self._context.queue:
            return True
        if may_borrow and queue not in self._queues_with_advantage and not self._may_preempt_while_borrowing(candidate):
            return False
        return not self._is_protected(queue)

    def _is_protected(self, queue: ClusterQueue) -> bool:
        """Return whether another queue, or a Cohort between it and the lowest common Cohort, is within nominal quota.

        During an attempt of the search, usage only decreases, so a protected queue stays protected.
        """
        protected_queues = self.protected_queues
        if queue in protected_queues:
            return True
        contested_frs = self._context.contested_frs
        for node in queue.node.path[len(self._lowest_common_cohort[queue].path) :]:
            if is_within_nominal(node, contested_frs):
                protected_queues[queue] = None
                return True
        return False

    def reason(self, candidate: AdmittedWorkload) -> str:
        """Return the reason of the Preempted condition for the preemption of a candidate."""
        queue = candidate.queue
        if queue is self._context.queue:
            return PreemptionReason.IN_CLUSTER_QUEUE
        if queue in self._queues_with_advantage or not self._may_preempt_while_borrowing(candidate):
            return PreemptionReason.IN_COHORT_RECLAMATION
        return PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING

    def _may_preempt_while_borrowing(self, candidate: AdmittedWorkload) -> bool:
        preemption = self._context.queue.view.preemption
        if not preemption.borrow_within_cohort or candidate.priority >= self._context.workload.priority:
            return False
        priority_threshold = preemption.priority_threshold_max
        return priority_threshold is None or candidate.priority <= priority_threshold

    def _collect_from_cohorts(self, *, only_with_advantage: bool) -> None:
        """Collect the candidates in other queues, from the preemptor's parent Cohort up to the root Cohort.

        From the first subtree with enough nominal quota for the request, the preemptor has a hierarchical advantage. A
        preemptor that already borrows and may not preempt while borrowing has candidates only with this advantage.
        """
        previous_node, remaining_request = self._context.queue.node, self._context.usage
        has_advantage = fits_in_quota(previous_node, remaining_request)
        for cohort in previous_node.path[-2::-1]:
            if has_advantage or not only_with_advantage:
                self._collect_candidates_below(cohort, previous_node, has_advantage=has_advantage)
            if not has_advantage and cohort.parent is not None:
                remaining_request = request_to_parent(previous_node, remaining_request)
                has_advantage = fits_in_quota(cohort, remaining_request)
            previous_node = cohort

    def _collect_candidates_below(self, top_node: QuotaNode, skipped_branch: QuotaNode, *, has_advantage: bool) -> None:
        context = self._context
        reclaim_policy = context.queue.view.preemption.reclaim_within_cohort
        queue_of, contested_frs = context.snapshot.queue_of, context.contested_frs
        collected_candidates = self.hierarchical_candidates if has_advantage else self.priority_candidates
        nodes = [top_node]
        for node in nodes:
            for child in node.children.values():
                if child is skipped_branch or is_within_nominal(child, contested_frs):
                    continue
                queue = queue_of.get(child)
                if queue is None:
                    nodes.append(child)
                    continue
                collected_candidates += context.eligible_workloads(queue, reclaim_policy)
                self._lowest_common_cohort[queue] = top_node
                if has_advantage:
                    self._queues_with_advantage[queue] = None


def _borrowing_attempts(context: PreemptionContext, candidates: PreemptionCandidates) -> tuple[bool, ...]:
    """Return whether the preemptor may borrow, for each attempt of the search, in order.

    Candidates above the priority threshold are eligible only if the preemptor does not borrow. With borrowing there are
    fewer candidates; without borrowing there is less quota.
    """
    may_not_borrow = not context.queue.view.preemption.borrow_within_cohort
    has_other_candidates = bool(candidates.hierarchical_candidates or candidates.priority_candidates)
    if not has_other_candidates or (may_not_borrow and not _is_under_nominal(context)):
        return (True,)
    if may_not_borrow and not candidates.hierarchical_candidates:
        return (False, True)
    return (True, False)


def _is_under_nominal(context: PreemptionContext) -> bool:
    usage, quota = context.queue.node.usage, context.queue.node.subtree_quota
    for fr in context.contested_frs:  # noqa: SIM110 - faster, and called for every pending head
        if usage[fr] >= quota[fr]:
            return False
    return True


def _select_targets(
    context: PreemptionContext, candidates: PreemptionCandidates, workloads: list[AdmittedWorkload], *, may_borrow: bool
) -> list[PreemptionTarget]:
    targets: list[PreemptionTarget] = []
    protected_queues = candidates.protected_queues
    protected_queues.clear()
    for candidate in candidates.without_excluded(workloads, may_borrow=may_borrow):
        if candidate.queue in protected_queues or not candidates.may_preempt(candidate, may_borrow=may_borrow):
            continue
        context.snapshot.release(candidate)
        targets.append(PreemptionTarget(candidate, candidates.reason(candidate)))
        if context.fits(may_borrow=may_borrow):
            return fill_back_workloads(context, targets, may_borrow=may_borrow)
    fits_in_quota = partial(context.fits_in_quota, may_borrow=may_borrow)
    if add_rule_targets(context, targets, partial(context.fits, may_borrow=may_borrow), fits_in_quota):
        return fill_back_workloads(context, targets, may_borrow=may_borrow)
    return []


def _offered_parts(context: PreemptionContext, may_borrow: bool) -> list[PreemptionTarget]:
    """Return the parts of Workloads that the preemptor may have released, the best victims first."""
    candidates = PreemptionCandidates(context)
    offered: list[PreemptionTarget] = []
    with context.snapshot.what_if():
        for candidate in candidates.ordered_candidates():
            part = releasable_part(candidate, context.snapshot)
            if part is not None and candidates.may_preempt(candidate, may_borrow=may_borrow):
                context.snapshot.release(part)
                offered.append(PreemptionTarget(part, candidates.reason(candidate)))
    return offered


# The search for victims for one pending Workload. Results are cached, because the same quota is requested repeatedly.


class Preemptor:
    """Finds the Workloads to preempt for one pending Workload; caches results, so the snapshot must stay unchanged."""

    __slots__ = ("_queue", "_rules", "_snapshot", "_strategies", "_targets_cache", "_workload")

    def __init__(
        self,
        workload: WorkloadView,
        queue: ClusterQueue,
        snapshot: Snapshot,
        strategies: Sequence[fair.FairSharingStrategy],
        rules: DecisionRules = DEFAULT_RULES,
    ) -> None:
        """Set the preemptor, its ClusterQueue and the fair sharing strategies (empty: classical preemption)."""
        self._rules = rules
        self._workload = workload
        self._queue = queue
        self._snapshot = snapshot
        self._strategies = strategies
        self._targets_cache: dict[tuple[Usage, tuple[int, ...]], list[PreemptionTarget]] = {}

    def targets_for(self, assignment: Assignment, topology: TopologyFit | None = None) -> list[PreemptionTarget]:
        """Return the Workloads to preempt for a flavor assignment; empty if preemption cannot free enough quota.

        With `topology`, it must also free topology domains. As in Kueue 0.19, the resource `pods` is ignored even if
        the queue has quota for it; since 0.20, it counts.
        """
        names, counts_pods = self._snapshot.flavor_resource_names, self._rules.is_current
        usage = [
            (fr, amount) for fr, amount in assignment.usage if amount != 0 and (counts_pods or names[fr][1] != PODS)
        ]
        return self.targets_for_usage(tuple(usage), assignment.preempting_frs, topology)

    def targets_for_usage(
        self, usage: Usage, contested_frs: tuple[int, ...], topology: TopologyFit | None = None
    ) -> list[PreemptionTarget]:
        """Return the Workloads to preempt for requested amounts, given the flavor-resources with too little quota."""
        if topology is not None:
            return self._find_targets(usage, contested_frs, topology)
        return self._find_targets_cached(usage, contested_frs)

    def simulate_preemption(self, fr: int, amount: int, borrowing_height: int) -> GranularMode:
        """Return how preemption could free an amount: in the preemptor's queue, in other queues, or not at all.

        The result also encodes the borrowing height after the preemption, or `borrowing_height` if preemption cannot
        free the amount. `fr` is the id of the flavor-resource.
        """
        node = self._queue.node
        targets = self._find_targets_cached(((fr, amount),), (fr,))
        if not targets:
            return HOPELESS - borrowing_height
        with self._snapshot.what_if():
            for target in targets:
                self._snapshot.remove_usage(target.workload.queue, target.workload.usage)
            borrowing_height, _ = lowest_fitting_height(node, fr, amount)
        is_in_own_queue = any(target.workload.queue is self._queue for target in targets)
        return (PREEMPT if is_in_own_queue else RECLAIM) - borrowing_height

    def _find_targets_cached(self, usage: Usage, contested_frs: tuple[int, ...]) -> list[PreemptionTarget]:
        cache_key = (usage, contested_frs)
        targets = self._targets_cache.get(cache_key)
        if targets is None:
            targets = self._targets_cache[cache_key] = self._find_targets(usage, contested_frs, None)
        return targets

    def _find_targets(
        self, usage: Usage, contested_frs: tuple[int, ...], topology: TopologyFit | None
    ) -> list[PreemptionTarget]:
        context = PreemptionContext(self._workload, self._queue, self._snapshot, usage, contested_frs, topology)
        strategies = self._strategies
        if not strategies:
            targets = find_targets(context)
        else:
            targets = fair.find_targets(context, strategies, reevaluates=self._rules.reevaluates_candidates)
        if not self._rules.partial_preemption:
            return targets
        offer = partial(fair.offered_parts, context, strategies) if strategies else partial(_offered_parts, context)
        return shrink_where_possible(context, targets, offer)
