"""Quota arithmetic in a cohort tree, whose nodes are Cohorts and, as leaves, ClusterQueues: usage and fair shares.

A node has its own quota and, in `subtree_quota`, the total quota that its subtree may use. A lending limit reserves a
part of that as `local_quota`. Usage counts at a node; usage beyond `local_quota` also counts at its parent, and so on
up to the root. A borrowing limit caps the quota that a node may use from its parent. Amounts are lists indexed by the
id of a flavor-resource pair. Source: Kueue's pkg/cache/scheduler/resource_node.go.
"""

import math
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.meta import INT64_MAX
from batchyard.api.views.workload import FlavorFungibility

#: Amounts by flavor-resource id.
Usage: TypeAlias = tuple[tuple[int, int], ...]


class QuotaNode:
    """A ClusterQueue or Cohort in the cohort tree: its quota and usage by flavor-resource id."""

    __slots__ = (
        "available_by_gate",
        "borrowing_ceiling",
        "borrowing_height",
        "borrowing_limit",
        "children",
        "declared_frs",
        "gate",
        "height",
        "lending_limit",
        "lends_without_limit",
        "local_quota",
        "name",
        "nominal",
        "parent",
        "path",
        "path_usages",
        "potential_quota",
        "subtree_quota",
        "tree",
        "usage",
        "weight",
    )  # fmt: skip

    def __init__(self, name: str, fr_count: int) -> None:
        self.name = name
        self.parent: QuotaNode | None = None
        self.children: dict[str, QuotaNode] = {}
        #: The nodes from the root of the cohort tree to this node, inclusive.
        self.path: tuple[QuotaNode, ...] = (self,)
        #: The id of this node's cohort tree: kind and name of the root, as queues and Cohorts may have equal names.
        self.tree = f"queue/{name}"
        #: The number of levels below this node; 0 for a ClusterQueue.
        self.height = 0
        self.weight = 1.0
        self.nominal: dict[int, int] = {}
        self.borrowing_limit: dict[int, int] = {}
        self.lending_limit: dict[int, int] = {}
        #: The flavor-resource ids with quota in this subtree.
        self.declared_frs: tuple[int, ...] = ()
        self.subtree_quota = [0] * fr_count
        #: Quota that is never lent to the parent.
        self.local_quota = [0] * fr_count
        #: The maximum usage that may count at the parent (quota lent to it plus borrowing limit); None: no limit.
        self.borrowing_ceiling: list[int | None] = [None] * fr_count
        #: The amount that this node could use if all other nodes were idle.
        self.potential_quota = [0] * fr_count
        self.usage = [0] * fr_count
        #: The `usage` lists of the nodes on the path.
        self.path_usages: tuple[list[int], ...] = (self.usage,)
        #: Whether no node on the path below the root has a lending limit: all usage of this node counts up to the root.
        self.lends_without_limit = True
        #: The nearest node with limits on the path to the root, or the root: this node has the same available quota.
        self.gate = self
        #: The borrowing height of amounts beyond this node's own quota; None if it depends on the amount.
        self.borrowing_height: int | None = 0
        #: In a root: cached available quota by gate, valid until usage in the tree changes. It is replaced, never
        #: emptied, so that holders of an old cache keep their values.
        self.available_by_gate: dict[QuotaNode, dict[int, int]] = {}


#: The placeholder parent of detached nodes.
_DETACHED_PARENT: Final = QuotaNode("", 0)


def detach_node(node: QuotaNode) -> None:
    """Clear the references between a discarded cohort tree node and its neighbors, to break reference cycles."""
    node.parent, node.gate, node.path, node.path_usages = None, _DETACHED_PARENT, (_DETACHED_PARENT,), ()
    node.children.clear()
    node.available_by_gate = {}


