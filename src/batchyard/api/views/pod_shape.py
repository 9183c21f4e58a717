"""The scheduling-relevant part of a pod: requests and constraints, parsed once for all pods with equal content."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api import well_known
from batchyard.api.meta import Obj, Requirement, Selector, parse_selector
from batchyard.api.views.node import Requests, Toleration, parse_pod_template

_EMPTY_OBJECT: Final[Mapping[str, Any]] = {}
_NO_LABELS: Final[Mapping[str, str]] = {}
_CACHED_NODE_RULES_MAX: Final = 16384
_encode_json = msgspec.json.Encoder(order="sorted").encode


#: The resource of which each pod uses one.
PODS: Final = "pods"
#: The requests that node scoring assumes for a container without any: 100m cpu and 200 MiB.
_ASSUMED_CPU_REQUEST: Final = "100m"
_ASSUMED_MEMORY_REQUEST: Final = "200Mi"


class NodeTerm(NamedTuple):
    """A term of node affinity: its requirements on labels and fields, all of which a node must satisfy."""

    labels: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]


class NodePreference(NamedTuple):
    """A preferred term of node affinity with its weight."""

    weight: int
    term: NodeTerm


class PodTerm(NamedTuple):
    """A term of pod affinity or anti-affinity: the selected pods and namespaces, and the topology key."""

    topology_key: str
    #: None selects no pod.
    selector: Selector | None
    namespaces: tuple[str, ...]
    #: Selects additional namespaces by their labels; None selects none.
    namespace_selector: Selector | None

    def selects(self, namespace: str, labels: Mapping[str, str], namespaces: Mapping[str, Mapping[str, str]]) -> bool:
        """Return whether this term selects a pod by its namespace and labels.

        `namespaces` contains the labels of each Namespace, by name.
        """
        if namespace not in self.namespaces and (
            self.namespace_selector is None
            or not self.namespace_selector.matches(namespaces.get(namespace, _NO_LABELS))
        ):
            return False
        return self.selector is not None and self.selector.matches(labels)


class WeightedTerm(NamedTuple):
    """A preferred term of pod affinity with its weight; a negative weight means anti-affinity."""

    weight: int
    term: PodTerm


class SpreadRule(NamedTuple):
    """A topology spread constraint of a pod."""

    topology_key: str
    max_skew: int
    #: Whether whenUnsatisfiable is DoNotSchedule, not ScheduleAnyway.
    is_hard: bool
    selector: Selector | None
    min_domains: int
    honors_affinity: bool
    honors_taints: bool


class HostPort(NamedTuple):
    """A host port of a pod: IP address, protocol and port number."""

    ip: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True, eq=False)
class NodeRules:
    """The constraints and preferences of a pod for its node: node selector, node affinity and tolerations."""

    node_selector: tuple[tuple[str, str], ...]
    #: The required terms of node affinity, one of which must match; None: no restriction.
    affinity: tuple[NodeTerm, ...] | None
    preferences: tuple[NodePreference, ...]
    tolerations: tuple[Toleration, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PodShape:
    """The resource requests and scheduling constraints of a pod; pods with equal content usually share one object."""

    #: The requests by resource as integers, without zeros, `pods` first.
    requests: Requests
    cpu: int
    memory: int
    #: The requested thousandths of GPUs (`batchyard.dev/gpu-milli`).
    gpu_milli: int
    #: cpu in thousandths and memory in bytes for node scoring, with default amounts for containers without requests.
    scored_cpu: int
    scored_memory: int
    rules: NodeRules
    host_ports: tuple[HostPort, ...]
    affinity: tuple[PodTerm, ...]
    anti_affinity: tuple[PodTerm, ...]
    preferred_terms: tuple[WeightedTerm, ...]
    spread_rules: tuple[SpreadRule, ...]
    #: Whether required terms or spread constraints make the pod's placement depend on other pods.
    depends_on_pods: bool


_node_rules_by_content: dict[bytes, NodeRules] = {}


def read_shape(spec: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> PodShape:
    """Parse the resource requests and scheduling constraints of a pod from its spec, namespace and labels."""
    template = parse_pod_template(spec)
    affinity = spec.get("affinity") or _EMPTY_OBJECT
    pod_affinity = affinity.get("podAffinity") or _EMPTY_OBJECT
    pod_anti_affinity = affinity.get("podAntiAffinity") or _EMPTY_OBJECT
    amounts = dict(template.requests)
    scored_requests = dict(parse_pod_template(_with_assumed_requests(spec)).requests)
    anti_affinity = tuple(_pod_term(t, namespace, labels) for t in pod_anti_affinity.get(well_known.REQUIRED) or ())
    spread_rules = tuple(_spread_rule(c, labels) for c in spec.get("topologySpreadConstraints") or ())
    return PodShape(
        requests=((PODS, 1), *[(resource, amounts[resource]) for resource in sorted(amounts) if amounts[resource]]),
        cpu=amounts.get("cpu", 0),
        memory=amounts.get("memory", 0),
        gpu_milli=amounts.get(well_known.GPU_MILLI, 0),
        scored_cpu=scored_requests.get("cpu", 0),
        scored_memory=scored_requests.get("memory", 0),
        rules=_node_rules(spec, template.node_selector, template.tolerations),
        host_ports=tuple(_host_ports(spec)),
        affinity=tuple(_pod_term(t, namespace, labels) for t in pod_affinity.get(well_known.REQUIRED) or ()),
        anti_affinity=anti_affinity,
        preferred_terms=(
            *_weighted_terms(pod_affinity, 1, namespace, labels),
            *_weighted_terms(pod_anti_affinity, -1, namespace, labels),
        ),
        spread_rules=spread_rules,
        depends_on_pods=bool(
            pod_affinity.get(well_known.REQUIRED) or anti_affinity or any(rule.is_hard for rule in spread_rules)
        ),
    )


def claim_names(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the PersistentVolumeClaims that the volumes of a pod spec use."""
    sources = (volume.get("persistentVolumeClaim") for volume in spec.get("volumes") or ())
    return tuple(dict.fromkeys([source["claimName"] for source in sources if source]))


