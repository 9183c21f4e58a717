"""Classical preemption: by priority and by position in the cohort tree.

Candidates come from three sources: the own ClusterQueue; subtrees over which the preemptor has a hierarchical
advantage, so that it may reclaim from any of them regardless of borrowing rules; and the rest of the tree. They are
preempted one by one, in order, until the Workload fits. Then unneeded targets are removed.
Source: Kueue's pkg/scheduler/preemption (classicalPreemptions) and preemption/classical.
"""

from collections.abc import Sequence

from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling.cluster_queue import PODS, RANK, AdmittedWorkload, ClusterQueue
from batchyard.scheduling.flavor_assigner import Assignment
from batchyard.scheduling.messages import PreemptionReason
from batchyard.scheduling.preemption import fair
from batchyard.scheduling.preemption.context import PreemptionContext, PreemptionTarget, fill_back_workloads
from batchyard.scheduling.quota import (
    HOPELESS,
    PREEMPT,
    RECLAIM,
    GranularMode,
    QuotaNode,
    Usage,
    fits_in_quota,
    is_within_nominal,
    left_to_ask,
    lowest_fitting_height,
)
from batchyard.scheduling.snapshot import Snapshot


def find_targets(request: PreemptionContext) -> list[PreemptionTarget]:
    """Return the Workloads to preempt; empty if preemption cannot free enough quota."""
    candidates = PreemptionCandidates(request)
    found = [candidates.own, candidates.by_priority, candidates.hierarchical]
    if not any(found) or not request.could_ever_fit(*found):
        return []
    ordered = candidates.ordered()
    for may_borrow in _attempts(request, candidates):
        with request.snapshot.what_if():
            targets = _take(request, candidates, ordered, may_borrow=may_borrow)
        if targets:
            return targets
    return []


class PreemptionCandidates:
    """All preemption candidates, grouped by why they are eligible."""

    __slots__ = ("_common", "_request", "_with_advantage", "by_priority", "hierarchical", "own")

    def __init__(self, request: PreemptionContext) -> None:
        self._request = request
        #: By ClusterQueue, the lowest Cohort in common with the preemptor.
        self._common: dict[ClusterQueue, QuotaNode] = {}
        self._with_advantage: dict[ClusterQueue, None] = {}
        self.hierarchical: list[AdmittedWorkload] = []
        self.by_priority: list[AdmittedWorkload] = []
        preemption = request.queue.view.preemption
        self.own = request.eligible(request.queue, preemption.within_cluster_queue)
        if request.queue.node.parent is not None and preemption.reclaim_within_cohort != "Never":
            self._walk_up(only_with_advantage=not preemption.borrow_within_cohort and not _is_under_nominal(request))

    def ordered(self) -> list[AdmittedWorkload]:
        """Return the candidates in preemption order: already evicted ones first, then by group."""
        lists = [sorted(self.hierarchical, key=RANK), sorted(self.by_priority, key=RANK), self.own]
        ordered = [candidate for found in lists for candidate in found]
        if any(candidate.evicted for candidate in ordered):
            ordered.sort(key=lambda candidate: not candidate.evicted)
        return ordered

    def may_go(self, candidate: AdmittedWorkload, *, may_borrow: bool) -> bool:
        """Report whether a candidate may be preempted in the current snapshot.

        It may not if earlier targets have already brought its queue, or a Cohort on its path, within quota.
        """
        request, queue = self._request, candidate.queue
        if queue is request.queue:
            return True
        if may_borrow and queue not in self._with_advantage and not self._may_go_while_borrowing(candidate):
            return False
        common = self._common[queue]
        for node in reversed(queue.node.path):
            if node is common:
                return True
            if is_within_nominal(node, request.contested):
                return False
        return True

    def reason(self, candidate: AdmittedWorkload) -> str:
        """Return the reason for the Preempted condition of a candidate."""
        queue = candidate.queue
        if queue is self._request.queue:
            return PreemptionReason.IN_CLUSTER_QUEUE
        if queue in self._with_advantage or not self._may_go_while_borrowing(candidate):
            return PreemptionReason.IN_COHORT_RECLAMATION
        return PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING

    def _may_go_while_borrowing(self, candidate: AdmittedWorkload) -> bool:
        """Report whether the preemptor may borrow while it preempts this candidate without hierarchical advantage."""
        preemption = self._request.queue.view.preemption
        if not preemption.borrow_within_cohort or candidate.priority >= self._request.workload.priority:
            return False
        threshold = preemption.priority_threshold_max
        return threshold is None or candidate.priority <= threshold

    def _walk_up(self, *, only_with_advantage: bool) -> None:
        """Collect candidates from ever larger subtrees; the first with quota for the request gives the advantage.

        A preemptor that borrows already, and may not preempt while borrowing, has candidates only with the advantage.
        """
        previous, remaining = self._request.queue.node, self._request.usage
        advantage = fits_in_quota(previous, remaining)
        for cohort in previous.path[-2::-1]:
            if advantage or not only_with_advantage:
                self._collect_below(cohort, previous, has_advantage=advantage)
            if not advantage and cohort.parent is not None:
                remaining = left_to_ask(previous, remaining)
                advantage = fits_in_quota(cohort, remaining)
            previous = cohort

    def _collect_below(self, top: QuotaNode, skip: QuotaNode, *, has_advantage: bool) -> None:
        """Collect the candidates of a subtree except one branch; branches within their quota are skipped."""
        request = self._request
        policy = request.queue.view.preemption.reclaim_within_cohort
        queue_of, contested = request.snapshot.queue_of, request.contested
        found = self.hierarchical if has_advantage else self.by_priority
        nodes = [top]
        for node in nodes:
            for child in node.children.values():
                if child is skip or is_within_nominal(child, contested):
                    continue
                queue = queue_of.get(child)
                if queue is None:
                    nodes.append(child)
                    continue
                found += request.eligible(queue, policy)
                self._common[queue] = top
                if has_advantage:
                    self._with_advantage[queue] = None


