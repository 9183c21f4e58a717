"""Preemption: the fewest and least important pods of lower priority whose eviction makes a pod fit on one node.

Sources: kube-scheduler's framework/preemption (Preempt, DryRunPreemption, pickOneNodeForPreemption) and plugin
defaultpreemption. Pods whose disruption budget allows no disruption are spared if possible. Where kube-scheduler starts
its search at a random node, this one starts at the first by name.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api.views.pods import PodView
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import find_obstacle, format_fit_error, is_about_room
from batchyard.placement.node_filters import FilterFailure, find_shortage, less_held
from batchyard.placement.node_info import NodeInfo

#: How many nodes with victims are compared: 10 % of the candidates, but at least 100.
_CANDIDATES_MIN: Final = 100
_CANDIDATES_PERCENT: Final = 10
#: Offset for sums of priorities, so that more victims weigh more even with negative priorities.
_PRIORITY_OFFSET: Final = 2**31
#: Assumed start time of a pod without a reported one: after all others.
_NOT_STARTED: Final = 2**63

_NO_VICTIMS: Final = FilterFailure(("No preemption victims found for incoming pod",), may_yield=False)
_NO_HELP: Final = "Preemption is not helpful for scheduling"


class PodPreemption(NamedTuple):
    """The node and its victims, most important first."""

    node: str
    victims: tuple[PodView, ...]
    #: How many victims violate their disruption budgets.
    violations: int = 0


class PreemptionFailure(NamedTuple):
    """Why preemption does not help, in kube-scheduler's words."""

    message: str
    #: Earlier victims are still terminating.
    is_under_way: bool = False


_NEVER: Final = PreemptionFailure("preemption: not eligible due to preemptionPolicy=Never.")
UNDER_WAY: Final = PreemptionFailure(
    "preemption: not eligible due to a terminating pod on the nominated node.", is_under_way=True
)