def available(node: QuotaNode, fr: int) -> int:
    """Return the amount of a flavor-resource that a queue or Cohort may still use; negative after over-admission."""
    path = node.path
    free_amount = path[0].subtree_quota[fr] - path[0].usage[fr]
    for step in path[1:]:
        used_amount, local_quota = step.usage[fr], step.local_quota[fr]
        borrowing_ceiling = step.borrowing_ceiling[fr]
        if borrowing_ceiling is not None:
            borrowable_amount = borrowing_ceiling - (used_amount - local_quota if used_amount > local_quota else 0)
            if borrowable_amount < free_amount:
                free_amount = borrowable_amount
        if local_quota > used_amount:
            free_amount += local_quota - used_amount
    return free_amount


def cached_available_amounts(node: QuotaNode) -> dict[int, int]:
    """Return the cached `available()` amounts of a node by flavor-resource id; callers add missing ones."""
    available_by_gate = node.path[0].available_by_gate
    amounts = available_by_gate.get(node.gate)
    if amounts is None:
        amounts = available_by_gate[node.gate] = {}
    return amounts


def has_room(node: QuotaNode, usage: Usage) -> bool:
    """Return whether a queue or Cohort may use the amounts in `usage` in addition to its current usage."""
    gate = node.gate
    for fr, amount in usage:  # noqa: SIM110 - faster, and the most frequent query
        if amount > 0 and amount > available(gate, fr):
            return False
    return True


def local_available(node: QuotaNode, fr: int) -> int:
    """Return the unused part of the quota of flavor-resource `fr` that a queue or Cohort does not lend to others."""
    return max(0, node.local_quota[fr] - node.usage[fr])


def is_borrowing_with(node: QuotaNode, fr: int, amount: int) -> bool:
    """Return whether a queue or Cohort would exceed its subtree's quota (borrow) with this additional amount."""
    return node.usage[fr] + amount > node.subtree_quota[fr]


def is_within_nominal(node: QuotaNode, frs: Iterable[int]) -> bool:
    """Return whether a queue or Cohort uses at most its subtree's quota of each of the flavor-resources `frs`."""
    usage, subtree_quota = node.usage, node.subtree_quota
    return not [fr for fr in frs if usage[fr] > subtree_quota[fr]]


def fits_in_quota(node: QuotaNode, requests: Usage) -> bool:
    """Return whether the requested amounts fit in the unused quota of a node's subtree, without borrowing."""
    usage, subtree_quota = node.usage, node.subtree_quota
    for fr, amount in requests:  # noqa: SIM110 - as above
        if usage[fr] + amount > subtree_quota[fr]:
            return False
    return True


def request_to_parent(node: QuotaNode, requests: Usage) -> Usage:
    """Return the part of the requested amounts that a node's parent must provide, beyond unused local quota."""
    return tuple([(fr, max(0, amount - local_available(node, fr))) for fr, amount in requests])


def lowest_fitting_height(queue: QuotaNode, fr: int, amount: int) -> tuple[int, bool]:
    """Return the height of the lowest subtree with enough unused quota for an amount, and whether it has a parent.
    `fr` is the id of a flavor-resource pair. The height is 0 for the ClusterQueue itself. If no subtree has enough
    unused quota, the result is that of the root.
    """
    step, remaining_amount = queue, amount
    while True:
        used_amount, parent = step.usage[fr], step.parent
        if used_amount + remaining_amount <= step.subtree_quota[fr]:
            return step.height, parent is not None
        if parent is None:
            return step.height, False
        local_quota = step.local_quota[fr]
        if local_quota > used_amount:
            remaining_amount -= local_quota - used_amount
        step = parent


