"""Inter-pod affinity and anti-affinity of pending and existing pods.

Domains are the values of the topology keys on the nodes. Source: kube-scheduler's plugin interpodaffinity.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from batchyard.api.meta import Selector
from batchyard.api.views.pod_shape import PodTerm
from batchyard.api.views.pods import PodView
from batchyard.placement.node_filters import FilterFailure
from batchyard.placement.node_info import NodeInfo

# --- neighbours ---
#
# Index of placed pods by their labels and affinity terms.
#
# Counts are kept by node, so that node labels may change at any time.


Counts: TypeAlias = dict[str, int]
"""Number of pods by node."""

_Term = TypeVar("_Term", PodTerm, tuple[PodTerm, int])
#: The weight of required affinity terms of existing pods in scores. Source: hardPodAffinityWeight.
_REQUIRED_WEIGHT: Final = 1


class PodAffinityIndex:
    """Index of the placed pods by label and affinity term."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[PodView, str]] = {}
        #: Uids by label value, for the labels that selectors have used.
        self._by_label: dict[str, dict[str, dict[str, None]]] = {}
        #: Required anti-affinity terms of placed pods.
        self.repelling: dict[PodTerm, Counts] = {}
        #: Affinity terms of placed pods with their weights (negative: anti-affinity).
        self.drawing: dict[tuple[PodTerm, int], Counts] = {}

    def get(self, uid: str) -> PodView | None:
        """Return a placed pod."""
        found = self._pods.get(uid)
        return None if found is None else found[0]

    def add(self, pod: PodView, node_name: str) -> None:
        """Add a placed pod."""
        self._pods[pod.uid] = pod, node_name
        for key, by_value in self._by_label.items():
            if key in pod.labels:
                by_value.setdefault(pod.labels[key], {})[pod.uid] = None
        self._count(pod, node_name, 1)

    def update(self, pod: PodView) -> PodView:
        """Replace a pod by another revision with the same labels and terms; return the previous one."""
        before, node_name = self._pods[pod.uid]
        self._pods[pod.uid] = pod, node_name
        return before

    def remove(self, pod: PodView, node_name: str) -> None:
        """Remove a placed pod."""
        del self._pods[pod.uid]
        for key, by_value in self._by_label.items():
            value = pod.labels.get(key)
            if value is not None:
                del by_value[value][pod.uid]
                if not by_value[value]:
                    del by_value[value]
        self._count(pod, node_name, -1)

    def selected(self, selector: Selector | None) -> Iterator[tuple[PodView, str]]:
        """Yield the pods that a selector matches, each with its node's name."""
        if selector is None:
            return
        for uid in self._candidates(selector):
            found = self._pods[uid]
            if selector.matches(found[0].labels):
                yield found

    def _candidates(self, selector: Selector) -> Iterator[str]:
        """Return the uids that may match, by the first requirement that demands a label."""
        for requirement in selector.requirements:
            if requirement.operator == "In":
                by_value = self._labelled(requirement.key)
                return iter([uid for value in requirement.values for uid in by_value.get(value, ())])
            if requirement.operator == "Exists":
                return iter([uid for uids in self._labelled(requirement.key).values() for uid in uids])
        return iter(list(self._pods))

    def _labelled(self, key: str) -> Mapping[str, dict[str, None]]:
        """Return the uids by the value of a label."""
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


Domain: TypeAlias = tuple[str, str]
"""A topology key and one of its values."""

_AFFINITY: Final = FilterFailure(("node(s) didn't match pod affinity rules",), may_yield=False)
_ANTI_AFFINITY: Final = FilterFailure(("node(s) didn't match pod anti-affinity rules",), may_yield=True)
_REPELLED: Final = FilterFailure(("node(s) didn't satisfy existing pods anti-affinity rules",), may_yield=True)


class AffinityContext(Protocol):
    """The parts of the cluster snapshot that affinity reads."""

    @property
    def neighbours(self) -> PodAffinityIndex:
        """The placed pods."""

    @property
    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """Labels by namespace."""

    def get(self, name: str) -> NodeInfo | None:
        """Return a node by name."""


