"""Filtering and scoring of nodes for a pod, as in kube-scheduler.

Room reserved for nominated pods of the same or higher priority counts as taken. All nodes are considered, and ties go
to the first name; kube-scheduler samples nodes and breaks ties at random. Sources: kube-scheduler's schedule_one.go
(findNodesThatFitPod, prioritizeNodes), framework/runtime (RunFilterPluginsWithNominatedPods), framework/types.go
(FitError).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import well_known
from batchyard.api.views.pod_shape import SpreadRule
from batchyard.api.views.pods import PodView
from batchyard.placement.cluster_snapshot import CandidateNodes, ClusterSnapshot
from batchyard.placement.node_filters import (
    CONFLICT,
    NOTHING,
    AutoscalingProfile,
    FilterFailure,
    find_shortage,
    less_held,
    selects,
    tolerates_all,
)
from batchyard.placement.node_info import NodeInfo
from batchyard.placement.pod_affinity import Counts, Domain, PodAffinityFilter, PodAffinityIndex, attraction

# --- scores ---
#
# Scores of the nodes that a pod fits: kube-scheduler's score plugins with their weights.
#
# Resource scores are separate (batchyard.placement.node_filters). The others are normalized to 0..100 over the compared
# nodes. Source: kube-scheduler's plugins tainttoleration, nodeaffinity, interpodaffinity and podtopologyspread,
# apis/config/v1/default_plugins.go, framework/plugins/helper/normalize_score.go.


_MAX: Final = 100
_TAINT_TOLERATION: Final = 3
_NODE_AFFINITY: Final = 2
_TOPOLOGY_SPREAD: Final = 2
_POD_AFFINITY: Final = 2


def add_preferences(totals: dict[str, int], preferences: Mapping[str, int]) -> None:
    """Add the scores of preferred node affinity: more is better."""
    top = max([preferences.get(name, 0) for name in totals], default=0)
    if top:
        for name in totals:
            totals[name] += _NODE_AFFINITY * (_MAX * preferences.get(name, 0) // top)


def add_taint_scores(totals: dict[str, int], aversions: Mapping[str, int]) -> None:
    """Add the scores of PreferNoSchedule taints: fewer is better."""
    top = max([aversions.get(name, 0) for name in totals], default=0)
    if top:
        for name in totals:
            totals[name] += _TAINT_TOLERATION * (_MAX - _MAX * aversions.get(name, 0) // top)


def add_pod_affinity(totals: dict[str, int], nodes: Sequence[NodeInfo], drawn: Mapping[Domain, int]) -> None:
    """Add the scores of pod affinity: the sums of a node's domains, scaled from the lowest to the highest."""
    keys = list(dict.fromkeys(key for key, _ in drawn))
    sums = {n.name: sum(drawn.get((key, n.view.labels.get(key, "")), 0) for key in keys) for n in nodes}
    low, high = min(sums.values()), max(sums.values())
    if high > low:
        for name, amount in sums.items():
            totals[name] += _POD_AFFINITY * int(_MAX * ((amount - low) / (high - low)))


