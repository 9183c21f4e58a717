"""Preemption: the choice of a node, and of pods of lower priority whose eviction makes a pod fit there.

Sources: kube-scheduler's framework/preemption (Preempt, DryRunPreemption, pickOneNodeForPreemption) and plugin
defaultpreemption. Pods whose disruption budget allows no disruption are spared if possible. Where kube-scheduler starts
its search at a random node, this one starts at the first by name.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api.views.pods import PodView
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import find_obstacle, format_fit_error, needs_only_resources
from batchyard.placement.node_filters import FilterFailure, find_shortage, subtract_requests
from batchyard.placement.node_info import NodeInfo

#: The number of nodes with victims that are compared: 10 % of the candidates, but at least 100.
_CANDIDATES_MIN: Final = 100
_CANDIDATES_PERCENT: Final = 10
#: Offset for sums of priorities, so that more victims weigh more even with negative priorities.
_PRIORITY_OFFSET: Final = 2**31
#: Assumed start time of a pod without a reported one: after all others.
_NOT_STARTED_TIME: Final = 2**63

_NO_VICTIMS: Final = FilterFailure(("No preemption victims found for incoming pod",), is_resolvable=False)
_NOT_HELPFUL_MESSAGE: Final = "Preemption is not helpful for scheduling"


class PodPreemption(NamedTuple):
    """A preemption on one node: the node, and its victims, most important first."""

    node: str
    victims: tuple[PodView, ...]
    #: The number of victims whose eviction violates a PodDisruptionBudget.
    violations: int = 0


class PreemptionFailure(NamedTuple):
    """Why preemption does not help a pod, as kube-scheduler's message."""

    message: str
    #: Whether victims of an earlier preemption are still terminating.
    is_under_way: bool = False


_NEVER_PREEMPTS: Final = PreemptionFailure("preemption: not eligible due to preemptionPolicy=Never.")
PREEMPTION_UNDER_WAY: Final = PreemptionFailure(
    "preemption: not eligible due to a terminating pod on the nominated node.", is_under_way=True
)