class PodAffinityFilter:
    """The required terms of a pod and of the placed pods, evaluated by domain."""

    def __init__(self, pod: PodView, around: AffinityContext) -> None:
        self._pod = pod
        self._around = around
        self._near = self._drawn(pod.shape.affinity)
        self._far = {term: self._domains_of(term) for term in pod.shape.anti_affinity}
        self._repelled = self._repelled_domains()
        self._is_first = not any(self._near.values()) and all(map(self._is_meant, pod.shape.affinity))
        #: Whether some node may fail it.
        self.matters = bool(self._near or any(self._far.values()) or self._repelled)

    def find_obstacle(self, node: NodeInfo) -> FilterFailure | None:
        """Return why a node fails the terms; None if it passes."""
        labels = node.view.labels
        for term, domains in self._near.items():
            value = labels.get(term.topology_key)
            # The first pod of a group whose affinity selects itself has no pod to join.
            if value is None or (value not in domains and not self._is_first):
                return _AFFINITY
        for term, domains in self._far.items():
            if labels.get(term.topology_key) in domains:
                return _ANTI_AFFINITY
        for key, value in self._repelled:
            if labels.get(key) == value:
                return _REPELLED
        return None

    def _drawn(self, terms: Sequence[PodTerm]) -> dict[PodTerm, dict[str, None]]:
        """Return for each term the domains with pods that match all the terms."""
        found: dict[PodTerm, dict[str, None]] = {term: {} for term in terms}
        if not terms:
            return found
        namespaces = self._around.namespaces
        for pod, node_name in self._around.neighbours.selected(terms[0].selector):
            if all(term.selects(pod.namespace, pod.labels, namespaces) for term in terms):
                for term, domains in found.items():
                    self._add_domain(domains, term.topology_key, node_name)
        return found

    def _domains_of(self, term: PodTerm) -> dict[str, None]:
        """Return the domains with pods that a term matches."""
        domains: dict[str, None] = {}
        for pod, node_name in self._around.neighbours.selected(term.selector):
            if term.selects(pod.namespace, pod.labels, self._around.namespaces):
                self._add_domain(domains, term.topology_key, node_name)
        return domains

    def _repelled_domains(self) -> list[Domain]:
        """Return the domains whose pods have anti-affinity to this one."""
        found: dict[Domain, None] = {}
        for term, by_node in self._around.neighbours.repelling.items():
            if self._is_meant(term):
                domains: dict[str, None] = {}
                for node_name in by_node:
                    self._add_domain(domains, term.topology_key, node_name)
                found.update({(term.topology_key, value): None for value in domains})
        return list(found)

    def _add_domain(self, domains: dict[str, None], key: str, node_name: str) -> None:
        node = self._around.get(node_name)
        if node is not None and key in node.view.labels:
            domains[node.view.labels[key]] = None

    def _is_meant(self, term: PodTerm) -> bool:
        """Whether a term of another pod matches this one."""
        return term.selects(self._pod.namespace, self._pod.labels, self._around.namespaces)


def attraction(pod: PodView, around: AffinityContext) -> dict[Domain, int]:
    """Return the score of each domain for a pod, by its own preferences and those of placed pods; negative: repels."""
    drawn: dict[Domain, int] = {}
    for weight, term in pod.shape.preferred:
        by_node: Counts = {}
        for other, node_name in around.neighbours.selected(term.selector):
            if term.selects(other.namespace, other.labels, around.namespaces):
                by_node[node_name] = by_node.get(node_name, 0) + 1
        _draw(drawn, term.topology_key, by_node, weight, around)
    for (term, weight), by_node in around.neighbours.drawing.items():
        if term.selects(pod.namespace, pod.labels, around.namespaces):
            _draw(drawn, term.topology_key, by_node, weight, around)
    return drawn


def _draw(drawn: dict[Domain, int], key: str, by_node: Counts, weight: int, around: AffinityContext) -> None:
    for node_name, count in by_node.items():
        node = around.get(node_name)
        value = node.view.labels.get(key) if node is not None else None
        if value is not None:
            drawn[key, value] = drawn.get((key, value), 0) + weight * count