def _with_assumed_requests(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pod spec; containers without cpu or memory requests get the amounts that node scoring assumes."""
    container_lists = {
        kind: [_with_assumed_container_requests(c) for c in spec.get(kind) or ()]
        for kind in ("initContainers", "containers")
        if spec.get(kind)
    }
    return {**spec, **container_lists}


def _with_assumed_container_requests(container: Mapping[str, Any]) -> Mapping[str, Any]:
    resources = container.get("resources") or _EMPTY_OBJECT
    set_requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    requests = {"cpu": _ASSUMED_CPU_REQUEST, "memory": _ASSUMED_MEMORY_REQUEST, **set_requests}
    return {**container, "resources": {"requests": requests}}


def _node_rules(
    spec: Mapping[str, Any], node_selector: tuple[tuple[str, str], ...], tolerations: tuple[Toleration, ...]
) -> NodeRules:
    node_affinity = (spec.get("affinity") or _EMPTY_OBJECT).get("nodeAffinity") or _EMPTY_OBJECT
    rules_content = _encode_json([spec.get("nodeSelector"), spec.get("tolerations"), node_affinity])
    node_rules = _node_rules_by_content.get(rules_content)
    if node_rules is None:
        if len(_node_rules_by_content) >= _CACHED_NODE_RULES_MAX:
            _node_rules_by_content.clear()
        affinity = node_affinity.get(well_known.REQUIRED)
        node_rules = _node_rules_by_content[rules_content] = NodeRules(
            node_selector=node_selector,
            affinity=tuple(map(parse_node_term, affinity.get("nodeSelectorTerms") or ())) if affinity else None,
            preferences=tuple(
                NodePreference(p["weight"], parse_node_term(p.get("preference") or _EMPTY_OBJECT))
                for p in node_affinity.get(well_known.PREFERRED) or ()
            ),
            tolerations=tolerations,
        )
    return node_rules


def parse_node_term(obj: Mapping[str, Any]) -> NodeTerm:
    """Parse a node selector term: its label expressions and its field expressions."""
    return NodeTerm(_requirements(obj.get("matchExpressions") or ()), _requirements(obj.get("matchFields") or ()))


def _requirements(expressions: Sequence[Mapping[str, Any]]) -> tuple[Requirement, ...]:
    return tuple(Requirement(e["key"], e["operator"], tuple(e.get("values") or ())) for e in expressions)


def _pod_term(obj: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> PodTerm:
    namespaces, namespace_selector = tuple(obj.get("namespaces") or ()), parse_selector(obj.get("namespaceSelector"))
    if not namespaces and namespace_selector is None:
        namespaces = (namespace,)
    return PodTerm(obj.get("topologyKey") or "", _selector_with_label_keys(obj, labels), namespaces, namespace_selector)


def _selector_with_label_keys(obj: Mapping[str, Any], labels: Mapping[str, str]) -> Selector | None:
    label_selector = parse_selector(obj.get("labelSelector"))
    if label_selector is None:
        return None
    equal_requirements = [Requirement(k, "In", (labels[k],)) for k in obj.get("matchLabelKeys") or () if k in labels]
    inequalities = [Requirement(k, "NotIn", (labels[k],)) for k in obj.get("mismatchLabelKeys") or () if k in labels]
    return Selector((*label_selector.requirements, *equal_requirements, *inequalities))


def _weighted_terms(affinity: Obj, sign: int, namespace: str, labels: Mapping[str, str]) -> list[WeightedTerm]:
    return [
        WeightedTerm(sign * p["weight"], _pod_term(p["podAffinityTerm"], namespace, labels))
        for p in affinity.get(well_known.PREFERRED) or ()
    ]


def _spread_rule(obj: Mapping[str, Any], labels: Mapping[str, str]) -> SpreadRule:
    return SpreadRule(
        topology_key=obj["topologyKey"],
        max_skew=obj["maxSkew"],
        is_hard=obj.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule",
        selector=_selector_with_label_keys(obj, labels),
        min_domains=obj.get("minDomains") or 1,
        honors_affinity=obj.get("nodeAffinityPolicy", "Honor") == "Honor",
        honors_taints=obj.get("nodeTaintsPolicy", "Ignore") == "Honor",
    )


def _host_ports(spec: Mapping[str, Any]) -> Iterable[HostPort]:
    is_on_host_network = bool(spec.get("hostNetwork"))
    sidecar_containers = [c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
    for container in (*sidecar_containers, *(spec.get("containers") or ())):
        for port in container.get("ports") or ():
            port_number = port.get("hostPort") or (port.get("containerPort") if is_on_host_network else 0)
            if port_number:
                yield HostPort(port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP", port_number)  # noqa: S104