def change_usage(node: QuotaNode, usage: Usage, sign: int) -> None:
    """Add amounts to a node's usage (sign 1) or subtract them (-1); pass usage beyond `local_quota` to its parent."""
    node.path[0].available_by_gate = {}
    if node.lends_without_limit:
        for step_usage in node.path_usages:
            for fr, amount in usage:
                step_usage[fr] += sign * amount
        return
    for fr, amount in usage:
        amount_change = sign * amount
        step: QuotaNode | None = node
        while step is not None and amount_change:
            local_quota, old_usage = step.local_quota[fr], step.usage[fr]
            new_usage = step.usage[fr] = old_usage + amount_change
            amount_change = (new_usage - local_quota if new_usage > local_quota else 0) - (
                old_usage - local_quota if old_usage > local_quota else 0
            )
            step = step.parent


def refresh_tree(root: QuotaNode) -> None:
    """Recompute the derived values of a cohort tree after its quota, limits or members changed.

    The usage of ClusterQueues is kept; the usage of Cohorts is summed up again.
    """
    root.available_by_gate = {}
    nodes = _set_paths(root)
    for node in reversed(nodes):
        _sum_quota_and_usage(node)
    for node in nodes:
        _derive_quota_from_parent(node)


def _set_paths(root: QuotaNode) -> list[QuotaNode]:
    """Set each node's path from the root of a cohort tree, and return all nodes, parents before children."""
    root.path = (root,)
    nodes = [root]
    for node in nodes:
        for child in node.children.values():
            child.path, child.tree = (*node.path, child), root.tree
            nodes.append(child)
    return nodes


def _sum_quota_and_usage(node: QuotaNode) -> None:
    """Set the values of a node that derive from its own quota and its children, whose values must already be set."""
    fr_count = len(node.usage)
    subtree_quota = [0] * fr_count
    declared_frs = dict.fromkeys(node.nominal)
    for fr, amount in node.nominal.items():
        subtree_quota[fr] = amount
    if node.children:
        usage = [0] * fr_count
        for child in node.children.values():
            for fr in child.declared_frs:
                declared_frs[fr] = None
                subtree_quota[fr] += child.subtree_quota[fr] - child.local_quota[fr]
            for fr, used in enumerate(child.usage):
                if used > child.local_quota[fr]:
                    usage[fr] += used - child.local_quota[fr]
        node.usage = usage
        node.height = max(1, *(child.height + 1 for child in node.children.values()))
    node.declared_frs = tuple(sorted(declared_frs))
    node.subtree_quota = subtree_quota
    node.local_quota = [0] * fr_count
    for fr, limit in node.lending_limit.items():
        node.local_quota[fr] = max(0, subtree_quota[fr] - limit)


def _derive_quota_from_parent(node: QuotaNode) -> None:
    """Set the values of a node that derive from its ancestors, whose values must already be set."""
    fr_count = len(node.usage)
    node.path_usages = tuple([step.usage for step in node.path])
    node.lends_without_limit = not any(step.lending_limit for step in node.path[1:])
    node.gate = node if node.parent is None or node.borrowing_limit or node.lending_limit else node.parent.gate
    node.borrowing_height = node.path[0].height if len(node.path) <= 2 else None
    node.borrowing_ceiling = [None] * fr_count
    for fr, limit in node.borrowing_limit.items():
        node.borrowing_ceiling[fr] = node.subtree_quota[fr] - node.local_quota[fr] + limit
    if node.parent is None:
        node.potential_quota = list(node.subtree_quota)
        return
    node.potential_quota = [
        own + inherited for own, inherited in zip(node.local_quota, node.parent.potential_quota, strict=True)
    ]
    for fr, limit in node.borrowing_limit.items():
        node.potential_quota[fr] = min(node.potential_quota[fr], node.subtree_quota[fr] + limit)


# Fair sharing: the dominant resource share of a node, from its borrowed quota and its parent's capacity.
#
# For each resource, the usage above quota is divided by the amount that the parent could ever lend. The share is the
# largest of these, in thousandths, divided by the node's weight. A borrowing node of weight 0 has an infinite share;
# two such nodes are compared by their unweighted share. Floating point as in Kueue, so that ties are resolved alike.
# Source: Kueue's pkg/cache/scheduler/fair_sharing.go.


