"""Which changes can help a pod that fits nowhere, so that the others do not wake it.

What lacks room, or meets taints and labels, is helped by nodes that changed; what minds other pods, by pods that came
or went as well. Source: the queueing hints of kube-scheduler's plugins.
"""

from collections.abc import Iterable

from batchyard.api.views.pods import PodView
from batchyard.core.placement.cluster import Nodes
from batchyard.core.placement.node import Node
from batchyard.core.placement.resources import NOTHING, find_shortage, has_room, less_held


def is_helped_by(pod: PodView, changed: Iterable[str], nodes: Nodes) -> bool:
    """Whether the pod may fit one of the nodes that changed, or make room for itself there."""
    obstacles = nodes.shortlists.reach(pod.shape.rules).obstacles
    for name in changed:
        node = nodes.get(name)
        if node is not None and obstacles[name] is None and _may_fit(pod, node, nodes):
            return True
    return False


def is_concerned_by(pod: PodView, other: PodView, nodes: Nodes) -> bool:
    """Whether it can matter to the pod that another one came or went."""
    for term in (*pod.shape.affinity, *pod.shape.anti_affinity):
        if term.selects(other.namespace, other.labels, nodes.namespaces):
            return True
    for rule in pod.shape.spread:
        if other.namespace == pod.namespace and rule.selector is not None and rule.selector.matches(other.labels):
            return True
    return any(term.selects(pod.namespace, pod.labels, nodes.namespaces) for term in other.shape.anti_affinity)


def _may_fit(pod: PodView, node: Node, nodes: Nodes) -> bool:
    """Whether there is room that is held for nobody else, or would be if pods of lower priority left."""
    held = nodes.held_against(pod, node.name)
    if not held and has_room(pod.shape, node):
        return True
    below = node.taken_below(pod.priority) if pod.may_preempt else NOTHING
    if not below and not held:
        return False
    spare = less_held(below, held) if held else below
    return (bool(below) and bool(pod.shape.host_ports)) or find_shortage(pod.shape, node, spare) is None
