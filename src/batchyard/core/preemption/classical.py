"""Preemption by priority and by place in the cohort tree.

Candidates come from three places: the own ClusterQueue; subtrees whose quota the preemptor is nearer to (a hierarchical
advantage: any of them may be reclaimed, whatever the borrowing rules); and the rest of the tree. They are taken one by
one, in order, until the Workload fits; then those that turn out not to matter are spared.
Source: Kueue's pkg/scheduler/preemption (classicalPreemptions) and preemption/classical.
"""

from enum import Enum
from typing import NamedTuple

from batchyard.core.preemption.request import Request, Target, fill_back, uses_any
from batchyard.core.quota import QuotaNode, fits_in_quota, is_within_nominal
from batchyard.core.reasons import PreemptionReason
from batchyard.core.snapshot import Admitted


class Variant(Enum):
    """On what ground a candidate may be preempted; the value is the reason it is told."""

    WITHIN_QUEUE = 1
    HIERARCHICAL = 2
    #: Only if the preemptor does not borrow afterwards.
    WITHOUT_BORROWING = 3
    WHILE_BORROWING = 4

    @property
    def reason(self) -> str:
        """The reason of the Preempted condition."""
        if self is Variant.WITHIN_QUEUE:
            return PreemptionReason.IN_CLUSTER_QUEUE
        if self is Variant.WHILE_BORROWING:
            return PreemptionReason.IN_COHORT_RECLAIM_WHILE_BORROWING
        return PreemptionReason.IN_COHORT_RECLAMATION


class Candidate(NamedTuple):
    """A Workload that may be preempted; `common` is the Cohort it shares with the preemptor."""

    workload: Admitted
    variant: Variant
    common: QuotaNode | None


class Candidates(NamedTuple):
    """All candidates in the order in which they go, and which kinds there are."""

    ordered: list[Candidate]
    from_others: bool
    hierarchical: bool


def find_targets(request: Request) -> list[Target]:
    """The Workloads to preempt, or none if that would not make room."""
    candidates = _collect(request)
    if not candidates.ordered or not request.could_ever_fit(c.workload for c in candidates.ordered):
        return []
    for may_borrow in _attempts(request, candidates):
        with request.snapshot.what_if():
            targets = _take(request, candidates.ordered, may_borrow=may_borrow)
        if targets:
            return targets
    return []


def _attempts(request: Request, candidates: Candidates) -> tuple[bool, ...]:
    """Whether borrowing is allowed, attempt by attempt.

    Candidates above the priority threshold may go only if the preemptor does not borrow then: with borrowing there
    are fewer candidates, without it less room.
    """
    forbidden = not request.queue.view.preemption.borrow_within_cohort
    if not candidates.from_others or (forbidden and not _is_under_nominal(request)):
        return (True,)
    if forbidden and not candidates.hierarchical:
        return (False, True)
    return (True, False)


def _is_under_nominal(request: Request) -> bool:
    node = request.queue.node
    return all(node.usage[fr] < node.subtree[fr] for fr in request.contested)


def _take(request: Request, candidates: list[Candidate], *, may_borrow: bool) -> list[Target]:
    """Take candidates until the Workload fits, then spare what can be; none if it never fits."""
    targets: list[Target] = []
    for candidate in candidates:
        if not _is_still_valid(request, candidate, may_borrow=may_borrow):
            continue
        request.snapshot.remove_workload(candidate.workload)
        targets.append(Target(candidate.workload, candidate.variant.reason))
        if request.fits(may_borrow=may_borrow):
            return fill_back(request, targets, may_borrow=may_borrow)
    return []


def _is_still_valid(request: Request, candidate: Candidate, *, may_borrow: bool) -> bool:
    """Others taken before may leave a queue, or a Cohort on the way to it, within its quota: then it is spared."""
    queue = candidate.workload.queue
    if queue is request.queue:
        return True
    if may_borrow and candidate.variant is Variant.WITHOUT_BORROWING:
        return False
    for node in reversed(queue.node.path):
        if node is candidate.common:
            break
        if is_within_nominal(node, request.contested):
            return False
    return True


def _collect(request: Request) -> Candidates:
    """All candidates: those evicted already first; among equals other trees before the own queue."""
    own = _own(request)
    hierarchical: list[Candidate] = []
    by_priority: list[Candidate] = []
    if request.queue.node.parent is not None and request.queue.view.preemption.reclaim_within_cohort != "Never":
        _walk_up(request, hierarchical, by_priority)
    lists = [sorted(found, key=lambda c: request.order(c.workload)) for found in (hierarchical, by_priority, own)]
    ordered = [c for found in lists for c in found if c.workload.evicted]
    ordered += [c for found in lists for c in found if not c.workload.evicted]
    return Candidates(ordered, bool(hierarchical or by_priority), bool(hierarchical))


def _own(request: Request) -> list[Candidate]:
    policy = request.queue.view.preemption.within_cluster_queue
    if policy == "Never":
        return []
    return [
        Candidate(workload, Variant.WITHIN_QUEUE, None)
        for workload in request.queue.workloads.values()
        if request.may_preempt(workload, policy) and uses_any(workload, request.contested)
    ]


def _walk_up(request: Request, hierarchical: list[Candidate], by_priority: list[Candidate]) -> None:
    """Collect from ever larger subtrees; once one has quota for the request, the preemptor has the advantage."""
    advantage, remaining = fits_in_quota(request.queue.node, request.usage)
    previous: QuotaNode | None = request.queue.node
    for cohort in reversed(request.queue.node.path[:-1]):
        found = hierarchical if advantage else by_priority
        _collect_below(request, cohort, previous, found, has_advantage=advantage)
        fits, remaining = fits_in_quota(cohort, remaining)
        advantage = advantage or fits
        previous = cohort


def _collect_below(
    request: Request, top: QuotaNode, skip: QuotaNode | None, found: list[Candidate], *, has_advantage: bool
) -> None:
    """Candidates of a subtree without one of its branches; branches within their quota are left alone."""
    queues = request.snapshot.queue_of
    nodes = [top]
    for node in nodes:
        for child in node.children.values():
            if child is skip or is_within_nominal(child, request.contested):
                continue
            queue = queues.get(child)
            if queue is None:
                nodes.append(child)
                continue
            for workload in queue.workloads.values():
                variant = _variant(request, workload, has_advantage=has_advantage)
                if variant is not None:
                    found.append(Candidate(workload, variant, top))


def _variant(request: Request, candidate: Admitted, *, has_advantage: bool) -> Variant | None:
    """On what ground a Workload of another queue may be preempted; None: it may not."""
    preemption = request.queue.view.preemption
    if not uses_any(candidate, request.contested):
        return None
    if not request.may_preempt(candidate, preemption.reclaim_within_cohort):
        return None
    if has_advantage:
        return Variant.HIERARCHICAL
    if not preemption.borrow_within_cohort or candidate.priority >= request.workload.priority:
        return Variant.WITHOUT_BORROWING
    threshold = preemption.priority_threshold_max
    if threshold is not None and candidate.priority > threshold:
        return Variant.WITHOUT_BORROWING
    return Variant.WHILE_BORROWING