class Share(NamedTuple):
    """The dominant resource share of a ClusterQueue or Cohort: borrowed quota per lendable quota, times 1000."""

    weight: float
    ratio: float
    resource: str
    #: The ids of the borrowed flavor-resources.
    borrowed_frs: tuple[int, ...]

    @property
    def is_borrowing(self) -> bool:
        """Whether the queue or Cohort borrows any flavor-resource."""
        return bool(self.borrowed_frs)

    @property
    def weighted_value(self) -> float:
        """The dominant resource share divided by the fair sharing weight; infinite when borrowing with weight 0."""
        if self.ratio == 0:
            return 0.0
        return math.inf if self.weight == 0 else self.ratio / self.weight

    @property
    def rounded_value(self) -> int:
        """The weighted share as in the status of queues and Cohorts: rounded up; the int64 maximum if infinite."""
        return INT64_MAX if math.isinf(self.weighted_value) else math.ceil(self.weighted_value)

    def is_borrowing_on(self, usage: Usage) -> bool:
        """Return whether the queue or Cohort borrows any flavor-resource with a positive amount in `usage`."""
        return any(amount > 0 and fr in self.borrowed_frs for fr, amount in usage)


#: A share that is lower than the share of any node.
LOWEST_SHARE: Final = Share(1.0, -1.0, "", ())


def compare_shares(a: Share, b: Share) -> int:
    """Return -1, 0 or 1 for share a below, equal to or above b; the lower is admitted first and preempted last."""
    a_infinite, b_infinite = a.weight == 0 and a.ratio != 0, b.weight == 0 and b.ratio != 0
    if a_infinite and b_infinite:
        a_value, b_value = a.ratio, b.ratio
    elif a_infinite or b_infinite:
        return 1 if a_infinite else -1
    else:
        a_value, b_value = a.weighted_value, b.weighted_value
    return (a_value > b_value) - (a_value < b_value)


def weighted_share(node: QuotaNode, flavor_resources: Sequence[tuple[str, str]]) -> Share:
    """Return a queue's or Cohort's dominant resource share; its ratio is 0 for a root and for nodes that do not borrow.

    `flavor_resources` lists the (flavor, resource) of each flavor-resource id.
    """
    if node.parent is None:
        return Share(node.weight, 0.0, "", ())
    borrowed_frs = tuple(fr for fr in node.declared_frs if node.usage[fr] > node.subtree_quota[fr])
    if not borrowed_frs:
        return Share(node.weight, 0.0, "", ())
    borrowed_amounts: dict[str, int] = {}
    for fr in borrowed_frs:
        resource = flavor_resources[fr][1]
        borrowed_amounts[resource] = borrowed_amounts.get(resource, 0) + node.usage[fr] - node.subtree_quota[fr]
    lendable_amounts = _lendable_amounts(node.parent, flavor_resources)
    ratio, dominant_resource = 0.0, ""
    for resource in sorted(borrowed_amounts):
        capacity = lendable_amounts.get(resource, 0)
        if capacity > 0:
            resource_ratio = min(borrowed_amounts[resource], INT64_MAX) * 1000.0 / min(capacity, INT64_MAX)
            if resource_ratio > ratio:
                ratio, dominant_resource = resource_ratio, resource
    return Share(node.weight, ratio, dominant_resource, borrowed_frs)


def _lendable_amounts(node: QuotaNode, flavor_resources: Sequence[tuple[str, str]]) -> dict[str, int]:
    lendable_amounts: dict[str, int] = {}
    for fr in node.path[0].declared_frs:
        resource = flavor_resources[fr][1]
        lendable_amounts[resource] = lendable_amounts.get(resource, 0) + node.potential_quota[fr]
    return lendable_amounts


#: The quality of a flavor for a resource: a PreemptionPossibility in the high bits, minus the borrowing height.
GranularMode: TypeAlias = int
_STEP_BITS: Final = 24
_HEIGHT_MASK: Final = (1 << _STEP_BITS) - 1


