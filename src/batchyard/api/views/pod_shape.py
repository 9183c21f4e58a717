"""The shape of a pod: what it requests and where it may run. Pods with equal content share one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api import well_known
from batchyard.api.meta import (
    Requirement,
    Selector,
    selector,
)
from batchyard.api.views.node import Requests, Toleration, pod_template

_NOTHING: Final[Mapping[str, Any]] = {}
_LABELS_NONE: Final[Mapping[str, str]] = {}
_MEMO_MAX: Final = 16384
_encode = msgspec.json.Encoder(order="sorted").encode


PODS: Final = "pods"
#: The requests that scoring assumes for a container without any: 100m cpu and 200 MiB.
_CPU_ASSUMED: Final = "100m"
_MEMORY_ASSUMED: Final = "200Mi"


class NodeTerm(NamedTuple):
    """A term of a node selector: all its expressions on labels and on fields must hold."""

    labels: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]


class Preference(NamedTuple):
    """A preferred term of node affinity."""

    weight: int
    term: NodeTerm


class PodTerm(NamedTuple):
    """A term of pod affinity or anti-affinity: the pods, their namespaces, and the topology key."""

    topology_key: str
    #: None selects no pod.
    selector: Selector | None
    namespaces: tuple[str, ...]
    #: Additional namespaces by their labels; None: none.
    namespace_selector: Selector | None

    def selects(self, namespace: str, labels: Mapping[str, str], namespaces: Mapping[str, Mapping[str, str]]) -> bool:
        """Report whether the term selects a pod. `namespaces` are the labels of the namespaces."""
        if namespace not in self.namespaces and (
            self.namespace_selector is None
            or not self.namespace_selector.matches(namespaces.get(namespace, _LABELS_NONE))
        ):
            return False
        return self.selector is not None and self.selector.matches(labels)


class WeightedTerm(NamedTuple):
    """A preferred term of pod affinity; of anti-affinity if the weight is negative."""

    weight: int
    term: PodTerm


class SpreadRule(NamedTuple):
    """A topology spread constraint."""

    topology_key: str
    max_skew: int
    #: DoNotSchedule; else ScheduleAnyway.
    is_hard: bool
    selector: Selector | None
    min_domains: int
    honors_affinity: bool
    honors_taints: bool


class HostPort(NamedTuple):
    """A host port of a pod."""

    ip: str
    protocol: str
    port: int


@dataclass(frozen=True, slots=True, eq=False)
class NodeRules:
    """The node constraints of a pod, independent of other pods."""

    node_selector: tuple[tuple[str, str], ...]
    #: Terms, which are ORed; None: no restriction.
    affinity: tuple[NodeTerm, ...] | None
    preferences: tuple[Preference, ...]
    tolerations: tuple[Toleration, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PodShape:
    """The scheduling constraints of a pod; pods with equal content share one."""

    #: Whole numbers by resource, without zeros, `pods` first.
    requests: Requests
    cpu: int
    memory: int
    #: Thousandths of shared GPUs.
    gpu_milli: int
    #: cpu (thousandths) and memory for scoring: containers without requests count with a default.
    scored_cpu: int
    scored_memory: int
    rules: NodeRules
    host_ports: tuple[HostPort, ...]
    affinity: tuple[PodTerm, ...]
    anti_affinity: tuple[PodTerm, ...]
    preferred: tuple[WeightedTerm, ...]
    spread: tuple[SpreadRule, ...]
    #: Whether its own terms make its placement depend on other pods.
    minds_pods: bool


_rules: dict[bytes, NodeRules] = {}


def read_shape(spec: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> PodShape:
    """Return the shape of a pod from its spec, namespace and labels."""
    template = pod_template(spec)
    affinity = spec.get("affinity") or _NOTHING
    near, far = affinity.get("podAffinity") or _NOTHING, affinity.get("podAntiAffinity") or _NOTHING
    amounts = dict(template.requests)
    scored = dict(pod_template(_with_assumed_requests(spec)).requests)
    anti_affinity = tuple(_pod_term(t, namespace, labels) for t in far.get(well_known.REQUIRED) or ())
    spread = tuple(_spread_rule(c, labels) for c in spec.get("topologySpreadConstraints") or ())
    return PodShape(
        requests=((PODS, 1), *[(resource, amounts[resource]) for resource in sorted(amounts) if amounts[resource]]),
        cpu=amounts.get("cpu", 0),
        memory=amounts.get("memory", 0),
        gpu_milli=amounts.get(well_known.GPU_MILLI, 0),
        scored_cpu=scored.get("cpu", 0),
        scored_memory=scored.get("memory", 0),
        rules=_rules_of(spec, template.node_selector, template.tolerations),
        host_ports=tuple(_host_ports(spec)),
        affinity=tuple(_pod_term(t, namespace, labels) for t in near.get(well_known.REQUIRED) or ()),
        anti_affinity=anti_affinity,
        preferred=(*_weighted(near, 1, namespace, labels), *_weighted(far, -1, namespace, labels)),
        spread=spread,
        minds_pods=bool(near.get(well_known.REQUIRED) or anti_affinity or any(rule.is_hard for rule in spread)),
    )


def _with_assumed_requests(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the spec with the requests that scoring assumes for containers without any."""
    filled = {
        kind: [_with_assumed(c) for c in spec.get(kind) or ()]
        for kind in ("initContainers", "containers")
        if spec.get(kind)
    }
    return {**spec, **filled}


