"""The trees of Cohorts and ClusterQueues, built from their specs.

Cohorts exist by their object or by being named (then without quota of their own). A Cohort whose parents lead into a
cycle has no parent here, and no ClusterQueue below it a Cohort. Flavor-resource pairs are numbered on first use.
Source: Kueue's pkg/cache/hierarchy.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from batchyard.api.views.queues import CohortView, ResourceGroup
from batchyard.core.queue import ClusterQueue
from batchyard.core.quota import QuotaNode, refresh_tree

NO_COHORT: Final = ""


class Forest:
    """All trees."""

    def __init__(self) -> None:
        self.cohorts: dict[str, QuotaNode] = {}
        #: The names of flavor-resource ids: (flavor, resource).
        self.names: list[tuple[str, str]] = []
        self._ids: dict[tuple[str, str], int] = {}
        self._views: dict[str, CohortView] = {}

    def id_of(self, flavor: str, resource: str) -> int:
        """The id of a flavor-resource pair, made on first use."""
        pair = (flavor, resource)
        known = self._ids.get(pair)
        if known is None:
            known = self._ids[pair] = len(self.names)
            self.names.append(pair)
        return known

    @property
    def views(self) -> Mapping[str, CohortView]:
        """The Cohorts that have an object, by name."""
        return self._views

    def put_cohort(self, view: CohortView) -> None:
        """Add or change a Cohort."""
        self._views[view.name] = view
        for group in view.groups:
            for quota in group.quotas:
                self.id_of(quota.flavor, quota.resource)

    def remove_cohort(self, name: str) -> bool:
        """Forget a Cohort's object; it lives on without quota while somebody names it. Whether there was one."""
        return self._views.pop(name, None) is not None

    def has_cycle(self, cohort: str) -> bool:
        """Whether the parents of a Cohort lead into a cycle."""
        seen: dict[str, None] = {}
        while cohort != NO_COHORT:
            if cohort in seen:
                return True
            seen[cohort] = None
            view = self._views.get(cohort)
            cohort = view.parent if view else NO_COHORT
        return False

    def set_quotas(self, node: QuotaNode, groups: Iterable[ResourceGroup]) -> None:
        """Give a node its own quotas and limits."""
        node.nominal, node.borrowing_limit, node.lending_limit = {}, {}, {}
        for group in groups:
            for quota in group.quotas:
                fr = self.id_of(quota.flavor, quota.resource)
                node.nominal[fr] = quota.nominal
                if quota.borrowing_limit is not None:
                    node.borrowing_limit[fr] = quota.borrowing_limit
                if quota.lending_limit is not None:
                    node.lending_limit[fr] = quota.lending_limit

    def rebuild(self, queues: Iterable[ClusterQueue]) -> None:
        """Make all trees again; the queues come in order of name."""
        width = len(self.names)
        self.cohorts = {}
        for name in sorted(self._views):
            self._cohort(name)
        roots = []
        for queue in queues:
            node, cohort = queue.node, queue.view.cohort
            node.usage.extend([0] * (width - len(node.usage)))
            queue.in_cycle = self.has_cycle(cohort)
            node.parent = None if cohort == NO_COHORT or queue.in_cycle else self._cohort(cohort)
            if node.parent is not None:
                node.parent.children[f"queue/{queue.name}"] = node
            else:
                node.tree = f"queue/{queue.name}"
                roots.append(node)
        roots += [node for node in self.cohorts.values() if node.parent is None]
        for root in roots:
            refresh_tree(root)

    def _cohort(self, name: str) -> QuotaNode:
        """The node of a Cohort; on first use it is made, and its ancestors with it."""
        made: list[QuotaNode] = []
        found = self.cohorts.get(name)
        above = name
        while above not in self.cohorts:
            node = self.cohorts[above] = QuotaNode(above, len(self.names))
            node.tree = f"cohort/{above}"
            made.append(node)
            view = self._views.get(above)
            if view is None:
                break
            self.set_quotas(node, view.groups)
            node.weight = view.weight
            if view.parent == NO_COHORT or self.has_cycle(above):
                break
            above = view.parent
        for node in made:
            view = self._views.get(node.name)
            if view and view.parent != NO_COHORT and not self.has_cycle(node.name):
                node.parent = self.cohorts[view.parent]
                node.parent.children[f"cohort/{node.name}"] = node
        return found or made[0]
