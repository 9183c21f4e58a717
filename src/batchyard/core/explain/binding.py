"""Which limit keeps a Workload waiting: exactly one, that of the flavor in which it is nearest to fitting.

In each resource group that flavor counts in which the least stands against it; of several groups the one in which the
most does, as for the reason of the QuotaReserved condition.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from batchyard.core.explain.limits import Bound, bound_of
from batchyard.core.explain.looks import Ask, Look, PodSetLooks
from batchyard.core.matching import TAINT, rule_of
from batchyard.core.quality import Possibility
from batchyard.core.queue import ClusterQueue

UNCOVERED: Final = "misconfigured"


class Shortage(NamedTuple):
    """What stands in the way, and where."""

    pod_set: str
    #: The rule that rules the flavor out, or the limit that binds.
    limit: str
    look: Look | None
    ask: Ask | None
    bound: Bound | None
    #: A resource that the ClusterQueue does not have.
    unavailable: str = ""


def shortage_of(looks: Sequence[PodSetLooks], queue: ClusterQueue) -> Shortage | None:
    """What stands in the way; None if nothing does."""
    found: list[tuple[tuple[int, float], Shortage]] = []
    for pod_set in looks:
        if pod_set.unavailable:
            return Shortage(pod_set.name, UNCOVERED, None, None, None, pod_set.unavailable)
        for group in pod_set.groups():
            nearest = min(group, key=_distance)
            if not nearest.fits:
                found.append((_distance(nearest), _shortage(pod_set.name, nearest, queue)))
    return max(found, key=lambda each: each[0])[1] if found else None


def _distance(look: Look) -> tuple[int, float]:
    """How far a flavor is from fitting: what sort of thing is against it, then what share of what is asked lacks."""
    lack = max((ask.missing / ask.total for ask in look.asks if ask.total), default=0.0)
    if look.fits:
        return 0, 0.0
    if look.obstacle:
        return 4 if rule_of(look.obstacle) == TAINT else 5, lack
    if look.exceeds:
        return 3, lack
    return 1 if look.possibility in {Possibility.PREEMPT, Possibility.RECLAIM} else 2, lack


def _shortage(pod_set: str, look: Look, queue: ClusterQueue) -> Shortage:
    if look.obstacle:
        return Shortage(pod_set, rule_of(look.obstacle), look, None, None)
    short = [ask for ask in look.asks if ask.missing]
    ask = max(short, key=lambda each: (each.total > each.most, each.missing / each.total))
    bound = bound_of(queue.node, ask.fr, ask.total)
    return Shortage(pod_set, bound.limit, look, ask, bound)
