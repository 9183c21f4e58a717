"""How much of a flavor-resource a tree of queues can use at most, all at the same time."""

from collections.abc import Container
from typing import NamedTuple

from batchyard.core.quota import QuotaNode


class Reach(NamedTuple):
    """Of one subtree: what it uses of what it keeps to itself, and what it would take from above (None: all)."""

    kept: int
    drawn: int | None


def most_used(root: QuotaNode, fr: int, users: Container[QuotaNode]) -> int:
    """The most that all queues of a tree use together; of its leaves only the `users` do."""
    if not root.children:
        return root.subtree[fr] if root in users else 0
    reaches = [_reach(child, fr, users) for child in root.children.values()]
    return sum(reach.kept for reach in reaches) + _bounded(root.subtree[fr], _sum(reaches))


def _reach(node: QuotaNode, fr: int, users: Container[QuotaNode]) -> Reach:
    if not node.children:
        return Reach(node.local[fr], node.borrowing_ceiling[fr]) if node in users else Reach(0, 0)
    reaches = [_reach(child, fr, users) for child in node.children.values()]
    wanted = _sum(reaches)
    own = _bounded(node.local[fr], wanted)
    beyond = None if wanted is None else wanted - own
    ceiling = node.borrowing_ceiling[fr]
    drawn = beyond if ceiling is None else _bounded(ceiling, beyond)
    return Reach(sum(reach.kept for reach in reaches) + own, drawn)


def _sum(reaches: list[Reach]) -> int | None:
    total = 0
    for reach in reaches:
        if reach.drawn is None:
            return None
        total += reach.drawn
    return total


def _bounded(bound: int, wanted: int | None) -> int:
    return bound if wanted is None else min(bound, wanted)
