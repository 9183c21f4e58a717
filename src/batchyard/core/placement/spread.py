"""Topology spread: how many pods of a kind each domain has, and how uneven one more may make them.

Source: kube-scheduler's plugin podtopologyspread. Its default constraints, for pods that a Service selects, are left
out: they only weigh in scores.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from batchyard.api import well_known
from batchyard.api.views.pods import PodView, SpreadRule
from batchyard.core.placement.neighbours import Counts, Neighbours
from batchyard.core.placement.node import Node
from batchyard.core.placement.rules import Obstacle, selects, tolerates_all

_UNEVEN: Final = Obstacle(("node(s) didn't match pod topology spread constraints",), may_yield=True)
_NO_DOMAIN: Final = Obstacle(
    ("node(s) didn't match pod topology spread constraints (missing required label)",), may_yield=False
)


class Spread:
    """The hard constraints of a pod: how many pods each domain has, and how many the emptiest."""

    def __init__(self, pod: PodView, nodes: Iterable[Node], neighbours: Neighbours) -> None:
        self._rules = [rule for rule in pod.shape.spread if rule.is_hard]
        self._own = [_means(rule, pod) for rule in self._rules]
        self._domains: list[Counts] = [{} for _ in self._rules]
        counts = [_count(rule, pod, neighbours) for rule in self._rules]
        for node in nodes:
            if _has_all_keys(node, self._rules):
                for index, rule in enumerate(self._rules):
                    if _is_counted(rule, pod, node):
                        domains, value = self._domains[index], node.view.labels[rule.topology_key]
                        domains[value] = domains.get(value, 0) + counts[index].get(node.name, 0)
        self._least = [
            0 if len(domains) < rule.min_domains else min(domains.values())
            for rule, domains in zip(self._rules, self._domains, strict=True)
        ]

    def find_obstacle(self, node: Node) -> Obstacle | None:
        """What keeps the pod from a node; None if nothing does."""
        for index, rule in enumerate(self._rules):
            value = node.view.labels.get(rule.topology_key)
            if value is None:
                return _NO_DOMAIN
            if self._domains[index].get(value, 0) + self._own[index] - self._least[index] > rule.max_skew:
                return _UNEVEN
        return None


def crowding(pod: PodView, feasible: Sequence[Node], nodes: Iterable[Node], neighbours: Neighbours) -> dict[str, int]:
    """How crowded each feasible node is by the soft constraints of a pod; nodes without all the keys are left out."""
    rules = [rule for rule in pod.shape.spread if not rule.is_hard]
    scored = [node for node in feasible if _has_all_keys(node, rules)]
    crowds = dict.fromkeys([node.name for node in scored], 0.0)
    for rule in rules:
        key, by_node = rule.topology_key, _count(rule, pod, neighbours)
        domains = {node.view.labels[key]: 0 for node in scored}
        if key != well_known.HOSTNAME:
            counted = [n for n in nodes if n.name in by_node and _has_all_keys(n, rules) and _is_counted(rule, pod, n)]
            for node in (node for node in counted if node.view.labels[key] in domains):
                domains[node.view.labels[key]] += by_node[node.name]
        weight = math.log((len(scored) if key == well_known.HOSTNAME else len(domains)) + 2)
        for node in scored:
            count = by_node.get(node.name, 0) if key == well_known.HOSTNAME else domains[node.view.labels[key]]
            crowds[node.name] += count * weight + rule.max_skew - 1
    return {name: math.floor(crowd + 0.5) for name, crowd in crowds.items()}


def _count(rule: SpreadRule, pod: PodView, neighbours: Neighbours) -> Counts:
    """How many pods of the namespace a constraint means, by node; those that are going do not count."""
    counts: Counts = {}
    if rule.selector is None or not rule.selector.requirements:
        return counts
    for other, node_name in neighbours.selected(rule.selector):
        if other.namespace == pod.namespace and not other.deleting:
            counts[node_name] = counts.get(node_name, 0) + 1
    return counts


def _means(rule: SpreadRule, pod: PodView) -> int:
    """One if a constraint means the pod itself."""
    return int(rule.selector is not None and rule.selector.matches(pod.labels))


def _has_all_keys(node: Node, rules: Sequence[SpreadRule]) -> bool:
    return all(rule.topology_key in node.view.labels for rule in rules)


def _is_counted(rule: SpreadRule, pod: PodView, node: Node) -> bool:
    """Whether a node counts for a constraint, by its policies."""
    if rule.honors_affinity and not selects(pod.shape.rules, node.view):
        return False
    return not rule.honors_taints or tolerates_all(pod.shape.rules, node.view)
