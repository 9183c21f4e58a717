"""Node filters and scores that depend on one node: taints, labels, resource fit, host ports and resource scores.

Messages are kube-scheduler's. Sources: its plugins nodeunschedulable, tainttoleration and nodeaffinity;
k8s.io/component-helpers nodeaffinity.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from batchyard.api import well_known
from batchyard.api.views.node import NodeView, Taint, Toleration
from batchyard.api.views.pod_shape import PODS, NodeRules, NodeTerm, PodShape
from batchyard.api.views.pods import PodView
from batchyard.placement.node_info import NodeInfo

_UNSCHEDULABLE: Final = Taint(well_known.UNSCHEDULABLE, "", "NoSchedule")
_NODE_NAME_FIELD: Final = "metadata.name"


class FilterFailure(NamedTuple):
    """Why a node rejects a pod."""

    reasons: tuple[str, ...]
    #: Whether preemption of pods of lower priority may resolve the failure.
    is_resolvable: bool
    #: Whether the pod has the same problem on all nodes: messages contain the reason once, without a count.
    concerns_pod: bool = False


_NODE_UNSCHEDULABLE: Final = FilterFailure(("node(s) were unschedulable",), is_resolvable=False)
_NODE_AFFINITY_MISMATCH: Final = FilterFailure(
    ("node(s) didn't match Pod's node affinity/selector",), is_resolvable=False
)
#: The required node names contradict each other.
_AFFINITY_CONFLICT: Final = FilterFailure(("pod affinity terms conflict",), is_resolvable=False, concerns_pod=True)
_NODE_NAME_MISMATCH: Final = FilterFailure(("node(s) didn't satisfy plugin(s) [NodeAffinity]",), is_resolvable=False)


def find_obstacle(rules: NodeRules, node: NodeView) -> FilterFailure | None:
    """Return why a node's name, taints, labels or spec.unschedulable exclude pods with `rules`; None if none does."""
    allowed_names = _allowed_node_names(rules)
    if allowed_names is not None and node.name not in allowed_names:
        return _NODE_NAME_MISMATCH if allowed_names else _AFFINITY_CONFLICT
    if node.unschedulable and not tolerates(rules.tolerations, _UNSCHEDULABLE):
        return _NODE_UNSCHEDULABLE
    for taint in node.taints:
        if taint.effect in {"NoSchedule", "NoExecute"} and not tolerates(rules.tolerations, taint):
            return FilterFailure(
                (f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}",), is_resolvable=False
            )
    return None if selects(rules, node) else _NODE_AFFINITY_MISMATCH


def selects(rules: NodeRules, node: NodeView) -> bool:
    """Return whether a node matches a pod's nodeSelector and required node affinity."""
    labels = node.labels
    for key, value in rules.node_selector:
        if labels.get(key) != value:
            return False
    return rules.affinity is None or any(matches_term(term, node) for term in rules.affinity)


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    """Return whether one of the tolerations tolerates the taint."""
    return any(toleration.tolerates(taint) for toleration in tolerations)


def tolerates_all_taints(rules: NodeRules, node: NodeView) -> bool:
    """Return whether pods with these node rules tolerate all NoSchedule and NoExecute taints of a node."""
    return all(taint.effect == "PreferNoSchedule" or tolerates(rules.tolerations, taint) for taint in node.taints)


def preference_weight(rules: NodeRules, node: NodeView) -> int:
    """Return the total weight of a pod's preferred node affinity terms that match a node; empty terms never match."""
    return sum(weight for weight, term in rules.preferences if matches_term(term, node))


def untolerated_taint_count(rules: NodeRules, node: NodeView) -> int:
    """Return how many PreferNoSchedule taints of a node the pods do not tolerate."""
    return sum(t.effect == "PreferNoSchedule" and not tolerates(rules.tolerations, t) for t in node.taints)


def _allowed_node_names(rules: NodeRules) -> Sequence[str] | None:
    allowed_names: list[str] = []
    for term in rules.affinity or ():
        name_lists = [e.values for e in term.fields if e.key == _NODE_NAME_FIELD and e.operator == "In"]
        if not name_lists:
            return None
        allowed_names += [name for name in name_lists[0] if all(name in values for values in name_lists)]
    return allowed_names if rules.affinity else None


def matches_term(term: NodeTerm, node: NodeView) -> bool:
    """Return whether a node matches a node selector term; an empty term matches no node."""
    if not term.labels and not term.fields:
        return False
    name_field: Mapping[str, str] = {_NODE_NAME_FIELD: node.name}
    return all(e.matches(node.labels) for e in term.labels) and all(e.matches(name_field) for e in term.fields)


# Scoring profile: spread pods over the nodes, or pack them.


class AutoscalingProfile(Enum):
    """GKE's autoscaling profiles, which decide how nodes are scored.

    OPTIMIZE_UTILIZATION packs pods (MostAllocated) so that empty nodes can be removed; BALANCED is kube-scheduler's
    default (LeastAllocated).
    """

    BALANCED = "balanced"
    OPTIMIZE_UTILIZATION = "optimize-utilization"


