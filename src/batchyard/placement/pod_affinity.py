"""Inter-pod affinity and anti-affinity: an index of placed pods, the node filter, and the scores.

A domain is a value of a topology key on the nodes. Source: kube-scheduler's plugin interpodaffinity.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from batchyard.api.meta import Selector
from batchyard.api.views.pod_shape import PodTerm
from batchyard.api.views.pods import PodView
from batchyard.placement.node_filters import FilterFailure
from batchyard.placement.node_info import NodeInfo

# Counts are kept by node, so that node labels may change at any time.


CountByNode: TypeAlias = dict[str, int]
"""Number of pods by node."""

_Term = TypeVar("_Term", PodTerm, tuple[PodTerm, int])
#: The weight of required affinity terms of existing pods in scores. Source: hardPodAffinityWeight.
_REQUIRED_WEIGHT: Final = 1


class PodAffinityIndex:
    """Index of the pods placed on nodes, by label and affinity term."""

    def __init__(self) -> None:
        self._pods: dict[str, tuple[PodView, str]] = {}
        #: Uids by label value, for the labels that selectors have used.
        self._uids_by_label: dict[str, dict[str, dict[str, None]]] = {}
        #: Required anti-affinity terms of placed pods.
        self.anti_affinity_terms: dict[PodTerm, CountByNode] = {}
        #: Affinity terms of placed pods with their weights (negative: anti-affinity). Required affinity weighs 1.
        self.preferred_terms: dict[tuple[PodTerm, int], CountByNode] = {}

    def get(self, uid: str) -> PodView | None:
        """Return the placed pod with this uid; None if it is not placed."""
        pod_and_node = self._pods.get(uid)
        return None if pod_and_node is None else pod_and_node[0]

    def add(self, pod: PodView, node_name: str) -> None:
        """Add a pod that was placed on a node."""
        self._pods[pod.uid] = pod, node_name
        for key, by_value in self._uids_by_label.items():
            if key in pod.labels:
                by_value.setdefault(pod.labels[key], {})[pod.uid] = None
        self._count_terms(pod, node_name, 1)

    def update(self, pod: PodView) -> PodView:
        """Replace a placed pod by a revision with the same labels and affinity terms; return the previous revision."""
        old_pod, node_name = self._pods[pod.uid]
        self._pods[pod.uid] = pod, node_name
        return old_pod

    def remove(self, pod: PodView, node_name: str) -> None:
        """Remove a pod that was placed on a node."""
        del self._pods[pod.uid]
        for key, by_value in self._uids_by_label.items():
            value = pod.labels.get(key)
            if value is not None:
                del by_value[value][pod.uid]
                if not by_value[value]:
                    del by_value[value]
        self._count_terms(pod, node_name, -1)

    def selected_pods(self, selector: Selector | None) -> Iterator[tuple[PodView, str]]:
        """Yield the placed pods that a selector matches, each with the name of its node."""
        if selector is None:
            return
        for uid in self._candidate_uids(selector):
            pod_and_node = self._pods[uid]
            if selector.matches(pod_and_node[0].labels):
                yield pod_and_node

    def _candidate_uids(self, selector: Selector) -> Iterator[str]:
        """Return the uids of pods that may match a selector, found by the first label that the selector requires."""
        for requirement in selector.requirements:
            if requirement.operator == "In":
                uids_by_value = self._uids_by_value(requirement.key)
                return iter([uid for value in requirement.values for uid in uids_by_value.get(value, ())])
            if requirement.operator == "Exists":
                return iter([uid for uids in self._uids_by_value(requirement.key).values() for uid in uids])
        return iter(list(self._pods))

    def _uids_by_value(self, key: str) -> Mapping[str, dict[str, None]]:
        uids_by_value = self._uids_by_label.get(key)
        if uids_by_value is None:
            uids_by_value = self._uids_by_label[key] = {}
            for uid, (pod, _) in self._pods.items():
                if key in pod.labels:
                    uids_by_value.setdefault(pod.labels[key], {})[uid] = None
        return uids_by_value

    def _count_terms(self, pod: PodView, node_name: str, count_change: int) -> None:
        shape = pod.shape
        for term in shape.anti_affinity:
            _add_count(self.anti_affinity_terms, term, node_name, count_change)
        for term in shape.affinity:
            _add_count(self.preferred_terms, (term, _REQUIRED_WEIGHT), node_name, count_change)
        for weight, term in shape.preferred_terms:
            _add_count(self.preferred_terms, (term, weight), node_name, count_change)


def _add_count(counts_by_term: dict[_Term, CountByNode], term: _Term, node_name: str, count_change: int) -> None:
    node_counts = counts_by_term.setdefault(term, {})
    node_counts[node_name] = node_counts.get(node_name, 0) + count_change
    if not node_counts[node_name]:
        del node_counts[node_name]
        if not node_counts:
            del counts_by_term[term]


Domain: TypeAlias = tuple[str, str]
"""A topology key and one of its values."""

_AFFINITY_MISMATCH: Final = FilterFailure(("node(s) didn't match pod affinity rules",), is_resolvable=False)
_ANTI_AFFINITY_MISMATCH: Final = FilterFailure(("node(s) didn't match pod anti-affinity rules",), is_resolvable=True)
_REPELLED_BY_PODS: Final = FilterFailure(
    ("node(s) didn't satisfy existing pods anti-affinity rules",), is_resolvable=True
)


class AffinityContext(Protocol):
    """The parts of the cluster snapshot that the pod affinity rules read."""

    @property
    def placed_pods(self) -> PodAffinityIndex:
        """The index of the placed pods."""

    @property
    def namespaces(self) -> Mapping[str, Mapping[str, str]]:
        """The labels of each namespace."""

    def get(self, name: str) -> NodeInfo | None:
        """Return the node with this name; None if it does not exist."""


class PodAffinityFilter:
    """Node filter for required pod (anti-)affinity: the terms of a pod, and those of placed pods against it."""

    def __init__(self, pod: PodView, affinity_context: AffinityContext) -> None:
        self._pod = pod
        self._affinity_context = affinity_context
        self._affinity_domains = self._domains_of_terms(pod.shape.affinity)
        self._anti_affinity_domains = {term: self._domains_of(term) for term in pod.shape.anti_affinity}
        self._repelling_domains = self._find_repelling_domains()
        self._is_first = not any(self._affinity_domains.values()) and all(map(self._selects_pod, pod.shape.affinity))
        #: Whether the filter may reject a node.
        self.may_reject = bool(
            self._affinity_domains or any(self._anti_affinity_domains.values()) or self._repelling_domains
        )

    def find_obstacle(self, node: NodeInfo) -> FilterFailure | None:
        """Return why a node fails the required affinity or anti-affinity terms; None if it passes."""
        labels = node.view.labels
        for term, domains in self._affinity_domains.items():
            value = labels.get(term.topology_key)
            # The first pod of a group whose affinity selects itself has no pod to join.
            if value is None or (value not in domains and not self._is_first):
                return _AFFINITY_MISMATCH
        for term, domains in self._anti_affinity_domains.items():
            if labels.get(term.topology_key) in domains:
                return _ANTI_AFFINITY_MISMATCH
        for key, value in self._repelling_domains:
            if labels.get(key) == value:
                return _REPELLED_BY_PODS
        return None

    def _domains_of_terms(self, terms: Sequence[PodTerm]) -> dict[PodTerm, dict[str, None]]:
        """Return for each affinity term the topology domains with a pod that matches all terms together."""
        domains_by_term: dict[PodTerm, dict[str, None]] = {term: {} for term in terms}
        if not terms:
            return domains_by_term
        namespaces = self._affinity_context.namespaces
        for pod, node_name in self._affinity_context.placed_pods.selected_pods(terms[0].selector):
            if all(term.selects(pod.namespace, pod.labels, namespaces) for term in terms):
                for term, domains in domains_by_term.items():
                    self._add_domain(domains, term.topology_key, node_name)
        return domains_by_term

    def _domains_of(self, term: PodTerm) -> dict[str, None]:
        domains: dict[str, None] = {}
        for pod, node_name in self._affinity_context.placed_pods.selected_pods(term.selector):
            if term.selects(pod.namespace, pod.labels, self._affinity_context.namespaces):
                self._add_domain(domains, term.topology_key, node_name)
        return domains

    def _find_repelling_domains(self) -> list[Domain]:
        repelling_domains: dict[Domain, None] = {}
        for term, node_counts in self._affinity_context.placed_pods.anti_affinity_terms.items():
            if self._selects_pod(term):
                domains: dict[str, None] = {}
                for node_name in node_counts:
                    self._add_domain(domains, term.topology_key, node_name)
                repelling_domains.update({(term.topology_key, value): None for value in domains})
        return list(repelling_domains)

    def _add_domain(self, domains: dict[str, None], key: str, node_name: str) -> None:
        node = self._affinity_context.get(node_name)
        if node is not None and key in node.view.labels:
            domains[node.view.labels[key]] = None

    def _selects_pod(self, term: PodTerm) -> bool:
        return term.selects(self._pod.namespace, self._pod.labels, self._affinity_context.namespaces)


def affinity_scores(pod: PodView, affinity_context: AffinityContext) -> dict[Domain, int]:
    """Return scores of topology domains for a pod: by its preferred affinity, and by placed pods' affinity for it.

    Scores can be negative.
    """
    domain_scores: dict[Domain, int] = {}
    for weight, term in pod.shape.preferred_terms:
        node_counts: CountByNode = {}
        for other, node_name in affinity_context.placed_pods.selected_pods(term.selector):
            if term.selects(other.namespace, other.labels, affinity_context.namespaces):
                node_counts[node_name] = node_counts.get(node_name, 0) + 1
        _add_score(domain_scores, term.topology_key, node_counts, weight, affinity_context)
    for (term, weight), node_counts in affinity_context.placed_pods.preferred_terms.items():
        if term.selects(pod.namespace, pod.labels, affinity_context.namespaces):
            _add_score(domain_scores, term.topology_key, node_counts, weight, affinity_context)
    return domain_scores


def _add_score(
    domain_scores: dict[Domain, int], key: str, node_counts: CountByNode, weight: int, affinity_context: AffinityContext
) -> None:
    for node_name, count in node_counts.items():
        node = affinity_context.get(node_name)
        value = node.view.labels.get(key) if node is not None else None
        if value is not None:
            domain_scores[key, value] = domain_scores.get((key, value), 0) + weight * count