def _with_assumed(container: Mapping[str, Any]) -> Mapping[str, Any]:
    resources = container.get("resources") or _NOTHING
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    requests = {"cpu": _CPU_ASSUMED, "memory": _MEMORY_ASSUMED, **asked}
    return {**container, "resources": {"requests": requests}}


def _rules_of(
    spec: Mapping[str, Any], node_selector: tuple[tuple[str, str], ...], tolerations: tuple[Toleration, ...]
) -> NodeRules:
    node_affinity = (spec.get("affinity") or _NOTHING).get("nodeAffinity") or _NOTHING
    content = _encode([spec.get("nodeSelector"), spec.get("tolerations"), node_affinity])
    known = _rules.get(content)
    if known is None:
        if len(_rules) >= _MEMO_MAX:
            _rules.clear()
        required = node_affinity.get(well_known.REQUIRED)
        known = _rules[content] = NodeRules(
            node_selector=node_selector,
            affinity=tuple(map(_node_term, required.get("nodeSelectorTerms") or ())) if required else None,
            preferences=tuple(
                Preference(p["weight"], _node_term(p.get("preference") or _NOTHING))
                for p in node_affinity.get(well_known.PREFERRED) or ()
            ),
            tolerations=tolerations,
        )
    return known


def _node_term(obj: Mapping[str, Any]) -> NodeTerm:
    return NodeTerm(_requirements(obj.get("matchExpressions") or ()), _requirements(obj.get("matchFields") or ()))


def _requirements(expressions: Sequence[Mapping[str, Any]]) -> tuple[Requirement, ...]:
    return tuple(Requirement(e["key"], e["operator"], tuple(e.get("values") or ())) for e in expressions)


def _pod_term(obj: Mapping[str, Any], namespace: str, labels: Mapping[str, str]) -> PodTerm:
    """Return a term; without namespaces it applies to the pod's own."""
    listed, selected = tuple(obj.get("namespaces") or ()), selector(obj.get("namespaceSelector"))
    if not listed and selected is None:
        listed = (namespace,)
    return PodTerm(obj.get("topologyKey") or "", _merged_selector(obj, labels), listed, selected)


def _merged_selector(obj: Mapping[str, Any], labels: Mapping[str, str]) -> Selector | None:
    """Return the label selector, with the pod's own values of matchLabelKeys and mismatchLabelKeys."""
    own = selector(obj.get("labelSelector"))
    if own is None:
        return None
    equal = [Requirement(k, "In", (labels[k],)) for k in obj.get("matchLabelKeys") or () if k in labels]
    unequal = [Requirement(k, "NotIn", (labels[k],)) for k in obj.get("mismatchLabelKeys") or () if k in labels]
    return Selector((*own.requirements, *equal, *unequal))


def _weighted(part: Mapping[str, Any], sign: int, namespace: str, labels: Mapping[str, str]) -> list[WeightedTerm]:
    return [
        WeightedTerm(sign * p["weight"], _pod_term(p["podAffinityTerm"], namespace, labels))
        for p in part.get(well_known.PREFERRED) or ()
    ]


def _spread_rule(obj: Mapping[str, Any], labels: Mapping[str, str]) -> SpreadRule:
    return SpreadRule(
        topology_key=obj["topologyKey"],
        max_skew=obj["maxSkew"],
        is_hard=obj.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule",
        selector=_merged_selector(obj, labels),
        min_domains=obj.get("minDomains") or 1,
        honors_affinity=obj.get("nodeAffinityPolicy", "Honor") == "Honor",
        honors_taints=obj.get("nodeTaintsPolicy", "Ignore") == "Honor",
    )


def _host_ports(spec: Mapping[str, Any]) -> Iterable[HostPort]:
    """Yield the host ports of containers; on the host network each port is a host port."""
    on_host = bool(spec.get("hostNetwork"))
    restartable = [c for c in spec.get("initContainers") or () if c.get("restartPolicy") == "Always"]
    for container in (*restartable, *(spec.get("containers") or ())):
        for port in container.get("ports") or ():
            number = port.get("hostPort") or (port.get("containerPort") if on_host else 0)
            if number:
                yield HostPort(port.get("hostIP") or "0.0.0.0", port.get("protocol") or "TCP", number)  # noqa: S104