# Resource fit and resource scores of a pod on a node.
#
# Sources: kube-scheduler's plugins noderesources (fit, least_allocated, most_allocated, balanced_allocation) and
# nodeports. Scores are integers from 0 to 100, truncated as in kube-scheduler.


NO_AMOUNTS: Final[Mapping[str, int]] = {}
_TOO_MANY_PODS: Final = "Too many pods"
_NO_SINGLE_GPU: Final = "node(s) didn't have the requested shares free on single GPUs"
_PORTS_TAKEN: Final = FilterFailure(("node(s) didn't have free ports for the requested pod ports",), is_resolvable=True)


def has_room(shape: PodShape, node: NodeInfo) -> bool:
    """Return whether a node has enough free resources, GPU shares and host ports for a pod."""
    free_amounts = node.free_amounts
    for resource, amount in shape.requests:
        if free_amounts.get(resource, 0) < amount:
            return False
    if shape.gpu_milli and not node.gpu_shares.fits(shape.gpu_milli):
        return False
    return not shape.host_ports or all(map(node.is_port_free, shape.host_ports))


def find_shortage(
    shape: PodShape, node: NodeInfo, freed_amounts: Mapping[str, int] = NO_AMOUNTS
) -> FilterFailure | None:
    """Return which resources or host ports a node lacks for a pod if `freed_amounts` were free too; None if it fits.

    If `freed_amounts` is not empty, the distribution of GPU shares over GPUs is not checked.
    """
    if shape.host_ports and not all(map(node.is_port_free, shape.host_ports)):
        return _PORTS_TAKEN
    free_amounts, total_amounts = node.free_amounts, node.view.allocatable
    reasons, is_resolvable = [], True
    for resource, amount in shape.requests:
        if free_amounts.get(resource, 0) + freed_amounts.get(resource, 0) < amount:
            reasons.append(_TOO_MANY_PODS if resource == PODS else f"Insufficient {resource}")
            is_resolvable = is_resolvable and (resource == PODS or amount <= total_amounts.get(resource, 0))
    if not reasons and not freed_amounts and shape.gpu_milli and not node.gpu_shares.fits(shape.gpu_milli):
        return FilterFailure((_NO_SINGLE_GPU,), is_resolvable=node.gpu_shares.has_enough(shape.gpu_milli))
    return FilterFailure(tuple(reasons), is_resolvable) if reasons else None


def total_requests(leaving_pods: Iterable[PodView]) -> dict[str, int]:
    """Return the total resource requests of pods that leave a node, by resource."""
    total_amounts: dict[str, int] = {}
    for pod in leaving_pods:
        for resource, amount in pod.requests:
            total_amounts[resource] = total_amounts.get(resource, 0) + amount
    return total_amounts


def subtract_requests(freed_amounts: Mapping[str, int], reserving_pods: Iterable[PodView]) -> Mapping[str, int]:
    """Return `freed_amounts` minus the requests of pods for which capacity of the node is reserved, by resource."""
    remaining_amounts = dict(freed_amounts)
    for pod in reserving_pods:
        for resource, amount in pod.requests:
            remaining_amounts[resource] = remaining_amounts.get(resource, 0) - amount
    return remaining_amounts


def resource_score(profile: AutoscalingProfile, shape: PodShape, node: NodeInfo) -> int:
    """Return the resource score of a node for a pod: the allocation score, plus the balance score of cpu and memory.

    The balance score is omitted for pods that request neither cpu nor memory.
    """
    total_amounts, free_amounts = node.view.allocatable, node.free_amounts
    cpu, memory = total_amounts.get("cpu", 0), total_amounts.get("memory", 0)
    score = _allocation_score(
        (node.scored_cpu + shape.scored_cpu, cpu), (node.scored_memory + shape.scored_memory, memory), profile
    )
    if shape.cpu or shape.memory:
        # Pods without requests would all be placed on the best balanced node.
        cpu_used, memory_used = cpu - free_amounts.get("cpu", 0), memory - free_amounts.get("memory", 0)
        score += _balance_score(cpu_used + shape.cpu, cpu, memory_used + shape.memory, memory)
    return score


def _allocation_score(cpu: tuple[int, int], memory: tuple[int, int], profile: AutoscalingProfile) -> int:
    """Return the mean percentage of free cpu and memory, or of their use if `profile` packs pods.

    `cpu` and `memory` are the used and the total amount; a total of 0 is left out of the mean.
    """
    score = resource_count = 0
    for used, total in (cpu, memory):
        if total:
            resource_count += 1
            if profile is AutoscalingProfile.OPTIMIZE_UTILIZATION:
                score += min(used, total) * 100 // total
            elif used <= total:
                score += (total - used) * 100 // total
    return score // resource_count if resource_count else 0


def _balance_score(cpu_used: int, cpu: int, memory_used: int, memory: int) -> int:
    """Return the balance score: 100 if the used fractions of cpu and memory are equal, down to 50 as they differ."""
    if not cpu or not memory:
        return 100
    usage_difference = min(cpu_used / cpu, 1.0) - min(memory_used / memory, 1.0)
    return int((1 - abs(usage_difference / 2)) * 100)