def find_preemption(
    pod: PodView, nodes: ClusterSnapshot, obstacles: Mapping[str, FilterFailure]
) -> PodPreemption | PreemptionFailure:
    """Return the preemption for a pod, given why each node rejects it (by node name)."""
    if not pod.may_preempt:
        return _NEVER
    nominated = obstacles.get(nodes.nomination_of(pod.uid))
    if nominated is not None and nominated.may_yield and awaits_victims(pod, nodes):
        return UNDER_WAY
    potential = [name for name, obstacle in obstacles.items() if obstacle.may_yield]
    enough = max(len(potential) * _CANDIDATES_PERCENT // 100, _CANDIDATES_MIN)
    candidates: list[PodPreemption] = []
    counts: dict[str, int] = {}
    has_victims = nodes.has_lower_priority(pod.priority)
    for name in potential:
        found = _find_victims(pod, nodes.get(name), nodes) if has_victims else _NO_VICTIMS
        if isinstance(found, PodPreemption):
            candidates.append(found)
            if len(candidates) == enough:
                break
        else:
            for text in found.reasons:
                counts[text] = counts.get(text, 0) + 1
    if candidates:
        return min(candidates, key=_cost)
    if len(potential) < len(nodes):
        counts[_NO_HELP] = len(nodes) - len(potential)
    return PreemptionFailure(f"preemption: {format_fit_error(len(nodes), counts)}")


def no_victims_failure(obstacles: Mapping[str, FilterFailure], count: int) -> PreemptionFailure:
    """Return the message if no pod of the `count` nodes may be evicted."""
    potential = sum(obstacle.may_yield for obstacle in obstacles.values())
    counts = {text: potential for text in _NO_VICTIMS.reasons if potential}
    if potential < count:
        counts[_NO_HELP] = count - potential
    return PreemptionFailure(f"preemption: {format_fit_error(count, counts)}")


def awaits_victims(pod: PodView, nodes: ClusterSnapshot) -> bool:
    """Whether victims of the pod are still terminating on its nominated node."""
    node = nodes.get(nodes.nomination_of(pod.uid))
    return node is not None and any(p.preempted and p.priority < pod.priority for p in node.pods.values())


def importance(pod: PodView) -> tuple[int, int, str]:
    """Return the order in which pods are spared: higher priority, then earlier start, then name."""
    return -pod.priority, _start(pod), pod.key


def lower_pods(pod: PodView, node: NodeInfo) -> list[PodView]:
    """Return the pods of a node that may be evicted for another pod."""
    return [other for other in node.pods.values() if other.priority < pod.priority and not are_mates(pod, other)]


def are_mates(pod: PodView, other: PodView) -> bool:
    """Whether two pods are of one gang, in which pods do not preempt each other."""
    return bool(pod.gang) and pod.gang == other.gang


def _find_victims(pod: PodView, node: NodeInfo | None, nodes: ClusterSnapshot) -> PodPreemption | FilterFailure:
    """Return the victims on a node, or the failure that remains without all pods of lower priority."""
    lower = [] if node is None else lower_pods(pod, node)
    if node is None or not lower:
        return _NO_VICTIMS
    held = nodes.held_against(pod, node.name)
    if not is_about_room([pod, *held], nodes):
        return _find_by_trial(pod, node, lower, nodes)
    staying = [other for other in node.pods.values() if other.priority < pod.priority and are_mates(pod, other)]
    spare = dict(less_held(node.taken_below(pod.priority), [*held, *staying]))
    shortage = find_shortage(pod.shape, node, spare)
    if shortage is not None:
        return shortage
    victims = []
    violating, in_turn = _in_turn(lower, nodes)
    for other in in_turn:
        less = {resource: spare[resource] - amount for resource, amount in other.requests}
        if find_shortage(pod.shape, node, {**spare, **less}) is None:
            spare.update(less)
        else:
            victims.append(other)
    return _preemption(node, victims, violating)


def _in_turn(pods: Sequence[PodView], nodes: ClusterSnapshot) -> tuple[Mapping[str, None], Sequence[PodView]]:
    """Return the uids of pods whose eviction violates a budget, and the order of sparing, those pods first."""
    ordered = sorted(pods, key=importance)
    violating = nodes.budgets.violating(ordered) if nodes.budgets else {}
    if violating:
        ordered.sort(key=lambda pod: pod.uid not in violating)
    return violating, ordered


def _preemption(node: NodeInfo, victims: Sequence[PodView], violating: Mapping[str, None]) -> PodPreemption:
    if not violating:
        return PodPreemption(node.name, tuple(victims))
    violations = sum(victim.uid in violating for victim in victims)
    return PodPreemption(node.name, tuple(sorted(victims, key=importance)), violations)


def _find_by_trial(
    pod: PodView, node: NodeInfo, lower: Sequence[PodView], nodes: ClusterSnapshot
) -> PodPreemption | FilterFailure:
    """Find victims by trial: remove all candidates, then add each back if the pod still fits."""
    victims = []
    with nodes.what_if():
        for other in lower:
            nodes.remove_pod(other.uid)
        obstacle = find_obstacle(pod, node, nodes)
        if obstacle is not None:
            return obstacle
        violating, in_turn = _in_turn(lower, nodes)
        for other in in_turn:
            nodes.add_pod(other, node.name)
            if find_obstacle(pod, node, nodes) is not None:
                nodes.remove_pod(other.uid)
                victims.append(other)
    return _preemption(node, victims, violating)


def _cost(candidate: PodPreemption) -> tuple[int, int, int, int, int, str]:
    """Return the sort key: PDB violations, highest priority, sum of priorities, number, latest start."""
    victims = candidate.victims
    if not victims:
        return 0, -_PRIORITY_OFFSET, 0, 0, 0, candidate.node
    highest = victims[0].priority
    earliest = min(_start(victim) for victim in victims if victim.priority == highest)
    total = sum(victim.priority + _PRIORITY_OFFSET for victim in victims)
    return candidate.violations, highest, total, len(victims), -earliest, candidate.node


def _start(pod: PodView) -> int:
    return _NOT_STARTED if pod.started is None else pod.started
