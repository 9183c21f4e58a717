"""Static node filters, independent of other pods: unschedulable, taints, labels; resource fit and scores.

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
_NAME: Final = "metadata.name"


class FilterFailure(NamedTuple):
    """Why a node rejects a pod."""

    reasons: tuple[str, ...]
    #: Whether preemption of pods of lower priority may resolve it.
    may_yield: bool


_CORDONED: Final = FilterFailure(("node(s) were unschedulable",), may_yield=False)
_NO_MATCH: Final = FilterFailure(("node(s) didn't match Pod's node affinity/selector",), may_yield=False)
CONFLICT: Final = FilterFailure(("pod affinity terms conflict",), may_yield=False)
"""No node can match all the required names. The message states it once, without a count."""
_NOT_NAMED: Final = FilterFailure(("node(s) didn't satisfy plugin(s) [NodeAffinity]",), may_yield=False)


def find_obstacle(rules: NodeRules, node: NodeView) -> FilterFailure | None:
    """Return why a node rejects pods with these rules; None if it does not."""
    named = _names(rules)
    if named is not None and node.name not in named:
        return _NOT_NAMED if named else CONFLICT
    if node.unschedulable and not tolerates(rules.tolerations, _UNSCHEDULABLE):
        return _CORDONED
    for taint in node.taints:
        if taint.effect in {"NoSchedule", "NoExecute"} and not tolerates(rules.tolerations, taint):
            return FilterFailure((f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}",), may_yield=False)
    return None if selects(rules, node) else _NO_MATCH


def selects(rules: NodeRules, node: NodeView) -> bool:
    """Whether the node selector and required node affinity match."""
    labels = node.labels
    for key, value in rules.node_selector:
        if labels.get(key) != value:
            return False
    return rules.affinity is None or any(_holds(term, node) for term in rules.affinity)


def tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    """Whether one of the tolerations covers the taint."""
    return any(toleration.tolerates(taint) for toleration in tolerations)


def tolerates_all(rules: NodeRules, node: NodeView) -> bool:
    """Whether the pods tolerate all NoSchedule and NoExecute taints of the node."""
    return all(taint.effect == "PreferNoSchedule" or tolerates(rules.tolerations, taint) for taint in node.taints)


def preference(rules: NodeRules, node: NodeView) -> int:
    """Return the sum of the weights of matching preferred node affinity terms. An empty term never matches."""
    return sum(weight for weight, term in rules.preferences if _holds(term, node))


def aversion(rules: NodeRules, node: NodeView) -> int:
    """Return the number of PreferNoSchedule taints that the pods do not tolerate."""
    return sum(t.effect == "PreferNoSchedule" and not tolerates(rules.tolerations, t) for t in node.taints)


def _names(rules: NodeRules) -> Sequence[str] | None:
    """Return the node names that the terms allow if every term restricts them; None: no restriction."""
    allowed: list[str] = []
    for term in rules.affinity or ():
        lists = [e.values for e in term.fields if e.key == _NAME and e.operator == "In"]
        if not lists:
            return None
        allowed += [name for name in lists[0] if all(name in values for values in lists)]
    return allowed if rules.affinity else None


def _holds(term: NodeTerm, node: NodeView) -> bool:
    """Whether all requirements of a term match; an empty term never matches."""
    if not term.labels and not term.fields:
        return False
    named: Mapping[str, str] = {_NAME: node.name}
    return all(e.matches(node.labels) for e in term.labels) and all(e.matches(named) for e in term.fields)


# --- profile ---
#
# Scoring profile: spread pods over the nodes, or pack them.


class AutoscalingProfile(Enum):
    """GKE's autoscaling profiles, as far as they affect scheduling.

    OPTIMIZE_UTILIZATION packs nodes (MostAllocated) so that others can be removed; BALANCED is kube-scheduler's
    default.
    """

    BALANCED = "balanced"
    OPTIMIZE_UTILIZATION = "optimize-utilization"


# --- resources ---
#
# Resource fit and resource scores of a pod on a node.
#
# Sources: kube-scheduler's plugins noderesources (fit, least_allocated, most_allocated, balanced_allocation) and
# nodeports. Scores are integers from 0 to 100, truncated as there.


NOTHING: Final[Mapping[str, int]] = {}
_TOO_MANY: Final = "Too many pods"
_SCATTERED: Final = "node(s) didn't have what is asked for free on single GPUs"
_PORTS_TAKEN: Final = FilterFailure(("node(s) didn't have free ports for the requested pod ports",), may_yield=True)


def has_room(shape: PodShape, node: NodeInfo) -> bool:
    """Whether a node has enough of everything that a pod requests."""
    left = node.left
    for resource, amount in shape.requests:
        if left.get(resource, 0) < amount:
            return False
    if shape.gpu_milli and not node.devices.fits(shape.gpu_milli):
        return False
    return not shape.host_ports or all(map(node.has_port, shape.host_ports))


def find_shortage(shape: PodShape, node: NodeInfo, freed: Mapping[str, int] = NOTHING) -> FilterFailure | None:
    """Return what the node lacks, with the amounts `freed` added; None if the pod fits.

    Which GPUs would be freed is not considered.
    """
    if shape.host_ports and not all(map(node.has_port, shape.host_ports)):
        return _PORTS_TAKEN
    left, total = node.left, node.view.allocatable
    short, may_yield = [], True
    for resource, amount in shape.requests:
        if left.get(resource, 0) + freed.get(resource, 0) < amount:
            short.append(_TOO_MANY if resource == PODS else f"Insufficient {resource}")
            may_yield = may_yield and (resource == PODS or amount <= total.get(resource, 0))
    if not short and not freed and shape.gpu_milli and not node.devices.fits(shape.gpu_milli):
        return FilterFailure((_SCATTERED,), may_yield=node.devices.has_enough(shape.gpu_milli))
    return FilterFailure(tuple(short), may_yield) if short else None


def freed(leaving: Iterable[PodView]) -> dict[str, int]:
    """Return what the leaving pods free, by resource."""
    amounts: dict[str, int] = {}
    for pod in leaving:
        for resource, amount in pod.requests:
            amounts[resource] = amounts.get(resource, 0) + amount
    return amounts


def less_held(freed: Mapping[str, int], held: Iterable[PodView]) -> Mapping[str, int]:
    """Return `freed` minus the requests of pods with reservations."""
    amounts = dict(freed)
    for pod in held:
        for resource, amount in pod.requests:
            amounts[resource] = amounts.get(resource, 0) - amount
    return amounts


def resource_score(shape: PodShape, node: NodeInfo, profile: AutoscalingProfile) -> int:
    """Return the cpu and memory score of a node for a pod."""
    total, left = node.view.allocatable, node.left
    cpu, memory = total.get("cpu", 0), total.get("memory", 0)
    score = _allocation_score(
        (node.scored_cpu + shape.scored_cpu, cpu), (node.scored_memory + shape.scored_memory, memory), profile
    )
    if shape.cpu or shape.memory:
        # Pods without requests would all be placed on the best balanced node.
        cpu_taken, memory_taken = cpu - left.get("cpu", 0), memory - left.get("memory", 0)
        score += _balance_score(cpu_taken + shape.cpu, cpu, memory_taken + shape.memory, memory)
    return score


def _allocation_score(cpu: tuple[int, int], memory: tuple[int, int], profile: AutoscalingProfile) -> int:
    """Return the mean over cpu and memory of the free share, or of the used one. Arguments: (used, total)."""
    score = counted = 0
    for taken, total in (cpu, memory):
        if total:
            counted += 1
            if profile is AutoscalingProfile.OPTIMIZE_UTILIZATION:
                score += min(taken, total) * 100 // total
            elif taken <= total:
                score += (total - taken) * 100 // total
    return score // counted if counted else 0


def _balance_score(cpu_taken: int, cpu: int, memory_taken: int, memory: int) -> int:
    """Return the score of the difference between the used shares of cpu and memory."""
    if not cpu or not memory:
        return 100
    difference = min(cpu_taken / cpu, 1.0) - min(memory_taken / memory, 1.0)
    return int((1 - abs(difference / 2)) * 100)
