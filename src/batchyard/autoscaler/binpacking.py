"""Binpacking estimate: the new nodes of a group that pods need, first fit decreasing.

Source: kubernetes-sigs/cluster-autoscaler, pkg/estimator (binpacking_estimator.go, decreasing_pod_orderer.go).
"""

from collections.abc import Sequence
from typing import NamedTuple

from batchyard.api.views.node import NodeView
from batchyard.api.views.pods import PODS, PodView
from batchyard.autoscaler.node_groups import NodeGroup
from batchyard.autoscaler.pending_units import Kind, kind_of
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import why_not
from batchyard.placement.node_filters import find_obstacle
from batchyard.placement.node_info import NodeInfo
from batchyard.placement.resources import find_shortage


class BinpackingEstimate(NamedTuple):
    """The pods of each new node, and those that did not fit."""

    nodes: Sequence[Sequence[PodView]]
    left: Sequence[PodView]


def pack(pods: Sequence[PodView], group: NodeGroup, most: int, nodes: ClusterSnapshot) -> BinpackingEstimate:
    """Pack pods onto at most `most` new nodes of a group, in addition to the existing nodes."""
    with nodes.what_if():
        packing = _Packing(group, most, nodes)
        left = packing.pack(in_decreasing_order(pods, group.template))
    return BinpackingEstimate([filled for filled in packing.filled if filled], left)


def misfit(pod: PodView, group: NodeGroup, nodes: ClusterSnapshot) -> tuple[str, ...]:
    """Return why a pod does not fit a new node of the group; empty if it fits."""
    view = group.node(_name(group, 0))
    if kind_of(pod, nodes) is pod.shape:  # other nodes and pods do not matter to it
        obstacle = find_obstacle(pod.shape.rules, view) or find_shortage(pod.shape, NodeInfo(view))
        return () if obstacle is None else obstacle.reasons
    with nodes.what_if():
        nodes.set_node(view)
        return _reasons(pod, view.name, nodes)


def in_decreasing_order(pods: Sequence[PodView], template: NodeView) -> list[PodView]:
    """Sort by priority, then by the share of a node that they request."""
    return sorted(pods, key=lambda pod: (-pod.priority, -_share(pod, template), pod.created, pod.key))


class _Packing:
    """New nodes being filled. For each kind the search starts at the last node used: earlier ones are full for it.

    Pods with inter-pod rules are kinds of their own and search all nodes.
    """

    def __init__(self, group: NodeGroup, most: int, nodes: ClusterSnapshot) -> None:
        self._group = group
        self._most = most
        self._nodes = nodes
        self._first: dict[Kind, int] = {}
        self.filled: list[list[PodView]] = []

    def pack(self, pods: Sequence[PodView]) -> list[PodView]:
        """Place pods on nodes; the rest is retried if it has affinity to pods placed later."""
        left = list(pods)
        while left:
            late = [pod for pod in left if not self._take(pod)]
            if len(late) == len(left) or not any(pod.shape.affinity for pod in late):
                return late
            left = late
        return left

    def _take(self, pod: PodView) -> bool:
        kind = kind_of(pod, self._nodes)
        index = self._first.get(kind, 0) if kind is pod.shape else 0
        while index < len(self.filled) or self._add_node():
            name = _name(self._group, index)
            if not _reasons(pod, name, self._nodes):
                self._nodes.add_pod(pod, name)
                self.filled[index].append(pod)
                self._first[kind] = index
                return True
            index += 1
        self._first[kind] = index
        return False

    def _add_node(self) -> bool:
        """Add a node, unless the limit is reached or the last node is still empty."""
        if len(self.filled) >= self._most or (self.filled and not self.filled[-1]):
            return False
        self._nodes.set_node(self._group.node(_name(self._group, len(self.filled))))
        self.filled.append([])
        return True


def _name(group: NodeGroup, index: int) -> str:
    """Return the name of a simulated node."""
    return f"{group.id}-tried-{index}"


def _reasons(pod: PodView, name: str, nodes: ClusterSnapshot) -> tuple[str, ...]:
    """Return why a pod does not fit a simulated node; empty if it fits."""
    node = nodes.get(name)
    return () if node is None else why_not(pod, node, nodes)


def _share(pod: PodView, template: NodeView) -> float:
    """Return the sum of the pod's shares of a node's resources."""
    total = template.allocatable
    return sum(
        amount / total[resource] for resource, amount in pod.requests if resource != PODS and total.get(resource)
    )
