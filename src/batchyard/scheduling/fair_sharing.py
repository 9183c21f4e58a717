"""Fair sharing: the dominant resource share of a node, from what it borrows and what its parent can lend.

For each resource, the usage above quota is divided by the amount that the parent could ever lend. The share is the
largest of these, in thousandths, divided by the node's weight. A borrowing node of weight 0 has an infinite share; two
of them are compared by their unweighted share. Floating point as in Kueue, so that ties are resolved alike.
Source: Kueue's pkg/cache/scheduler/fair_sharing.go.
"""

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from batchyard.api.quantity import INT64_MAX
from batchyard.scheduling.quota import QuotaNode, Usage


class Share(NamedTuple):
    """A node's dominant resource share."""

    weight: float
    ratio: float
    resource: str
    #: The flavor-resources it borrows.
    borrowed: tuple[int, ...]

    @property
    def is_borrowing(self) -> bool:
        """Whether it uses more than its quota of any flavor-resource."""
        return bool(self.borrowed)

    @property
    def weighted(self) -> float:
        """The share divided by the weight; infinite for a borrower of weight 0."""
        if self.ratio == 0:
            return 0.0
        return math.inf if self.weight == 0 else self.ratio / self.weight

    @property
    def rounded(self) -> int:
        """The share as status fields show it."""
        return INT64_MAX if math.isinf(self.weighted) else math.ceil(self.weighted)

    def is_borrowing_on(self, usage: Usage) -> bool:
        """Report whether it borrows any flavor-resource with a nonzero amount in `usage`."""
        return any(amount > 0 and fr in self.borrowed for fr, amount in usage)


#: Less than any node's share.
LOWEST: Final = Share(1.0, -1.0, "", ())


def compare(a: Share, b: Share) -> int:
    """Return -1, 0 or 1. The lower share is admitted first, the higher one preempted first."""
    a_infinite, b_infinite = a.weight == 0 and a.ratio != 0, b.weight == 0 and b.ratio != 0
    if a_infinite and b_infinite:
        left, right = a.ratio, b.ratio
    elif a_infinite or b_infinite:
        return 1 if a_infinite else -1
    else:
        left, right = a.weighted, b.weighted
    return (left > right) - (left < right)


def share_of(node: QuotaNode, names: Sequence[tuple[str, str]]) -> Share:
    """Return the current dominant resource share of a node; `names` are those of flavor-resource ids."""
    if node.parent is None:
        return Share(node.weight, 0.0, "", ())
    borrowed = tuple(fr for fr in node.declared if node.usage[fr] > node.subtree[fr])
    if not borrowed:
        return Share(node.weight, 0.0, "", ())
    amounts: dict[str, int] = {}
    for fr in borrowed:
        resource = names[fr][1]
        amounts[resource] = amounts.get(resource, 0) + node.usage[fr] - node.subtree[fr]
    lendable = _lendable(node.parent, names)
    ratio, dominant = 0.0, ""
    for resource in sorted(amounts):
        capacity = lendable.get(resource, 0)
        if capacity > 0:
            own = min(amounts[resource], INT64_MAX) * 1000.0 / min(capacity, INT64_MAX)
            if own > ratio:
                ratio, dominant = own, resource
    return Share(node.weight, ratio, dominant, borrowed)


def _lendable(node: QuotaNode, names: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the potential capacity of a node by resource, over all flavors."""
    total: dict[str, int] = {}
    for fr in node.path[0].declared:
        resource = names[fr][1]
        total[resource] = total.get(resource, 0) + node.potential[fr]
    return total