def find_preemption(
    pod: PodView, nodes: ClusterSnapshot, obstacles: Mapping[str, FilterFailure]
) -> PodPreemption | PreemptionFailure:
    """Return the best preemption found for a pod, or why preemption does not help.

    `obstacles` are the reasons why nodes reject the pod, by node name.
    """
    if not pod.may_preempt:
        return _NEVER_PREEMPTS
    nominated_failure = obstacles.get(nodes.nominated_node_of(pod.uid))
    if nominated_failure is not None and nominated_failure.is_resolvable and awaits_victims(pod, nodes):
        return PREEMPTION_UNDER_WAY
    candidate_names = [name for name, obstacle in obstacles.items() if obstacle.is_resolvable]
    enough_candidate_count = max(len(candidate_names) * _CANDIDATES_PERCENT // 100, _CANDIDATES_MIN)
    candidate_preemptions: list[PodPreemption] = []
    count_by_reason: dict[str, int] = {}
    has_victims = nodes.has_pods_below(pod.priority)
    for name in candidate_names:
        preemption_or_failure = _find_victims(pod, nodes.get(name), nodes) if has_victims else _NO_VICTIMS
        if isinstance(preemption_or_failure, PodPreemption):
            candidate_preemptions.append(preemption_or_failure)
            if len(candidate_preemptions) == enough_candidate_count:
                break
        else:
            for reason in preemption_or_failure.reasons:
                count_by_reason[reason] = count_by_reason.get(reason, 0) + 1
    if candidate_preemptions:
        return min(candidate_preemptions, key=_preemption_cost)
    if len(candidate_names) < len(nodes):
        count_by_reason[_NOT_HELPFUL_MESSAGE] = len(nodes) - len(candidate_names)
    return PreemptionFailure(f"preemption: {format_fit_error(len(nodes), count_by_reason)}")


def no_victims_failure(obstacles: Mapping[str, FilterFailure], node_count: int) -> PreemptionFailure:
    """Return kube-scheduler's failure for the case that no pod on any of `node_count` nodes may be evicted."""
    candidate_count = sum(obstacle.is_resolvable for obstacle in obstacles.values())
    count_by_reason = {reason: candidate_count for reason in _NO_VICTIMS.reasons if candidate_count}
    if candidate_count < node_count:
        count_by_reason[_NOT_HELPFUL_MESSAGE] = node_count - candidate_count
    return PreemptionFailure(f"preemption: {format_fit_error(node_count, count_by_reason)}")


def awaits_victims(pod: PodView, nodes: ClusterSnapshot) -> bool:
    """Return whether preempted pods of lower priority are still on the nominated node of a pod."""
    node = nodes.get(nodes.nominated_node_of(pod.uid))
    return node is not None and any(p.preempted and p.priority < pod.priority for p in node.pods.values())


def importance_key(pod: PodView) -> tuple[int, int, str]:
    """Return the key that sorts the most important pods first: higher priority, then earlier start, then name."""
    return -pod.priority, _start_time(pod), pod.key


def preemptible_pods(pod: PodView, node: NodeInfo) -> list[PodView]:
    """Return the pods of a node that may be evicted for `pod`: those of a lower priority and of other gangs."""
    return [
        candidate
        for candidate in node.pods.values()
        if candidate.priority < pod.priority and not are_in_same_gang(pod, candidate)
    ]


def are_in_same_gang(pod: PodView, other_pod: PodView) -> bool:
    """Return whether two pods belong to the same gang, whose pods do not preempt each other."""
    return bool(pod.gang) and pod.gang == other_pod.gang


def _find_victims(pod: PodView, node: NodeInfo | None, nodes: ClusterSnapshot) -> PodPreemption | FilterFailure:
    candidate_victims = [] if node is None else preemptible_pods(pod, node)
    if node is None or not candidate_victims:
        return _NO_VICTIMS
    competing_pods = nodes.competing_nominations(pod, node.name)
    if not needs_only_resources([pod, *competing_pods], nodes):
        return _find_victims_by_trial(pod, node, candidate_victims, nodes)
    gang_pods = [p for p in node.pods.values() if p.priority < pod.priority and are_in_same_gang(pod, p)]
    freed_amounts = dict(subtract_requests(node.requests_below(pod.priority), [*competing_pods, *gang_pods]))
    shortage = find_shortage(pod.shape, node, freed_amounts)
    if shortage is not None:
        return shortage
    victims = []
    violating_uids, ordered_pods = _order_victims(candidate_victims, nodes)
    for other_pod in ordered_pods:
        amounts_without_pod = {resource: freed_amounts[resource] - amount for resource, amount in other_pod.requests}
        if find_shortage(pod.shape, node, {**freed_amounts, **amounts_without_pod}) is None:
            freed_amounts.update(amounts_without_pod)
        else:
            victims.append(other_pod)
    return _make_preemption(node, victims, violating_uids)


def _order_victims(pods: Sequence[PodView], nodes: ClusterSnapshot) -> tuple[Mapping[str, None], Sequence[PodView]]:
    """Return the uids of the pods whose eviction violates a PodDisruptionBudget, and the pods sorted.

    The pods to evict last come first: those with a violation, and among equals the more important ones.
    """
    ordered_pods = sorted(pods, key=importance_key)
    violating_uids = nodes.budgets.violating_uids(ordered_pods) if nodes.budgets else {}
    if violating_uids:
        ordered_pods.sort(key=lambda pod: pod.uid not in violating_uids)
    return violating_uids, ordered_pods


def _make_preemption(node: NodeInfo, victims: Sequence[PodView], violating_uids: Mapping[str, None]) -> PodPreemption:
    if not violating_uids:
        return PodPreemption(node.name, tuple(victims))
    violations = sum(victim.uid in violating_uids for victim in victims)
    return PodPreemption(node.name, tuple(sorted(victims, key=importance_key)), violations)


def _find_victims_by_trial(
    pod: PodView, node: NodeInfo, candidate_victims: Sequence[PodView], nodes: ClusterSnapshot
) -> PodPreemption | FilterFailure:
    victims = []
    with nodes.what_if():
        for other in candidate_victims:
            nodes.remove_pod(other.uid)
        obstacle = find_obstacle(pod, node, nodes)
        if obstacle is not None:
            return obstacle
        violating_uids, ordered_pods = _order_victims(candidate_victims, nodes)
        for other in ordered_pods:
            nodes.add_pod(other, node.name)
            if find_obstacle(pod, node, nodes) is not None:
                nodes.remove_pod(other.uid)
                victims.append(other)
    return _make_preemption(node, victims, violating_uids)


def _preemption_cost(candidate: PodPreemption) -> tuple[int, int, int, int, int, str]:
    victims = candidate.victims
    if not victims:
        return 0, -_PRIORITY_OFFSET, 0, 0, 0, candidate.node
    highest_priority = victims[0].priority
    earliest_start = min(_start_time(victim) for victim in victims if victim.priority == highest_priority)
    priority_sum = sum(victim.priority + _PRIORITY_OFFSET for victim in victims)
    return candidate.violations, highest_priority, priority_sum, len(victims), -earliest_start, candidate.node


def _start_time(pod: PodView) -> int:
    return _NOT_STARTED_TIME if pod.started is None else pod.started
