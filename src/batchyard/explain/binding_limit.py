"""Finds the limit that rejects an amount, by a walk up the cohort tree that follows the quota arithmetic."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from batchyard.explain.flavor_breakdown import FlavorResourceRequest, FlavorVerdict, PodSetVerdicts
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.flavor_requests import TAINT, rule_of
from batchyard.scheduling.granular_mode import PreemptionPossibility
from batchyard.scheduling.quota import QuotaNode, available

NOMINAL: Final = "nominal"
BORROWING: Final = "borrowing"
LENDING: Final = "lending"
MAXIMUM: Final = "maximum"


class LimitingNode(NamedTuple):
    """The binding limit, the node that defines it, and the missing amount."""

    limit: str
    node: QuotaNode
    missing: int


class UnlentQuota(NamedTuple):
    """Unused quota that a node does not lend."""

    node: QuotaNode
    amount: int


def bound_of(node: QuotaNode, fr: int, amount: int) -> LimitingNode:
    """Return the limit that rejects an amount; call only if the amount is not available.

    The walk goes up from the node: the first borrowing limit that allows less than is available above it binds. If
    there is none, all quota of the tree is used or not lent. Then a lending limit binds if lending it would suffice.
    Otherwise the nominal quota binds: of the node if it uses all of its own, else of the root.
    """
    if amount > node.potential[fr]:
        return LimitingNode(MAXIMUM, _capping(node, fr), amount - node.potential[fr])
    missing = amount - available(node, fr)
    for step in reversed(node.path[1:]):
        ceiling = step.borrowing_ceiling[fr]
        if ceiling is not None and ceiling - max(0, step.usage[fr] - step.local[fr]) < _free(step.parent, fr):
            return LimitingNode(BORROWING, step, missing)
    kept = unlent_quota(node, fr)
    if kept and sum(each.amount for each in kept) >= missing:
        return LimitingNode(LENDING, kept[0].node, missing)
    is_own = node.parent is None or node.usage[fr] >= node.subtree[fr]
    return LimitingNode(NOMINAL, node if is_own else node.path[0], missing)


def unlent_quota(node: QuotaNode, fr: int) -> list[UnlentQuota]:
    """Return unused quota that other nodes of the tree do not lend, largest first."""
    found = [
        UnlentQuota(each, each.local[fr] - each.usage[fr])
        for each in _others(node)
        if each.lending_limit.get(fr) is not None
    ]
    found = [each for each in found if each.amount > 0]
    return sorted(found, key=lambda each: (-each.amount, each.node.name))


def _others(node: QuotaNode) -> Iterator[QuotaNode]:
    """Yield all nodes of the tree except those on the path from the root to this node."""
    own = dict.fromkeys(node.path)
    nodes = [node.path[0]]
    for step in nodes:
        nodes.extend(step.children.values())
        if step not in own:
            yield step


def _free(node: QuotaNode | None, fr: int) -> int:
    return 0 if node is None else available(node, fr)


def _capping(node: QuotaNode, fr: int) -> QuotaNode:
    """Return the node that caps the potential: the lowest one whose borrowing limit reduces it, or the root."""
    for step in reversed(node.path[1:]):
        limit = step.borrowing_limit.get(fr)
        above = step.parent.potential[fr] if step.parent is not None else 0
        if limit is not None and step.subtree[fr] + limit < step.local[fr] + above:
            return step
    return node.path[0] if node.parent is not None else node


# --- binding ---
#
# The one limit that keeps a Workload pending: that of the flavor that is nearest to fitting.
#
# In each resource group, the flavor with the smallest obstacle counts. Of several groups, the one with the largest
# obstacle counts, as in the reason of the QuotaReserved condition.


UNCOVERED: Final = "misconfigured"


class Shortage(NamedTuple):
    """Why a pod set does not fit, and in which flavor."""

    pod_set: str
    #: The rule that excludes the flavor, or the limit that binds.
    limit: str
    look: FlavorVerdict | None
    ask: FlavorResourceRequest | None
    bound: LimitingNode | None
    #: A resource that the ClusterQueue does not cover.
    unavailable: str = ""


def shortage_of(looks: Sequence[PodSetVerdicts], queue: ClusterQueue) -> Shortage | None:
    """Return the shortage that keeps a Workload pending; None if it fits."""
    found: list[tuple[tuple[int, float], Shortage]] = []
    for pod_set in looks:
        if pod_set.unavailable:
            return Shortage(pod_set.name, UNCOVERED, None, None, None, pod_set.unavailable)
        for group in pod_set.groups():
            nearest = min(group, key=_distance)
            if not nearest.fits:
                found.append((_distance(nearest), _shortage(pod_set.name, nearest, queue)))
    return max(found, key=lambda each: each[0])[1] if found else None


def _distance(look: FlavorVerdict) -> tuple[int, float]:
    """Rank how far a flavor is from fitting: the kind of obstacle, then the missing share of the request."""
    lack = max((ask.missing / ask.total for ask in look.asks if ask.total), default=0.0)
    if look.fits:
        return 0, 0.0
    if look.obstacle:
        return 4 if rule_of(look.obstacle) == TAINT else 5, lack
    if look.exceeds:
        return 3, lack
    return 1 if look.possibility in {PreemptionPossibility.PREEMPT, PreemptionPossibility.RECLAIM} else 2, lack


def _shortage(pod_set: str, look: FlavorVerdict, queue: ClusterQueue) -> Shortage:
    if look.obstacle:
        return Shortage(pod_set, rule_of(look.obstacle), look, None, None)
    short = [ask for ask in look.asks if ask.missing]
    ask = max(short, key=lambda each: (each.total > each.most, each.missing / each.total))
    bound = bound_of(queue.node, ask.fr, ask.total)
    return Shortage(pod_set, bound.limit, look, ask, bound)
