"""Quota by its definition, computed slowly: every value is derived from the limits and the holders.

It shares no code with the scheduler's arithmetic, so that the two can be compared. Nodes are named `queue/NAME` and
`cohort/NAME`. Source: the definition in Kueue's pkg/cache/scheduler/resource_node.go.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from batchyard.api.views.queues import ClusterQueueView, CohortView, FlavorResourceQuota, ResourceGroup

#: A flavor and a resource.
Pair: TypeAlias = tuple[str, str]
Amounts: TypeAlias = Mapping[Pair, int]


@dataclass(slots=True)
class Node:
    """A ClusterQueue or Cohort in the tree."""

    name: str
    parent: str = ""
    children: list[str] = field(default_factory=list)
    quotas: dict[Pair, FlavorResourceQuota] = field(default_factory=dict)


class QuotaDefinition:
    """The quota forest of ClusterQueues and Cohorts, with the holders of quota."""

    def __init__(self, queues: Iterable[ClusterQueueView], cohorts: Iterable[CohortView]) -> None:
        self.nodes: dict[str, Node] = {}
        self.holders: dict[str, dict[str, Amounts]] = {}
        self._subtrees: dict[tuple[str, Pair], int] = {}
        self._parents = {view.name: view.parent for view in cohorts}
        for view in cohorts:
            self._add(f"cohort/{view.name}", view.parent, view.groups)
        for queue in queues:
            self._add(f"queue/{queue.name}", queue.cohort, queue.groups)
        for node in self.nodes.values():
            if node.parent:
                self.nodes[node.parent].children.append(node.name)

    def _add(self, name: str, cohort: str, groups: Iterable[ResourceGroup]) -> None:
        node = self.nodes[name] = Node(name)
        node.quotas = {(quota.flavor, quota.resource): quota for group in groups for quota in group.quotas}
        in_cycle = name.startswith("cohort/") and self.is_in_cycle(name.partition("/")[2])
        if cohort and not in_cycle and not self.is_in_cycle(cohort):
            node.parent = f"cohort/{cohort}"
            if cohort not in self._parents:
                self.nodes.setdefault(node.parent, Node(node.parent))

    def is_in_cycle(self, cohort: str) -> bool:
        """Whether a Cohort's parents lead into a cycle."""
        seen: list[str] = []
        while cohort and cohort not in seen:
            seen.append(cohort)
            cohort = self._parents.get(cohort, "")
        return bool(cohort)

    def pairs(self, node: str) -> list[Pair]:
        """Return every flavor and resource with quota or usage in a node's tree."""
        root = self.path(node)[0]
        found: dict[Pair, None] = {}
        for name in self.below(root):
            found.update(dict.fromkeys(self.nodes[name].quotas))
            for amounts in self.holders.get(name, {}).values():
                found.update(dict.fromkeys(amounts))
        return sorted(found)

    def path(self, node: str) -> list[str]:
        """Return the path from the root to the node."""
        above = self.nodes[node].parent
        return [*self.path(above), node] if above else [node]

    def below(self, node: str) -> Iterator[str]:
        """Yield the node and its descendants."""
        yield node
        for child in self.nodes[node].children:
            yield from self.below(child)

    def subtree(self, node: str, pair: Pair) -> int:
        """Return the subtree quota of a node: its nominal quota, and what its children lend."""
        known = self._subtrees.get((node, pair))
        if known is not None:
            return known
        quota = self.nodes[node].quotas.get(pair)
        lent = sum(self.subtree(child, pair) - self.local(child, pair) for child in self.nodes[node].children)
        own = self._subtrees[node, pair] = (quota.nominal if quota else 0) + lent
        return own

    def local(self, node: str, pair: Pair) -> int:
        """Return the guaranteed quota of a node, which is never lent."""
        quota = self.nodes[node].quotas.get(pair)
        if quota is None or quota.lending_limit is None:
            return 0
        return max(0, self.subtree(node, pair) - quota.lending_limit)

    def used(self, node: str, pair: Pair) -> int:
        """Return the usage: of a ClusterQueue by its Workloads, of a Cohort by its children beyond local quota."""
        held = sum(amounts.get(pair, 0) for amounts in self.holders.get(node, {}).values())
        children = self.nodes[node].children
        return held + sum(max(0, self.used(child, pair) - self.local(child, pair)) for child in children)

    def available(self, node: str, pair: Pair) -> int:
        """Return what a node can still use; negative if quota was reduced below the usage."""
        parent, used = self.nodes[node].parent, self.used(node, pair)
        if not parent:
            return self.subtree(node, pair) - used
        local, quota = self.local(node, pair), self.nodes[node].quotas.get(pair)
        from_parent = self.available(parent, pair)
        if quota is not None and quota.borrowing_limit is not None:
            lent = self.subtree(node, pair) - local
            from_parent = min(from_parent, lent + quota.borrowing_limit - max(0, used - local))
        return max(0, local - used) + from_parent

    def potential(self, node: str, pair: Pair) -> int:
        """Return what a node could use in an otherwise empty tree."""
        parent, quota = self.nodes[node].parent, self.nodes[node].quotas.get(pair)
        if not parent:
            return self.subtree(node, pair)
        most = self.local(node, pair) + self.potential(parent, pair)
        if quota is not None and quota.borrowing_limit is not None:
            most = min(most, self.subtree(node, pair) + quota.borrowing_limit)
        return most

    def is_borrowing(self, node: str, pair: Pair) -> bool:
        """Whether a node uses more than its subtree quota."""
        return self.used(node, pair) > self.subtree(node, pair)
