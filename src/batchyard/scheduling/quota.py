"""The arithmetic of quota over a tree of ClusterQueues (leaves) and Cohorts.

A node has its own quota and, in `subtree`, all that its subtree may use of it. A lending limit keeps part of that at
home: `local`. Usage counts at a node, and beyond `local` at its parent too, and so on up to the root. A borrowing
limit caps what a node may have from its parent. Amounts are lists indexed by the id of a flavor-resource pair.
Source: Kueue's pkg/cache/scheduler/resource_node.go.
"""

from collections.abc import Iterable
from typing import Final, TypeAlias

#: Amounts by flavor-resource id.
Usage: TypeAlias = tuple[tuple[int, int], ...]


class QuotaNode:
    """A ClusterQueue's or a Cohort's place in the tree: its quota and its usage, by flavor-resource id."""

    __slots__ = (
        "beyond", "borrowing_ceiling", "borrowing_limit", "children", "declared", "gate", "height", "known",
        "lending_limit", "local", "name", "nominal", "parent", "passes_all_on", "path", "potential", "subtree", "tree",
        "usage", "usages", "weight",
    )  # fmt: skip

    def __init__(self, name: str, width: int) -> None:
        self.name = name
        self.parent: QuotaNode | None = None
        self.children: dict[str, QuotaNode] = {}
        #: From the root to this node, both included.
        self.path: tuple[QuotaNode, ...] = (self,)
        #: Which tree it is in. A ClusterQueue and a Cohort may have one name, so this is more than the root's.
        self.tree = f"queue/{name}"
        #: Steps to the furthest leaf below; 0 for a ClusterQueue.
        self.height = 0
        self.weight = 1.0
        self.nominal: dict[int, int] = {}
        self.borrowing_limit: dict[int, int] = {}
        self.lending_limit: dict[int, int] = {}
        #: Ids with quota in this subtree.
        self.declared: tuple[int, ...] = ()
        self.subtree = [0] * width
        #: Quota never lent to the parent.
        self.local = [0] * width
        #: The most this node may use of what it stores in, or borrows from, its parent; None without a limit.
        self.borrowing_ceiling: list[int | None] = [None] * width
        #: The most this node could ever use, all else idle.
        self.potential = [0] * width
        self.usage = [0] * width
        #: Of the nodes on the path.
        self.usages: tuple[list[int], ...] = (self.usage,)
        #: Neither this node nor one above keeps quota to itself: what is used here counts all the way up.
        self.passes_all_on = True
        #: The nearest node, this one or above, with limits of its own: what that may use, this may.
        self.gate = self
        #: The height of what lies beyond its own quota, where there is but one; None if that depends on the amount.
        self.beyond: int | None = 0
        #: In a root: what is known to be available while no usage in the tree changes, by gate. Never emptied, only
        #: replaced, so that what was known stays with whoever holds it.
        self.known: dict[QuotaNode, dict[int, int]] = {}


#: Where nodes are that are in no tree any more.
_NOWHERE: Final = QuotaNode("", 0)


def detach(node: QuotaNode) -> None:
    """Let a node of a tree that is done with refer to none of the others, nor to itself."""
    node.parent, node.gate, node.path, node.usages = None, _NOWHERE, (_NOWHERE,), ()
    node.children.clear()
    node.known = {}


def available(node: QuotaNode, fr: int) -> int:
    """What this node may still use; negative after an over-admission."""
    path = node.path
    free = path[0].subtree[fr] - path[0].usage[fr]
    for step in path[1:]:
        used, local = step.usage[fr], step.local[fr]
        ceiling = step.borrowing_ceiling[fr]
        if ceiling is not None:
            room = ceiling - (used - local if used > local else 0)
            if room < free:
                free = room
        if local > used:
            free += local - used
    return free


def known_available(node: QuotaNode) -> dict[int, int]:
    """What is known of `available()` as usage now stands, the same for all below one gate; to be added to."""
    known = node.path[0].known
    found = known.get(node.gate)
    if found is None:
        found = known[node.gate] = {}
    return found


def has_room(node: QuotaNode, usage: Usage) -> bool:
    """Whether this node may still use all that."""
    gate = node.gate
    for fr, amount in usage:  # noqa: SIM110 - asked more often than anything else, and faster so
        if amount > 0 and amount > available(gate, fr):
            return False
    return True


def local_available(node: QuotaNode, fr: int) -> int:
    """Unused quota that this node keeps to itself."""
    return max(0, node.local[fr] - node.usage[fr])


def is_borrowing_with(node: QuotaNode, fr: int, amount: int) -> bool:
    """Whether the node would use more than its subtree's quota with that amount on top."""
    return node.usage[fr] + amount > node.subtree[fr]