def _attempts(request: PreemptionContext, candidates: PreemptionCandidates) -> tuple[bool, ...]:
    """Return for each attempt whether borrowing is allowed.

    Candidates above the priority threshold are eligible only if the preemptor does not borrow. With borrowing there are
    fewer candidates; without it there is less quota.
    """
    forbidden = not request.queue.view.preemption.borrow_within_cohort
    from_others = bool(candidates.hierarchical or candidates.by_priority)
    if not from_others or (forbidden and not _is_under_nominal(request)):
        return (True,)
    if forbidden and not candidates.hierarchical:
        return (False, True)
    return (True, False)


def _is_under_nominal(request: PreemptionContext) -> bool:
    usage, quota = request.queue.node.usage, request.queue.node.subtree
    for fr in request.contested:  # noqa: SIM110 - faster, and called for every pending head
        if usage[fr] >= quota[fr]:
            return False
    return True


def _take(
    request: PreemptionContext, candidates: PreemptionCandidates, ordered: list[AdmittedWorkload], *, may_borrow: bool
) -> list[PreemptionTarget]:
    """Preempt candidates until the Workload fits, then remove unneeded ones; empty if it never fits."""
    targets: list[PreemptionTarget] = []
    for candidate in ordered:
        if not candidates.may_go(candidate, may_borrow=may_borrow):
            continue
        request.snapshot.remove_usage(candidate.queue, candidate.usage)
        targets.append(PreemptionTarget(candidate, candidates.reason(candidate)))
        if request.fits(may_borrow=may_borrow):
            return fill_back_workloads(request, targets, may_borrow=may_borrow)
    return []


# --- preemptor ---
#
# The search for victims of one head. Results are cached while the snapshot is unchanged, because queries repeat.


class Preemptor:
    """Finds victims for one Workload. Valid only while the snapshot does not change."""

    __slots__ = ("_found", "_queue", "_snapshot", "_strategies", "_workload")

    def __init__(
        self,
        workload: WorkloadView,
        queue: ClusterQueue,
        snapshot: Snapshot,
        strategies: Sequence[fair.FairSharingStrategy],
    ) -> None:
        """`strategies` are those of fair sharing; empty without fair sharing."""
        self._workload = workload
        self._queue = queue
        self._snapshot = snapshot
        self._strategies = strategies
        self._found: dict[tuple[Usage, tuple[int, ...]], list[PreemptionTarget]] = {}

    def targets_for(self, assignment: Assignment) -> list[PreemptionTarget]:
        """Return the Workloads to preempt for an assignment; empty if preemption cannot free enough quota.

        The pod count is left out even if a queue has quota for it, as upstream.
        """
        names = self._snapshot.names
        usage = [(fr, amount) for fr, amount in assignment.usage if amount != 0 and names[fr][1] != PODS]
        return self._targets(tuple(usage), assignment.preempting)

    def oracle(self, fr: int, amount: int, height: int) -> GranularMode:
        """Return whether and how preemption could free an amount, and the height that it would then borrow from.

        `height` is the height that the amount would borrow from at present.
        """
        node = self._queue.node
        targets = self._targets(((fr, amount),), (fr,))
        if not targets:
            return HOPELESS - height
        with self._snapshot.what_if():
            for target in targets:
                self._snapshot.remove_usage(target.workload.queue, target.workload.usage)
            height, _ = lowest_fitting_height(node, fr, amount)
        own = any(target.workload.queue is self._queue for target in targets)
        return (PREEMPT if own else RECLAIM) - height

    def _targets(self, usage: Usage, contested: tuple[int, ...]) -> list[PreemptionTarget]:
        question = (usage, contested)
        known = self._found.get(question)
        if known is None:
            request = PreemptionContext(self._workload, self._queue, self._snapshot, usage, contested)
            fairly = self._strategies
            known = fair.find_targets(request, fairly) if fairly else find_targets(request)
            self._found[question] = known
        return known