class PreemptionPossibility(IntEnum):
    """How the requested amount of a flavor's quota could be obtained, from worst to best."""

    NO_FIT = 0
    NO_CANDIDATES = 1
    PREEMPT = 2
    RECLAIM = 3
    FIT = 4


class FlavorAssignmentMode(IntEnum):
    """How well a flavor assignment fits, from worst to best."""

    NO_FIT = 0
    PREEMPT = 1
    #: Fits after the preemptions of this cycle complete.
    DEFERRED_FIT = 2
    FIT = 3


_POSSIBILITIES: Final = tuple(PreemptionPossibility)
_MODE_BY_POSSIBILITY: Final = (
    FlavorAssignmentMode.NO_FIT,
    FlavorAssignmentMode.PREEMPT,
    FlavorAssignmentMode.PREEMPT,
    FlavorAssignmentMode.PREEMPT,
    FlavorAssignmentMode.FIT,
)


def encode_quality(possibility: PreemptionPossibility, height: int = 0) -> GranularMode:
    """Encode how quota could be obtained, and from which height in the cohort tree (0: own quota), as one number."""
    return (possibility << _STEP_BITS) - height


def preemption_possibility_of(quality: GranularMode) -> PreemptionPossibility:
    """Return the PreemptionPossibility that `encode_quality()` has encoded in the quality of a flavor."""
    return _POSSIBILITIES[(quality + _HEIGHT_MASK) >> _STEP_BITS]


def assignment_mode_of(quality: GranularMode) -> FlavorAssignmentMode:
    """Return the assignment mode for the quality of a flavor, as `encode_quality()` has encoded it."""
    return _MODE_BY_POSSIBILITY[(quality + _HEIGHT_MASK) >> _STEP_BITS]


def borrowing_height_of(quality: GranularMode) -> int:
    """Return the borrowing height that `encode_quality()` has encoded in the quality of a flavor."""
    return -quality & _HEIGHT_MASK


#: The best value of each possibility; a height is subtracted from it. A quality of HOPELESS or less is unusable, even
#: with preemption.
NO_FIT: Final = encode_quality(PreemptionPossibility.NO_FIT)
HOPELESS: Final = encode_quality(PreemptionPossibility.NO_CANDIDATES)
PREEMPT: Final = encode_quality(PreemptionPossibility.PREEMPT)
RECLAIM: Final = encode_quality(PreemptionPossibility.RECLAIM)
FIT: Final = encode_quality(PreemptionPossibility.FIT)


def is_better(a: GranularMode, b: GranularMode, fungibility: FlavorFungibility) -> bool:
    """Return whether flavor quality a is better than b under the ClusterQueue's `flavorFungibility`."""
    if fungibility.prefer_preemption and a > HOPELESS and b > HOPELESS:
        return _preemption_preference_key(a) > _preemption_preference_key(b)
    return a > b


def _preemption_preference_key(quality: GranularMode) -> tuple[int, GranularMode]:
    return -borrowing_height_of(quality), quality


def worst_quality(qualities: Sequence[GranularMode], fungibility: FlavorFungibility) -> GranularMode:
    """Return a flavor's overall quality: the worst of its qualities for the requested resources under `fungibility`."""
    lowest_quality = min(qualities)
    if fungibility.prefer_preemption and lowest_quality > HOPELESS:
        return min(qualities, key=_preemption_preference_key)
    return lowest_quality


def should_try_next_flavor(quality: GranularMode, fungibility: FlavorFungibility) -> bool:
    """Return whether `flavorFungibility` continues the flavor search after a flavor of this quality."""
    if quality <= HOPELESS or (quality <= RECLAIM and fungibility.try_next_when_preempting):
        return True
    return fungibility.try_next_when_borrowing and borrowing_height_of(quality) != 0