def add_topology_spread(totals: dict[str, int], crowds: Mapping[str, int]) -> None:
    """Add the scores of topology spread: less skew is better; nodes without the topology keys get nothing."""
    low, high = min(crowds.values(), default=0), max(crowds.values(), default=0)
    for name, crowd in crowds.items():
        totals[name] += _TOPOLOGY_SPREAD * (_MAX * (high + low - crowd) // high if high else _MAX)


# --- spread ---
#
# Topology spread constraints: the pods per domain, and the skew that another pod causes.
#
# Source: kube-scheduler's plugin podtopologyspread. Its default constraints, for pods that a Service selects, are
# omitted: they only affect scores.


_UNEVEN: Final = FilterFailure(("node(s) didn't match pod topology spread constraints",), may_yield=True)
_NO_DOMAIN: Final = FilterFailure(
    ("node(s) didn't match pod topology spread constraints (missing required label)",), may_yield=False
)


class TopologySpreadFilter:
    """The hard spread constraints of a pod: the pods per domain, and the minimum."""

    def __init__(self, pod: PodView, nodes: Iterable[NodeInfo], neighbours: PodAffinityIndex) -> None:
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

    def find_obstacle(self, node: NodeInfo) -> FilterFailure | None:
        """Return why a node fails the constraints; None if it passes."""
        for index, rule in enumerate(self._rules):
            value = node.view.labels.get(rule.topology_key)
            if value is None:
                return _NO_DOMAIN
            if self._domains[index].get(value, 0) + self._own[index] - self._least[index] > rule.max_skew:
                return _UNEVEN
        return None


def topology_skew(
    pod: PodView, feasible: Sequence[NodeInfo], nodes: Iterable[NodeInfo], neighbours: PodAffinityIndex
) -> dict[str, int]:
    """Return the skew of each feasible node by the soft constraints; nodes without all topology keys are omitted."""
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


def _count(rule: SpreadRule, pod: PodView, neighbours: PodAffinityIndex) -> Counts:
    """Return the number of pods in the namespace that a constraint selects, by node; terminating pods are omitted."""
    counts: Counts = {}
    if rule.selector is None or not rule.selector.requirements:
        return counts
    for other, node_name in neighbours.selected(rule.selector):
        if other.namespace == pod.namespace and not other.deleting:
            counts[node_name] = counts.get(node_name, 0) + 1
    return counts


def _means(rule: SpreadRule, pod: PodView) -> int:
    """Return 1 if the constraint selects the pod itself, else 0."""
    return int(rule.selector is not None and rule.selector.matches(pod.labels))


def _has_all_keys(node: NodeInfo, rules: Sequence[SpreadRule]) -> bool:
    return all(rule.topology_key in node.view.labels for rule in rules)


def _is_counted(rule: SpreadRule, pod: PodView, node: NodeInfo) -> bool:
    """Whether a node counts for a constraint, given its inclusion policies."""
    if rule.honors_affinity and not selects(pod.shape.rules, node.view):
        return False
    return not rule.honors_taints or tolerates_all(pod.shape.rules, node.view)


NO_NODES: Final = "no nodes available to schedule pods"


class ChosenNode(NamedTuple):
    """The node that was chosen for a pod."""

    node: str


class Unschedulable(NamedTuple):
    """Why no node fits a pod: the filter failure by node."""

    obstacles: Mapping[str, FilterFailure]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of nodes by reason."""
        counts: dict[str, int] = {}
        for obstacle in self.obstacles.values():
            for reason in obstacle.reasons:
                counts[reason] = counts.get(reason, 0) + 1
        return counts

    def message(self) -> str:
        """Return kube-scheduler's message, such as `0/3 nodes are available: 3 Insufficient cpu.`."""
        return format_fit_error(len(self.obstacles), self.counts) if self.obstacles else NO_NODES


Placement: TypeAlias = ChosenNode | Unschedulable


def format_fit_error(total: int, counts: Mapping[str, int]) -> str:
    """Format kube-scheduler's message; the reasons are sorted by their texts, counts included."""
    is_conflict = list(counts) == list(CONFLICT.reasons)
    reasons = ", ".join(counts if is_conflict else sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{total} nodes are available: {reasons}."


def why_not(pod: PodView, node: NodeInfo, nodes: ClusterSnapshot) -> tuple[str, ...]:
    """Return the reasons why a pod does not fit a node; empty if it fits."""
    obstacle = find_obstacle(pod, node, nodes)
    return () if obstacle is None else obstacle.reasons


def find_obstacle(pod: PodView, node: NodeInfo, nodes: ClusterSnapshot) -> FilterFailure | None:
    """Return why a node rejects a pod; None if it fits, with and without the pods nominated there."""
    held = nodes.held_against(pod, node.name)
    if not held:
        return PodFilters(pod, nodes).find_obstacle(node)
    if is_about_room([pod, *held], nodes):
        reach = nodes.shortlists.reach(pod.shape.rules)
        return reach.obstacles[node.name] or find_shortage(pod.shape, node, less_held(NOTHING, held))
    with nodes.what_if():
        for nominated in held:
            nodes.add_pod(nominated, node.name)
        obstacle = PodFilters(pod, nodes).find_obstacle(node)
    return obstacle or PodFilters(pod, nodes).find_obstacle(node)


def is_about_room(pods: Iterable[PodView], nodes: ClusterSnapshot) -> bool:
    """Whether resource sums alone decide if these pods fit a node that passes the static filters."""
    if nodes.neighbours.repelling:
        return False
    shapes = [pod.shape for pod in pods]
    return not any(shape.minds_pods or shape.host_ports or shape.gpu_milli for shape in shapes)


def find_node(
    pod: PodView, nodes: ClusterSnapshot, profile: AutoscalingProfile = AutoscalingProfile.BALANCED
) -> Placement:
    """Return the best node for a pod, or why none fits."""
    name = pick_node(pod, nodes, profile)
    return ChosenNode(name) if name else Unschedulable(find_obstacles(pod, nodes))


def find_obstacles(pod: PodView, nodes: ClusterSnapshot) -> dict[str, FilterFailure]:
    """Return why each node rejects a pod, by name; fitting nodes are omitted."""
    filters = PodFilters(pod, nodes)
    found = {node.name: filters.find_obstacle_at(node) for node in nodes}
    return {name: obstacle for name, obstacle in found.items() if obstacle is not None}


def pick_node(pod: PodView, nodes: ClusterSnapshot, profile: AutoscalingProfile = AutoscalingProfile.BALANCED) -> str:
    """Return the name of the best node for a pod; '' if none fits. Cheaper than `find_node`."""
    nominated = nodes.get(nodes.nomination_of(pod.uid))
    if nominated is not None and find_obstacle(pod, nominated, nodes) is None:
        return nominated.name
    shortlist = nodes.shortlists.of(pod.shape, profile)
    if not shortlist.scores:
        return ""
    filters, preferences = PodFilters(pod, nodes), PodPreferences(pod, nodes, shortlist)
    if preferences.are_none:
        return shortlist.best(filters.passes)
    return preferences.best({name: score for name, score in shortlist.scores.items() if filters.passes(name)})


class PodFilters:
    """The filters of one pod, computed for the current snapshot."""

    def __init__(self, pod: PodView, nodes: ClusterSnapshot) -> None:
        shape = pod.shape
        self._pod = pod
        self._nodes = nodes
        self._reach = nodes.shortlists.reach(shape.rules)
        self._spread: TopologySpreadFilter | None = None
        self._affinity: PodAffinityFilter | None = None
        if any(rule.is_hard for rule in shape.spread):
            self._spread = TopologySpreadFilter(pod, nodes, nodes.neighbours)
        if shape.affinity or shape.anti_affinity or nodes.neighbours.repelling:
            affinity = PodAffinityFilter(pod, nodes)
            self._affinity = affinity if affinity.matters else None

    def find_obstacle(self, node: NodeInfo) -> FilterFailure | None:
        """Return why the node rejects the pod; None if it passes."""
        return self._reach.obstacles[node.name] or find_shortage(self._pod.shape, node) or self._find_conflict(node)

    def find_obstacle_at(self, node: NodeInfo) -> FilterFailure | None:
        """Return why the node rejects the pod, with the pods nominated there counted."""
        is_held = bool(self._nodes.nominated_to(node.name))
        return find_obstacle(self._pod, node, self._nodes) if is_held else self.find_obstacle(node)

    def passes(self, name: str) -> bool:
        """Whether a candidate node passes the filters that depend on other pods."""
        node = self._nodes.get(name)
        if node is None or self._find_conflict(node) is not None:
            return False
        return not self._nodes.nominated_to(name) or find_obstacle(self._pod, node, self._nodes) is None

    def _find_conflict(self, node: NodeInfo) -> FilterFailure | None:
        """Return the failure that other pods cause."""
        if self._spread is not None and (uneven := self._spread.find_obstacle(node)):
            return uneven
        return None if self._affinity is None else self._affinity.find_obstacle(node)


class PodPreferences:
    """The preferences of one pod, apart from resource scores."""

    def __init__(self, pod: PodView, nodes: ClusterSnapshot, shortlist: CandidateNodes) -> None:
        self._pod = pod
        self._nodes = nodes
        self._reach = shortlist.reach
        is_drawn = bool(pod.shape.preferred or nodes.neighbours.drawing)
        self._drawn = attraction(pod, nodes) if is_drawn else {}
        self._spreads = any(not rule.is_hard for rule in pod.shape.spread)
        self.are_none = not (self._reach.preferences or self._reach.aversions or self._drawn or self._spreads)

    def best(self, totals: dict[str, int]) -> str:
        """Return the best of the nodes in `totals`, which holds their resource scores; '' if it is empty."""
        if not totals:
            return ""
        add_preferences(totals, self._reach.preferences)
        add_taint_scores(totals, self._reach.aversions)
        if self._drawn or self._spreads:
            feasible = [node for node in self._nodes if node.name in totals]
            add_pod_affinity(totals, feasible, self._drawn)
            if self._spreads:
                add_topology_spread(totals, topology_skew(self._pod, feasible, self._nodes, self._nodes.neighbours))
        return min(totals, key=lambda name: (-totals[name], name))
