"""Whether a pod fits a node and which of the nodes it goes to, decided as kube-scheduler does.

Room that is held for nominated pods of no lower priority counts as taken. All nodes are looked at, and of equally
good ones the first by name is taken, where kube-scheduler looks at a part and draws. Sources: kube-scheduler's
schedule_one.go (findNodesThatFitPod, prioritizeNodes), framework/runtime (RunFilterPluginsWithNominatedPods),
framework/types.go (FitError).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import well_known
from batchyard.api.views.pods import PodView, SpreadRule
from batchyard.placement.candidate_nodes import Shortlist
from batchyard.placement.cluster_snapshot import Nodes
from batchyard.placement.node_filters import CONFLICT, Obstacle, selects, tolerates_all
from batchyard.placement.node_info import Node
from batchyard.placement.pod_affinity import Affinity, Counts, Domain, Neighbours, attraction
from batchyard.placement.resources import NOTHING, Profile, find_shortage, less_held

# --- scores ---
#
# Which of the nodes that a pod fits is best: kube-scheduler's scores with their weights.
#
# Scores of resources stand for themselves (batchyard.placement.resources). The others are brought to 0..100 over
# the nodes that are compared. Source: kube-scheduler's plugins tainttoleration, nodeaffinity, interpodaffinity and
# podtopologyspread, apis/config/v1/default_plugins.go, framework/plugins/helper/normalize_score.go.


_MAX: Final = 100
_TAINT_TOLERATION: Final = 3
_NODE_AFFINITY: Final = 2
_TOPOLOGY_SPREAD: Final = 2
_POD_AFFINITY: Final = 2


def add_preferences(totals: dict[str, int], preferences: Mapping[str, int]) -> None:
    """Preferred node affinity: the more the better."""
    top = max([preferences.get(name, 0) for name in totals], default=0)
    if top:
        for name in totals:
            totals[name] += _NODE_AFFINITY * (_MAX * preferences.get(name, 0) // top)


def add_aversions(totals: dict[str, int], aversions: Mapping[str, int]) -> None:
    """Taints that would rather not have the pod: the fewer the better."""
    top = max([aversions.get(name, 0) for name in totals], default=0)
    if top:
        for name in totals:
            totals[name] += _TAINT_TOLERATION * (_MAX - _MAX * aversions.get(name, 0) // top)


def add_attraction(totals: dict[str, int], nodes: Sequence[Node], drawn: Mapping[Domain, int]) -> None:
    """Pod affinity: what the domains of a node draw, from the least to the most."""
    keys = list(dict.fromkeys(key for key, _ in drawn))
    sums = {n.name: sum(drawn.get((key, n.view.labels.get(key, "")), 0) for key in keys) for n in nodes}
    low, high = min(sums.values()), max(sums.values())
    if high > low:
        for name, amount in sums.items():
            totals[name] += _POD_AFFINITY * int(_MAX * ((amount - low) / (high - low)))


def add_crowding(totals: dict[str, int], crowds: Mapping[str, int]) -> None:
    """Topology spread: the less crowded the better; nodes without the topology keys get nothing."""
    low, high = min(crowds.values(), default=0), max(crowds.values(), default=0)
    for name, crowd in crowds.items():
        totals[name] += _TOPOLOGY_SPREAD * (_MAX * (high + low - crowd) // high if high else _MAX)


# --- spread ---
#
# Topology spread: how many pods of a kind each domain has, and how uneven one more may make them.
#
# Source: kube-scheduler's plugin podtopologyspread. Its default constraints, for pods that a Service selects, are left
# out: they only weigh in scores.


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


NO_NODES: Final = "no nodes available to schedule pods"


class Placed(NamedTuple):
    """Where a pod goes."""

    node: str


class Unplaceable(NamedTuple):
    """Why a pod goes nowhere: what is in the way, by node."""

    obstacles: Mapping[str, Obstacle]

    @property
    def counts(self) -> dict[str, int]:
        """How many nodes each reason holds for, as the message counts them."""
        counts: dict[str, int] = {}
        for obstacle in self.obstacles.values():
            for reason in obstacle.reasons:
                counts[reason] = counts.get(reason, 0) + 1
        return counts

    def message(self) -> str:
        """The reasons in kube-scheduler's words, such as `0/3 nodes are available: 3 Insufficient cpu.`."""
        return tell(len(self.obstacles), self.counts) if self.obstacles else NO_NODES


Placement: TypeAlias = Placed | Unplaceable


def tell(total: int, counts: Mapping[str, int]) -> str:
    """Why no node is available, the reasons in the order of their texts, numbers included."""
    is_conflict = list(counts) == list(CONFLICT.reasons)
    reasons = ", ".join(counts if is_conflict else sorted(f"{count} {reason}" for reason, count in counts.items()))
    return f"0/{total} nodes are available: {reasons}."


def why_not(pod: PodView, node: Node, nodes: Nodes) -> tuple[str, ...]:
    """The reasons why a pod does not fit a node; none if it does."""
    obstacle = find_obstacle(pod, node, nodes)
    return () if obstacle is None else obstacle.reasons


