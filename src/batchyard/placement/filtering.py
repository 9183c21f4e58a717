"""Filtering and scoring of nodes for a pod, as in kube-scheduler.

Capacity that is reserved for nominated pods of the same or higher priority counts as used. All nodes are considered,
and ties go to the first name; kube-scheduler samples nodes and breaks ties at random. Sources: kube-scheduler's
schedule_one.go (findNodesThatFitPod, prioritizeNodes), framework/runtime (RunFilterPluginsWithNominatedPods),
framework/types.go (FitError).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import well_known
from batchyard.api.views.pod_shape import SpreadRule
from batchyard.api.views.pods import PodView
from batchyard.placement import node_filters
from batchyard.placement.cluster_snapshot import CandidateNodes, ClusterSnapshot, VolumeFilter
from batchyard.placement.gpu_policies import GpuPolicy, NodeScoring
from batchyard.placement.node_info import NodeInfo
from batchyard.placement.pod_affinity import CountByNode, Domain, PodAffinityFilter, PodAffinityIndex, affinity_scores

# Scores of the nodes that a pod fits: kube-scheduler's score plugins with their weights.
#
# Resource scores are separate (batchyard.placement.node_filters). The others are normalized to 0..100 over the compared
# nodes. Source: kube-scheduler's plugins tainttoleration, nodeaffinity, interpodaffinity and podtopologyspread,
# apis/config/v1/default_plugins.go, framework/plugins/helper/normalize_score.go.


_MAX_SCORE: Final = 100
_TAINT_TOLERATION_WEIGHT: Final = 3
_NODE_AFFINITY_WEIGHT: Final = 2
_TOPOLOGY_SPREAD_WEIGHT: Final = 2
_POD_AFFINITY_WEIGHT: Final = 2


def add_node_affinity_scores(scores: dict[str, int], affinity_weights: Mapping[str, int]) -> None:
    """Add scores for preferred node affinity to the nodes' total scores: the larger the weight, the better."""
    highest_weight = max([affinity_weights.get(name, 0) for name in scores], default=0)
    if highest_weight:
        for name in scores:
            scores[name] += _NODE_AFFINITY_WEIGHT * (_MAX_SCORE * affinity_weights.get(name, 0) // highest_weight)


def add_taint_scores(scores: dict[str, int], taint_counts: Mapping[str, int]) -> None:
    """Add scores for untolerated PreferNoSchedule taints to the nodes' total scores: the fewer taints, the better."""
    highest_count = max([taint_counts.get(name, 0) for name in scores], default=0)
    if highest_count:
        for name in scores:
            scores[name] += _TAINT_TOLERATION_WEIGHT * (
                _MAX_SCORE - _MAX_SCORE * taint_counts.get(name, 0) // highest_count
            )


def add_pod_affinity_scores(
    scores: dict[str, int], nodes: Sequence[NodeInfo], domain_scores: Mapping[Domain, int]
) -> None:
    """Add pod affinity to the nodes' total scores: each node's summed domain scores, normalized to 0..100, weighted."""
    keys = list(dict.fromkeys(key for key, _ in domain_scores))
    score_sums = {n.name: sum(domain_scores.get((key, n.view.labels.get(key, "")), 0) for key in keys) for n in nodes}
    minimum, maximum = min(score_sums.values()), max(score_sums.values())
    if maximum > minimum:
        for name, amount in score_sums.items():
            scores[name] += _POD_AFFINITY_WEIGHT * int(_MAX_SCORE * ((amount - minimum) / (maximum - minimum)))


def add_topology_spread_scores(scores: dict[str, int], skews: Mapping[str, int]) -> None:
    """Add topology spread to the nodes' total scores: the less skew, the better; nodes not in `skews` get 0."""
    lowest_skew, highest_skew = min(skews.values(), default=0), max(skews.values(), default=0)
    for name, skew in skews.items():
        scores[name] += _TOPOLOGY_SPREAD_WEIGHT * (
            _MAX_SCORE * (highest_skew + lowest_skew - skew) // highest_skew if highest_skew else _MAX_SCORE
        )


# Topology spread constraints: the pods per domain, and the skew that another pod causes.
#
# Source: kube-scheduler's plugin podtopologyspread. Its default constraints, for pods that a Service selects, are
# omitted: they only affect scores.


_SKEW_EXCEEDED: Final = node_filters.FilterFailure(
    ("node(s) didn't match pod topology spread constraints",), is_resolvable=True
)
_MISSING_TOPOLOGY_LABEL: Final = node_filters.FilterFailure(
    ("node(s) didn't match pod topology spread constraints (missing required label)",), is_resolvable=False
)


class TopologySpreadFilter:
    """Node filter for a pod's DoNotSchedule topology spread constraints, by the number of matching pods per domain."""

    def __init__(self, pod: PodView, nodes: Iterable[NodeInfo], placed_pods: PodAffinityIndex) -> None:
        self._rules = [rule for rule in pod.shape.spread_rules if rule.is_hard]
        self._own_counts = [_own_pod_count(rule, pod) for rule in self._rules]
        self._domains: list[CountByNode] = [{} for _ in self._rules]
        pod_counts = [_count_selected_pods(rule, pod, placed_pods) for rule in self._rules]
        for node in nodes:
            if _has_all_keys(node, self._rules):
                for index, rule in enumerate(self._rules):
                    if _is_node_counted(rule, pod, node):
                        domains, value = self._domains[index], node.view.labels[rule.topology_key]
                        domains[value] = domains.get(value, 0) + pod_counts[index].get(node.name, 0)
        self._minimums = [
            0 if len(domains) < rule.min_domains else min(domains.values())
            for rule, domains in zip(self._rules, self._domains, strict=True)
        ]

    def find_obstacle(self, node: NodeInfo) -> node_filters.FilterFailure | None:
        """Return why a node fails the topology spread constraints; None if it passes."""
        for index, rule in enumerate(self._rules):
            value = node.view.labels.get(rule.topology_key)
            if value is None:
                return _MISSING_TOPOLOGY_LABEL
            if self._domains[index].get(value, 0) + self._own_counts[index] - self._minimums[index] > rule.max_skew:
                return _SKEW_EXCEEDED
        return None


def topology_skews(
    pod: PodView, feasible_nodes: Sequence[NodeInfo], nodes: Iterable[NodeInfo], placed_pods: PodAffinityIndex
) -> dict[str, int]:
    """Return each feasible node's skew by ScheduleAnyway constraints; nodes that lack a topology key are omitted."""
    soft_rules = [rule for rule in pod.shape.spread_rules if not rule.is_hard]
    scored_nodes = [node for node in feasible_nodes if _has_all_keys(node, soft_rules)]
    skews = dict.fromkeys([node.name for node in scored_nodes], 0.0)
    for rule in soft_rules:
        key, counts = rule.topology_key, _count_selected_pods(rule, pod, placed_pods)
        domain_counts = {node.view.labels[key]: 0 for node in scored_nodes}
        if key != well_known.HOSTNAME:
            counted_nodes = [
                n for n in nodes if n.name in counts and _has_all_keys(n, soft_rules) and _is_node_counted(rule, pod, n)
            ]
            for node in (node for node in counted_nodes if node.view.labels[key] in domain_counts):
                domain_counts[node.view.labels[key]] += counts[node.name]
        domain_weight = math.log((len(scored_nodes) if key == well_known.HOSTNAME else len(domain_counts)) + 2)
        for node in scored_nodes:
            count = counts.get(node.name, 0) if key == well_known.HOSTNAME else domain_counts[node.view.labels[key]]
            skews[node.name] += count * domain_weight + rule.max_skew - 1
    return {name: math.floor(skew + 0.5) for name, skew in skews.items()}


def _count_selected_pods(rule: SpreadRule, pod: PodView, placed_pods: PodAffinityIndex) -> CountByNode:
    pod_counts: CountByNode = {}
    if rule.selector is None or not rule.selector.requirements:
        return pod_counts
    for other, node_name in placed_pods.selected_pods(rule.selector):
        if other.namespace == pod.namespace and not other.deleting:
            pod_counts[node_name] = pod_counts.get(node_name, 0) + 1
    return pod_counts


def _own_pod_count(rule: SpreadRule, pod: PodView) -> int:
    return int(rule.selector is not None and rule.selector.matches(pod.labels))


def _has_all_keys(node: NodeInfo, rules: Sequence[SpreadRule]) -> bool:
    return all(rule.topology_key in node.view.labels for rule in rules)


def _is_node_counted(rule: SpreadRule, pod: PodView, node: NodeInfo) -> bool:
    if rule.honors_affinity and not node_filters.selects(pod.shape.rules, node.view):
        return False
    return not rule.honors_taints or node_filters.tolerates_all_taints(pod.shape.rules, node.view)


NO_NODES: Final = "no nodes available to schedule pods"


class ChosenNode(NamedTuple):
    """The name of the node that was chosen for a pod."""

    node: str


class Unschedulable(NamedTuple):
    """Why a pod fits no node: the filter failure of each node."""

    obstacles: Mapping[str, node_filters.FilterFailure]

    @property
    def count_by_reason(self) -> dict[str, int]:
        """The number of nodes by failure reason."""
        count_by_reason: dict[str, int] = {}
        for obstacle in self.obstacles.values():
            for reason in obstacle.reasons:
                count_by_reason[reason] = count_by_reason.get(reason, 0) + 1
        return count_by_reason

    def message(self) -> str:
        """Return kube-scheduler's message, such as `0/3 nodes are available: 3 Insufficient cpu.`."""
        first_obstacle = next(iter(self.obstacles.values()), None)
        if first_obstacle is None:
            return NO_NODES
        if first_obstacle.concerns_pod:
            return f"0/{len(self.obstacles)} nodes are available: {', '.join(first_obstacle.reasons)}."
        return format_fit_error(len(self.obstacles), self.count_by_reason)


Placement: TypeAlias = ChosenNode | Unschedulable


def format_fit_error(node_count: int, counts: Mapping[str, int]) -> str:
    """Return kube-scheduler's FitError message from the number of nodes by reason; the reasons are sorted as texts."""
    reasons = ", ".join(sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{node_count} nodes are available: {reasons}."


def filter_failure_reasons(pod: PodView, node: NodeInfo, nodes: ClusterSnapshot) -> tuple[str, ...]:
    """Return the reasons why a pod does not fit a node; empty if it fits."""
    obstacle = find_obstacle(pod, node, nodes)
    return () if obstacle is None else obstacle.reasons


def find_obstacle(pod: PodView, node: NodeInfo, nodes: ClusterSnapshot) -> node_filters.FilterFailure | None:
    """Return why a node rejects a pod; None if the node accepts it.

    The pod must fit with and without its competitors: the pods nominated to the node that have the same or a higher
    priority.
    """
    competing_pods = nodes.competing_nominations(pod, node.name)
    if not competing_pods:
        return PodFilters(pod, nodes).find_obstacle(node)
    if needs_only_resources([pod, *competing_pods], nodes):
        static_results = nodes.candidate_cache.static_results(pod.shape.rules)
        return static_results.obstacles[node.name] or node_filters.find_shortage(
            pod.shape, node, node_filters.subtract_requests(node_filters.NO_AMOUNTS, competing_pods)
        )
    with nodes.what_if():
        for nominated in competing_pods:
            nodes.add_pod(nominated, node.name)
        obstacle = PodFilters(pod, nodes).find_obstacle(node)
    return obstacle or PodFilters(pod, nodes).find_obstacle(node)


def needs_only_resources(pods: Iterable[PodView], nodes: ClusterSnapshot) -> bool:
    """Return whether resource sums alone decide if pods fit nodes with suitable labels and taints; False if unsure."""
    pods = list(pods)
    if nodes.placed_pods.anti_affinity_terms or any(pod.volume_claims for pod in pods):
        return False
    shapes = [pod.shape for pod in pods]
    return not any(shape.depends_on_pods or shape.host_ports or shape.gpu_milli for shape in shapes)


def find_node(
    pod: PodView, nodes: ClusterSnapshot, profile: NodeScoring = node_filters.AutoscalingProfile.BALANCED
) -> Placement:
    """Return the node that `choose_node` chooses for a pod, or why the pod fits no node."""
    name = choose_node(pod, nodes, profile)
    return ChosenNode(name) if name else Unschedulable(find_obstacles(pod, nodes))


def find_obstacles(pod: PodView, nodes: ClusterSnapshot) -> dict[str, node_filters.FilterFailure]:
    """Return why each node rejects a pod, by node name; nodes that fit are omitted."""
    pod_filters = PodFilters(pod, nodes)
    failure_by_node = {node.name: pod_filters.find_obstacle_with_nominations(node) for node in nodes}
    return {name: obstacle for name, obstacle in failure_by_node.items() if obstacle is not None}


def choose_node(
    pod: PodView, nodes: ClusterSnapshot, profile: NodeScoring = node_filters.AutoscalingProfile.BALANCED
) -> str:
    """Return a pod's nominated node if it still fits there, otherwise the best node, by name; '' if it fits no node."""
    nominated_node = nodes.get(nodes.nominated_node_of(pod.uid))
    if nominated_node is not None and find_obstacle(pod, nominated_node, nodes) is None:
        return nominated_node.name
    candidate_nodes = nodes.candidate_cache.candidates_for(pod.shape, profile)
    if not candidate_nodes.scores:
        return ""
    pod_filters, pod_preferences = PodFilters(pod, nodes), PodPreferences(pod, nodes, candidate_nodes)
    if isinstance(profile, GpuPolicy) and profile.draw_below is not None:
        return candidate_nodes.random_node(pod_filters.accepts_node, profile.draw_below)
    if pod_preferences.is_empty:
        return candidate_nodes.best_node(pod_filters.accepts_node)
    return pod_preferences.best_node(
        {name: score for name, score in candidate_nodes.scores.items() if pod_filters.accepts_node(name)}
    )


class PodFilters:
    """The node filters of one pod, evaluated on the current cluster snapshot."""

    def __init__(self, pod: PodView, nodes: ClusterSnapshot) -> None:
        shape = pod.shape
        self._pod = pod
        self._nodes = nodes
        self._static_results = nodes.candidate_cache.static_results(shape.rules)
        self._shortages = nodes.candidate_cache.shortages_for(shape)
        self._spread: TopologySpreadFilter | None = None
        self._affinity: PodAffinityFilter | None = None
        self._claims: VolumeFilter | None = None
        if pod.volume_claims and nodes.volume_filter is not None:
            self._claims = nodes.volume_filter(pod, nodes)
        if any(rule.is_hard for rule in shape.spread_rules):
            self._spread = TopologySpreadFilter(pod, nodes, nodes.placed_pods)
        if shape.affinity or shape.anti_affinity or nodes.placed_pods.anti_affinity_terms:
            affinity_filter = PodAffinityFilter(pod, nodes)
            self._affinity = affinity_filter if affinity_filter.may_reject else None

    def find_obstacle(self, node: NodeInfo) -> node_filters.FilterFailure | None:
        """Return why a node rejects the pod, ignoring pods nominated to the node; None if the node accepts it."""
        if self._claims is not None and self._claims.pod_failure is not None:
            return self._claims.pod_failure
        return self._static_results.obstacles[node.name] or self._shortages.find(node) or self._find_conflict(node)

    def find_obstacle_with_nominations(self, node: NodeInfo) -> node_filters.FilterFailure | None:
        """Return why a node rejects the pod, counting the pods nominated to the node; None if the node accepts it."""
        has_nominated_pods = bool(self._nodes.pods_nominated_to(node.name))
        return find_obstacle(self._pod, node, self._nodes) if has_nominated_pods else self.find_obstacle(node)

    def accepts_node(self, name: str) -> bool:
        """Return whether a node with enough free resources also passes the filters that depend on other pods."""
        node = self._nodes.get(name)
        if node is None or self._find_conflict(node) is not None:
            return False
        return not self._nodes.pods_nominated_to(name) or find_obstacle(self._pod, node, self._nodes) is None

    def _find_conflict(self, node: NodeInfo) -> node_filters.FilterFailure | None:
        if self._claims is not None and (claim_failure := self._claims.find_obstacle(node)):
            return claim_failure
        if self._spread is not None and (spread_failure := self._spread.find_obstacle(node)):
            return spread_failure
        return None if self._affinity is None else self._affinity.find_obstacle(node)


class PodPreferences:
    """The preferences of one pod for nodes by affinity, taints and topology spread, without resource scores."""

    def __init__(self, pod: PodView, nodes: ClusterSnapshot, candidate_nodes: CandidateNodes) -> None:
        self._pod = pod
        self._nodes = nodes
        self._static_results = candidate_nodes.static_results
        has_affinity_preferences = bool(pod.shape.preferred_terms or nodes.placed_pods.preferred_terms)
        self._domain_scores = affinity_scores(pod, nodes) if has_affinity_preferences else {}
        self._has_soft_spread = any(not rule.is_hard for rule in pod.shape.spread_rules)
        self.is_empty = not (
            self._static_results.affinity_weights
            or self._static_results.taint_counts
            or self._domain_scores
            or self._has_soft_spread
        )

    def best_node(self, scores: dict[str, int]) -> str:
        """Add the preferences to `scores` (resource scores by node); return the best node's name, '' without scores."""
        if not scores:
            return ""
        add_node_affinity_scores(scores, self._static_results.affinity_weights)
        add_taint_scores(scores, self._static_results.taint_counts)
        if self._domain_scores or self._has_soft_spread:
            feasible_nodes = [node for node in self._nodes if node.name in scores]
            add_pod_affinity_scores(scores, feasible_nodes, self._domain_scores)
            if self._has_soft_spread:
                add_topology_spread_scores(
                    scores, topology_skews(self._pod, feasible_nodes, self._nodes, self._nodes.placed_pods)
                )
        return min(scores, key=lambda name: (-scores[name], name))
