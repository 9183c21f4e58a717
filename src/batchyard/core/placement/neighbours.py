"""Pods by what other pods say of them: by their labels, and by the terms they hold against those to come.

Everything is counted by node, so that labels of nodes may change at any time.
"""

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias, TypeVar

from batchyard.api.selectors import Selector
from batchyard.api.views.pods import PodTerm, PodView

Counts: TypeAlias = dict[str, int]
"""How many pods, by node."""

_Term = TypeVar("_Term", PodTerm, tuple[PodTerm, int])
#: A required affinity term of a pod that is there draws others with this weight. Source: hardPodAffinityWeight.
_REQUIRED_WEIGHT: Final = 1


class Neighbours:
    """The pods that are placed."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[PodView, str]] = {}
        #: Uids by the value of a label, for those labels that selectors have asked for.
        self._by_label: dict[str, dict[str, dict[str, None]]] = {}
        #: Required anti-affinity of pods that are there.
        self.repelling: dict[PodTerm, Counts] = {}
        #: What draws pods to others that are there, or away from them (below zero), by term and weight.
        self.drawing: dict[tuple[PodTerm, int], Counts] = {}

    def get(self, uid: str) -> PodView | None:
        """A pod that is there."""
        found = self._pods.get(uid)
        return None if found is None else found[0]

    def add(self, pod: PodView, node_name: str) -> None:
        """A pod came."""
        self._pods[pod.uid] = pod, node_name
        for key, by_value in self._by_label.items():
            if key in pod.labels:
                by_value.setdefault(pod.labels[key], {})[pod.uid] = None
        self._count(pod, node_name, 1)

    def update(self, pod: PodView) -> PodView:
        """A pod is another revision now, with the same labels and terms; the one before it."""
        before, node_name = self._pods[pod.uid]
        self._pods[pod.uid] = pod, node_name
        return before

    def remove(self, pod: PodView, node_name: str) -> None:
        """A pod went."""
        del self._pods[pod.uid]
        for key, by_value in self._by_label.items():
            value = pod.labels.get(key)
            if value is not None:
                del by_value[value][pod.uid]
                if not by_value[value]:
                    del by_value[value]
        self._count(pod, node_name, -1)

    def selected(self, selector: Selector | None) -> Iterator[tuple[PodView, str]]:
        """The pods whose labels a selector selects, each with its node's name."""
        if selector is None:
            return
        for uid in self._candidates(selector):
            found = self._pods[uid]
            if selector.matches(found[0].labels):
                yield found

    def _candidates(self, selector: Selector) -> Iterator[str]:
        """Uids of pods that may be selected, by the first requirement that names labels a pod must have."""
        for requirement in selector.requirements:
            if requirement.operator == "In":
                by_value = self._labelled(requirement.key)
                return iter([uid for value in requirement.values for uid in by_value.get(value, ())])
            if requirement.operator == "Exists":
                return iter([uid for uids in self._labelled(requirement.key).values() for uid in uids])
        return iter(list(self._pods))

    def _labelled(self, key: str) -> Mapping[str, dict[str, None]]:
        """Uids by the value of a label."""
        known = self._by_label.get(key)
        if known is None:
            known = self._by_label[key] = {}
            for uid, (pod, _) in self._pods.items():
                if key in pod.labels:
                    known.setdefault(pod.labels[key], {})[uid] = None
        return known

    def _count(self, pod: PodView, node_name: str, step: int) -> None:
        shape = pod.shape
        for term in shape.anti_affinity:
            _add(self.repelling, term, node_name, step)
        for term in shape.affinity:
            _add(self.drawing, (term, _REQUIRED_WEIGHT), node_name, step)
        for weight, term in shape.preferred:
            _add(self.drawing, (term, weight), node_name, step)


def _add(counts: dict[_Term, Counts], term: _Term, node_name: str, step: int) -> None:
    by_node = counts.setdefault(term, {})
    by_node[node_name] = by_node.get(node_name, 0) + step
    if not by_node[node_name]:
        del by_node[node_name]
        if not by_node:
            del counts[term]