def is_within_nominal(node: QuotaNode, frs: Iterable[int]) -> bool:
    """Whether the node uses no more than its subtree's quota in all of these."""
    usage, subtree = node.usage, node.subtree
    return not [fr for fr in frs if usage[fr] > subtree[fr]]


def fits_in_quota(node: QuotaNode, requests: Usage) -> bool:
    """Whether requests fit in this node's own quota."""
    usage, subtree = node.usage, node.subtree
    for fr, amount in requests:  # noqa: SIM110 - as above
        if usage[fr] + amount > subtree[fr]:
            return False
    return True


def left_to_ask(node: QuotaNode, requests: Usage) -> Usage:
    """What of requests the node's unused local quota does not hold, and its parent is asked for."""
    return tuple([(fr, max(0, amount - local_available(node, fr))) for fr, amount in requests])


def lowest_fitting_height(queue: QuotaNode, fr: int, amount: int) -> tuple[int, bool]:
    """How far up the tree the quota for an amount is found: 0 is the ClusterQueue's own.

    Returns the height of the lowest subtree whose quota holds it (of the whole tree if none does), and whether that
    subtree has a parent.
    """
    step, remaining = queue, amount
    while True:
        used, parent = step.usage[fr], step.parent
        if used + remaining <= step.subtree[fr]:
            return step.height, parent is not None
        if parent is None:
            return step.height, False
        local = step.local[fr]
        if local > used:
            remaining -= local - used
        step = parent


def change_usage(node: QuotaNode, usage: Usage, sign: int) -> None:
    """Add to a node's usage (sign 1) or take from it (-1), and pass on what lies beyond its local quota."""
    node.path[0].known = {}
    if node.passes_all_on:
        for used in node.usages:
            for fr, amount in usage:
                used[fr] += sign * amount
        return
    for fr, amount in usage:
        delta = sign * amount
        step: QuotaNode | None = node
        while step is not None and delta:
            local, before = step.local[fr], step.usage[fr]
            after = step.usage[fr] = before + delta
            delta = (after - local if after > local else 0) - (before - local if before > local else 0)
            step = step.parent


def refresh_tree(root: QuotaNode) -> None:
    """Work out everything derived, top to bottom and back: after any change of quota, limits or membership.

    The usage of leaves is kept; that of Cohorts is summed up anew.
    """
    root.known = {}
    nodes = _top_down(root)
    for node in reversed(nodes):
        _sum_up(node)
    for node in nodes:
        _look_up(node)


def _top_down(root: QuotaNode) -> list[QuotaNode]:
    """All nodes of the tree, parents before children; sets paths."""
    root.path = (root,)
    nodes = [root]
    for node in nodes:
        for child in node.children.values():
            child.path, child.tree = (*node.path, child), root.tree
            nodes.append(child)
    return nodes


def _sum_up(node: QuotaNode) -> None:
    """Subtree quota, height and usage from the node's own quota and its children."""
    width = len(node.usage)
    subtree = [0] * width
    declared = dict.fromkeys(node.nominal)
    for fr, amount in node.nominal.items():
        subtree[fr] = amount
    if node.children:
        usage = [0] * width
        for child in node.children.values():
            for fr in child.declared:
                declared[fr] = None
                subtree[fr] += child.subtree[fr] - child.local[fr]
            for fr, used in enumerate(child.usage):
                if used > child.local[fr]:
                    usage[fr] += used - child.local[fr]
        node.usage = usage
        node.height = max(1, *(child.height + 1 for child in node.children.values()))
    node.declared = tuple(sorted(declared))
    node.subtree = subtree
    node.local = [0] * width
    for fr, limit in node.lending_limit.items():
        node.local[fr] = max(0, subtree[fr] - limit)


def _look_up(node: QuotaNode) -> None:
    """Ceilings, potential and the like from the parent, which has been looked up already."""
    width = len(node.usage)
    node.usages = tuple([step.usage for step in node.path])
    node.passes_all_on = not any(step.lending_limit for step in node.path[1:])
    node.gate = node if node.parent is None or node.borrowing_limit or node.lending_limit else node.parent.gate
    node.beyond = node.path[0].height if len(node.path) <= 2 else None
    node.borrowing_ceiling = [None] * width
    for fr, limit in node.borrowing_limit.items():
        node.borrowing_ceiling[fr] = node.subtree[fr] - node.local[fr] + limit
    if node.parent is None:
        node.potential = list(node.subtree)
        return
    node.potential = [own + above for own, above in zip(node.local, node.parent.potential, strict=True)]
    for fr, limit in node.borrowing_limit.items():
        node.potential[fr] = min(node.potential[fr], node.subtree[fr] + limit)
