"""Whether a pod fits a node and which of the nodes it goes to, decided as kube-scheduler does.

Room that is held for nominated pods of no lower priority counts as taken. All nodes are looked at, and of equally
good ones the first by name is taken, where kube-scheduler looks at a part and draws. Sources: kube-scheduler's
schedule_one.go (findNodesThatFitPod, prioritizeNodes), framework/runtime (RunFilterPluginsWithNominatedPods),
framework/types.go (FitError).
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.views.pods import PodView
from batchyard.core.placement.affinity import Affinity, attraction
from batchyard.core.placement.cluster import Nodes
from batchyard.core.placement.node import Node
from batchyard.core.placement.profile import Profile
from batchyard.core.placement.resources import NOTHING, find_shortage, less_held
from batchyard.core.placement.rules import CONFLICT, Obstacle
from batchyard.core.placement.scores import add_attraction, add_aversions, add_crowding, add_preferences
from batchyard.core.placement.shortlist import Shortlist
from batchyard.core.placement.spread import Spread, crowding

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
