"""Candidate nodes for pods of equal shape, best first, updated incrementally.

Static filters are evaluated once for all pods with the same rules, and again only for nodes whose labels or taints
change. Resources and scores are evaluated once for pods of the same shape, and again for changed nodes. So placing many
equal pods costs one look at each changed node, not at all nodes.
"""

from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush
from typing import Final

from batchyard.api.views.node import NodeView
from batchyard.api.views.pods import NodeRules, PodShape
from batchyard.placement.node_filters import FilterFailure, aversion, find_obstacle, preference
from batchyard.placement.node_info import NodeGenerations, NodeInfo
from batchyard.placement.resources import AutoscalingProfile, has_room, resource_score

_REACHES_MAX: Final = 1024
_SHORTLISTS_MAX: Final = 1024


class StaticFilterResults:
    """The static filters and preferences of equal rules, evaluated for each node."""

    def __init__(self, rules: NodeRules, nodes: Mapping[str, NodeInfo], traits: NodeGenerations) -> None:
        self._rules = rules
        self._nodes = nodes
        self._traits = traits
        self._moment = traits.now
        self._seen: dict[str, NodeView] = {}
        #: Why a node rejects the pods; None: it does not.
        self.obstacles: dict[str, FilterFailure | None] = {}
        #: Scores of preferred node affinity, and counts of PreferNoSchedule taints; zeros are omitted.
        self.preferences: dict[str, int] = {}
        self.aversions: dict[str, int] = {}
        for node in nodes.values():
            self._look(node.view)

    def refresh(self) -> None:
        """Apply the changes of nodes."""
        if self._moment == self._traits.now:
            return
        for name in self._traits.since(self._moment):
            node = self._nodes.get(name)
            if node is None:
                self._forget(name)
            elif node.view != self._seen.get(name):  # changes made inside what_if are undone by now
                self._forget(name)
                self._look(node.view)
        self._moment = self._traits.now

    def _forget(self, name: str) -> None:
        for known in (self._seen, self.obstacles, self.preferences, self.aversions):
            known.pop(name, None)

    def _look(self, view: NodeView) -> None:
        rules, name = self._rules, view.name
        self._seen[name] = view
        obstacle = self.obstacles[name] = find_obstacle(rules, view)
        if obstacle is not None:
            return
        if rules.preferences and (preferred := preference(rules, view)):
            self.preferences[name] = preferred
        if view.taints and (averse := aversion(rules, view)):
            self.aversions[name] = averse


class CandidateNodes:
    """The nodes with room for pods of a shape, and their resource scores."""

    def __init__(
        self, shape: PodShape, profile: AutoscalingProfile, reach: StaticFilterResults, changes: NodeGenerations
    ) -> None:
        self._shape = shape
        self._profile = profile
        self._changes = changes
        self._moment = -1
        self._heap: list[tuple[int, str]] = []
        self.reach = reach
        self.scores: dict[str, int] = {}

    def refresh(self, nodes: Mapping[str, NodeInfo]) -> None:
        """Apply the changes of nodes."""
        self.reach.refresh()
        if self._moment == self._changes.now:
            return
        names = list(nodes) if self._moment < 0 else self._changes.since(self._moment)
        for name in names:
            self._look(name, nodes.get(name))
        self._moment = self._changes.now
        if len(self._heap) > 4 * len(self.scores) + 64:
            self._heap = [(-score, name) for name, score in self.scores.items()]
            heapify(self._heap)

    def best(self, accepts: Callable[[str], bool]) -> str:
        """Return the accepted node with the highest score, the first by name among equals; '' if there is none."""
        heap, scores, refused = self._heap, self.scores, list[tuple[int, str]]()
        found = ""
        while heap and not found:
            entry = heap[0]
            name = entry[1]
            if scores.get(name) != -entry[0] or (refused and refused[-1] == entry):
                heappop(heap)  # outdated or duplicate
            elif accepts(name):
                found = name
            else:
                refused.append(heappop(heap))
        for entry in refused:
            heappush(heap, entry)
        return found

    def _look(self, name: str, node: NodeInfo | None) -> None:
        if node is None or self.reach.obstacles[name] is not None or not has_room(self._shape, node):
            self.scores.pop(name, None)
            return
        score = resource_score(self._shape, node, self._profile)
        if self.scores.get(name) != score:
            self.scores[name] = score
            heappush(self._heap, (-score, name))


class CandidateNodesCache:
    """LRU cache of filter results by rules, and of candidates by shape."""

    def __init__(self, nodes: Mapping[str, NodeInfo], changes: NodeGenerations, traits: NodeGenerations) -> None:
        self._nodes = nodes
        self._changes = changes
        self._traits = traits
        self._reaches: dict[NodeRules, StaticFilterResults] = {}
        self._lists: dict[tuple[PodShape, AutoscalingProfile], CandidateNodes] = {}

    def reach(self, rules: NodeRules) -> StaticFilterResults:
        """Return the up-to-date filter results for some rules."""
        reach = self._reaches.pop(rules, None)
        if reach is None:
            if len(self._reaches) >= _REACHES_MAX:
                del self._reaches[next(iter(self._reaches))]
            reach = StaticFilterResults(rules, self._nodes, self._traits)
        self._reaches[rules] = reach
        reach.refresh()
        return reach

    def of(self, shape: PodShape, profile: AutoscalingProfile) -> CandidateNodes:
        """Return the up-to-date candidates for a shape."""
        key = shape, profile
        found = self._lists.pop(key, None)
        if found is None:
            if len(self._lists) >= _SHORTLISTS_MAX:
                del self._lists[next(iter(self._lists))]
            found = CandidateNodes(shape, profile, self.reach(shape.rules), self._changes)
        self._lists[key] = found
        found.refresh(self._nodes)
        return found