def find_obstacle(pod: PodView, node: Node, nodes: Nodes) -> Obstacle | None:
    """What keeps a pod from a node; None if it fits, even once those have come for whom room is held there."""
    held = nodes.held_against(pod, node.name)
    if not held:
        return Filters(pod, nodes).find_obstacle(node)
    if is_about_room([pod, *held], nodes):
        reach = nodes.shortlists.reach(pod.shape.rules)
        return reach.obstacles[node.name] or find_shortage(pod.shape, node, less_held(NOTHING, held))
    with nodes.what_if():
        for nominated in held:
            nodes.add_pod(nominated, node.name)
        obstacle = Filters(pod, nodes).find_obstacle(node)
    return obstacle or Filters(pod, nodes).find_obstacle(node)


def is_about_room(pods: Iterable[PodView], nodes: Nodes) -> bool:
    """Whether sums of resources alone decide whether these pods fit a node that their rules allow."""
    if nodes.neighbours.repelling:
        return False
    shapes = [pod.shape for pod in pods]
    return not any(shape.minds_pods or shape.host_ports or shape.gpu_milli for shape in shapes)


def find_node(pod: PodView, nodes: Nodes, profile: Profile = Profile.BALANCED) -> Placement:
    """Where a pod goes."""
    name = pick_node(pod, nodes, profile)
    return Placed(name) if name else Unplaceable(find_obstacles(pod, nodes))


def find_obstacles(pod: PodView, nodes: Nodes) -> dict[str, Obstacle]:
    """What keeps a pod from each node, by name; nodes it fits are left out."""
    filters = Filters(pod, nodes)
    found = {node.name: filters.find_obstacle_at(node) for node in nodes}
    return {name: obstacle for name, obstacle in found.items() if obstacle is not None}


def pick_node(pod: PodView, nodes: Nodes, profile: Profile = Profile.BALANCED) -> str:
    """The name of the node a pod goes to; '' if it fits none. For those who do not ask why."""
    nominated = nodes.get(nodes.nomination_of(pod.uid))
    if nominated is not None and find_obstacle(pod, nominated, nodes) is None:
        return nominated.name
    shortlist = nodes.shortlists.of(pod.shape, profile)
    if not shortlist.scores:
        return ""
    filters, wishes = Filters(pod, nodes), Wishes(pod, nodes, shortlist)
    if wishes.are_none:
        return shortlist.best(filters.passes)
    return wishes.best({name: score for name, score in shortlist.scores.items() if filters.passes(name)})


class Filters:
    """What one pod needs of nodes, worked out for the cluster as it is now."""

    def __init__(self, pod: PodView, nodes: Nodes) -> None:
        shape = pod.shape
        self._pod = pod
        self._nodes = nodes
        self._reach = nodes.shortlists.reach(shape.rules)
        self._spread: Spread | None = None
        self._affinity: Affinity | None = None
        if any(rule.is_hard for rule in shape.spread):
            self._spread = Spread(pod, nodes, nodes.neighbours)
        if shape.affinity or shape.anti_affinity or nodes.neighbours.repelling:
            affinity = Affinity(pod, nodes)
            self._affinity = affinity if affinity.matters else None

    def find_obstacle(self, node: Node) -> Obstacle | None:
        """What keeps the pod from a node; None if nothing does."""
        return self._reach.obstacles[node.name] or find_shortage(self._pod.shape, node) or self._find_conflict(node)

    def find_obstacle_at(self, node: Node) -> Obstacle | None:
        """The same, with those counted for whom room is held on the node."""
        is_held = bool(self._nodes.nominated_to(node.name))
        return find_obstacle(self._pod, node, self._nodes) if is_held else self.find_obstacle(node)

    def passes(self, name: str) -> bool:
        """Whether a node of the pod's shortlist passes the rest."""
        node = self._nodes.get(name)
        if node is None or self._find_conflict(node) is not None:
            return False
        return not self._nodes.nominated_to(name) or find_obstacle(self._pod, node, self._nodes) is None

    def _find_conflict(self, node: Node) -> Obstacle | None:
        """What the pods that are there have against it."""
        if self._spread is not None and (uneven := self._spread.find_obstacle(node)):
            return uneven
        return None if self._affinity is None else self._affinity.find_obstacle(node)


class Wishes:
    """What one pod would rather have of the nodes it fits, beside a good use of their resources."""

    def __init__(self, pod: PodView, nodes: Nodes, shortlist: Shortlist) -> None:
        self._pod = pod
        self._nodes = nodes
        self._reach = shortlist.reach
        is_drawn = bool(pod.shape.preferred or nodes.neighbours.drawing)
        self._drawn = attraction(pod, nodes) if is_drawn else {}
        self._spreads = any(not rule.is_hard for rule in pod.shape.spread)
        self.are_none = not (self._reach.preferences or self._reach.aversions or self._drawn or self._spreads)

    def best(self, totals: dict[str, int]) -> str:
        """The best of some nodes, given with their scores for resources; '' if there are none."""
        if not totals:
            return ""
        add_preferences(totals, self._reach.preferences)
        add_aversions(totals, self._reach.aversions)
        if self._drawn or self._spreads:
            feasible = [node for node in self._nodes if node.name in totals]
            add_attraction(totals, feasible, self._drawn)
            if self._spreads:
                add_crowding(totals, crowding(self._pod, feasible, self._nodes, self._nodes.neighbours))
        return min(totals, key=lambda name: (-totals[name], name))
