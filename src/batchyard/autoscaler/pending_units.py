"""Units of unschedulable pods: single pods, and gangs that are helped as a whole or not at all.

Source: kubernetes-sigs/cluster-autoscaler, pkg/core/scaleup/equivalence (equivalent pods are evaluated once) and
pkg/core/podlistprocessor (pods that fit existing or upcoming nodes need no new ones).
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from batchyard.api.views.pods import PodView
from batchyard.placement.cluster_snapshot import ClusterSnapshot
from batchyard.placement.filtering import pick_node

Kind: TypeAlias = Hashable
"""Pods of one kind fit the same nodes."""


class PendingUnit(NamedTuple):
    """Pods that are helped together; those of a gang all or none."""

    pods: Sequence[PodView]
    is_gang: bool


def units_of(pods: Iterable[PodView]) -> list[PendingUnit]:
    """Return gangs, and the other pods by priority: highest priority first, then the oldest."""
    gangs: dict[str, list[PodView]] = {}
    alone: dict[int, list[PodView]] = {}
    for pod in pods:
        (gangs.setdefault(pod.gang, []) if pod.gang else alone.setdefault(pod.priority, [])).append(pod)
    units = [PendingUnit(sorted(members, key=_turn), is_gang=True) for members in gangs.values()]
    units += [PendingUnit(sorted(members, key=_turn), is_gang=False) for members in alone.values()]
    return sorted(units, key=lambda unit: _turn(unit.pods[0]))


def kind_of(pod: PodView, nodes: ClusterSnapshot) -> Kind:
    """Return the kind of a pod; a pod with inter-pod rules is a kind of its own."""
    if pod.shape.minds_pods or _is_repelled(pod, nodes):
        return pod.uid
    return pod.shape


def kinds_of(pods: Iterable[PodView], nodes: ClusterSnapshot) -> dict[Kind, list[PodView]]:
    """Group pods by kind."""
    kinds: dict[Kind, list[PodView]] = {}
    for pod in pods:
        kinds.setdefault(kind_of(pod, nodes), []).append(pod)
    return kinds


class PodPlacements:
    """Places pods on nodes with room, and records where."""

    def __init__(self, nodes: ClusterSnapshot) -> None:
        self._nodes = nodes
        #: Node names by pod uid.
        self.places: dict[str, str] = {}

    def put(self, pods: Sequence[PodView]) -> list[PodView]:
        """Place pods; return those that fit nowhere. Pods with affinity are retried after the others."""
        left = list(pods)
        while left:
            late = self._put_in_turn(left)
            if len(late) == len(left) or not any(pod.shape.affinity for pod in late):
                return late
            left = late
        return left

    def add(self, pod: PodView, node_name: str) -> None:
        """Place a pod on a node."""
        self._nodes.add_pod(pod, node_name)
        self.places[pod.uid] = node_name

    def _put_in_turn(self, pods: Sequence[PodView]) -> list[PodView]:
        left: list[PodView] = []
        stuck: dict[Kind, None] = {}
        for pod in pods:
            kind = kind_of(pod, self._nodes)
            name = "" if kind in stuck else pick_node(pod, self._nodes)
            if name:
                self.add(pod, name)
            else:
                stuck[kind] = None
                left.append(pod)
        return left


def _turn(pod: PodView) -> tuple[int, int, str]:
    return -pod.priority, pod.created, pod.key


def _is_repelled(pod: PodView, nodes: ClusterSnapshot) -> bool:
    """Whether existing pods have anti-affinity to the pod."""
    return any(term.selects(pod.namespace, pod.labels, nodes.namespaces) for term in nodes.neighbours.repelling)
