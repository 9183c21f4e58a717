"""Parsed views of Nodes and of pod templates (requests, scheduling constraints); Job parallelism; Namespace labels.

A view holds the parsed fields of an object that schedulers and controllers need.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import meta, well_known
from batchyard.api.meta import Obj, Requirement, is_true
from batchyard.base.primitives import fnv1a_64, memoized_if_short

# The view of a pod template: resource requests and scheduling constraints.
#
# Workloads with equal lists of pod sets share these views (batchyard.api.views.workload).
# Sources: k8s.io/component-helpers resource.PodRequests; kube-scheduler's NodeAffinity and TaintToleration.


Requests: TypeAlias = tuple[tuple[str, int], ...]

#: The maximum grace period in seconds (68 years), so that the resulting times can still be formatted.
GRACE_MAX: Final = 2**31 - 1
#: The default grace period in seconds.
GRACE_DEFAULT: Final = 30
_POD_LEVEL_RESOURCES: Final = frozenset({"cpu", "memory"})


class Taint(NamedTuple):
    """A taint of a Node."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        """Return the taint as Kueue writes it in messages: `{key value NoSchedule <nil>}`."""
        return f"{{{self.key} {self.value} {self.effect} <nil>}}"


class Toleration(NamedTuple):
    """A toleration of a pod; as in the API, an empty key matches all taint keys, and an empty effect all effects."""

    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: Taint) -> bool:
        """Return whether this toleration covers the taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return self.operator in {"", "Equal"} and self.value == taint.value


class WeightedNodeTerm(NamedTuple):
    """A preferred term of node affinity: its weight, and its requirements on the labels and fields of a node."""

    weight: int
    labels: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """The parsed requests and scheduling constraints of a pod template."""

    #: The requests of one pod by resource, as integers, in the order of resource_order.
    requests: Requests
    node_selector: tuple[tuple[str, str], ...]
    #: Required node affinity by labels: terms are ORed, the expressions of a term ANDed. None: no restriction.
    affinity: tuple[tuple[Requirement, ...], ...] | None
    tolerations: tuple[Toleration, ...]
    #: The containers whose requests exceed their limits: pairs of the path in the pod spec and the resources.
    over_limit: tuple[tuple[str, tuple[str, ...]], ...]
    #: Preferred node affinity; terms without weight or requirements are omitted.
    preferred_affinity: tuple[WeightedNodeTerm, ...] = ()
    #: The requests that nodes must have room for, if the charged `requests` differ from them.
    placed_requests: Requests | None = None


@memoized_if_short(maxsize=65536)
def resource_order(resource: str) -> tuple[int, str]:
    """Return the key by which Kueue sorts the resources of a pod set: the FNV-1a hash of the name, then the name."""
    return fnv1a_64(resource), resource


def grace_period(spec: Mapping[str, Any]) -> int:
    """Return the termination grace period of a pod spec, in seconds; by default 30, at most 2**31 - 1."""
    grace_seconds: int = spec.get("terminationGracePeriodSeconds", GRACE_DEFAULT)
    return min(grace_seconds, GRACE_MAX)


def sort_requests(requests: Mapping[str, int]) -> Requests:
    """Return resource requests as pairs of resource and amount, sorted as Kueue sorts those of a pod set."""
    return tuple(sorted(requests.items(), key=lambda item: resource_order(item[0])))


def parse_pod_template(spec: Mapping[str, Any]) -> PodTemplate:
    """Parse the resource requests and scheduling constraints of a pod spec."""
    return PodTemplate(
        requests=sort_requests(
            {r: max(0, _to_integer_amount(r, nano)) for r, nano in total_pod_requests(spec).items()}
        ),
        node_selector=tuple(sorted((spec.get("nodeSelector") or {}).items())),
        affinity=_required_affinity(spec),
        tolerations=tuple(map(parse_toleration, spec.get("tolerations") or ())),
        over_limit=tuple(_requests_over_limit(spec)),
        preferred_affinity=_preferred_affinity(spec) if spec.get("affinity") else (),
    )


def parse_toleration(obj: Mapping[str, Any]) -> Toleration:
    """Parse a toleration of a pod; missing fields become ''."""
    return Toleration(obj.get("key") or "", obj.get("operator") or "", obj.get("value") or "", obj.get("effect") or "")


def parse_taint(obj: Mapping[str, Any]) -> Taint:
    """Parse a taint of a Node; missing fields become ''."""
    return Taint(obj.get("key") or "", obj.get("value") or "", obj.get("effect") or "")


def _to_integer_amount(resource: str, nano_amount: int) -> int:
    """Convert billionths of a resource to an integer, rounded up: thousandths for cpu, whole units for others."""
    return -(-nano_amount // (1_000_000 if resource == "cpu" else meta.NANO))


def container_requests(container: Mapping[str, Any]) -> dict[str, int]:
    """Return a container's resource requests in billionths, by resource; a limit replaces a missing request."""
    resources = container.get("resources") or {}
    requests = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: meta.parse_quantity(value) for name, value in requests.items()}


def container_limits(container: Mapping[str, Any]) -> dict[str, int]:
    """Return a container's resource limits in billionths, by resource."""
    return {n: meta.parse_quantity(v) for n, v in ((container.get("resources") or {}).get("limits") or {}).items()}


def _add_amounts(total: dict[str, int], added_amounts: Mapping[str, int]) -> None:
    for name, nano in added_amounts.items():
        total[name] = total.get(name, 0) + nano


def total_pod_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return a pod's total resource requests in billionths, by resource, including its overhead."""
    total_amounts = pod_total_amounts(spec, container_requests)
    if spec.get("resources"):
        # The API server rejects pod-level requests below those of the containers, but a Workload may contain them.
        # Kueue counts the larger amount since 0.20; before, such a Workload reserved less quota than its pods use.
        container_amounts = pod_total_amounts({**spec, "resources": None}, container_requests)
        total_amounts = {name: max(nano, container_amounts.get(name, nano)) for name, nano in total_amounts.items()}
    for name, value in (spec.get("overhead") or {}).items():
        total_amounts[name] = total_amounts.get(name, 0) + meta.parse_quantity(value)
    return total_amounts


def pod_total_amounts(spec: Obj, container_amounts: Callable[[Obj], dict[str, int]]) -> dict[str, int]:
    """Return a pod's total resource requests or limits, in billionths by resource.

    `container_amounts` returns those of one container. The total is the sum of all containers and sidecars, or an init
    container with earlier sidecars if that is more. Amounts for cpu, memory and hugepages that the pod itself sets
    replace the total. The pod's overhead is not included.
    """
    total: dict[str, int] = {}
    for container in spec.get("containers") or ():
        _add_amounts(total, container_amounts(container))
    sidecar_amounts: dict[str, int] = {}
    largest_init_amounts: dict[str, int] = {}
    for container in spec.get("initContainers") or ():
        init_step_amounts = container_amounts(container)
        if container.get("restartPolicy") == "Always":
            _add_amounts(total, init_step_amounts)
            _add_amounts(sidecar_amounts, init_step_amounts)
            init_step_amounts = dict(sidecar_amounts)
        else:
            _add_amounts(init_step_amounts, sidecar_amounts)
        for name, nano in init_step_amounts.items():
            largest_init_amounts[name] = max(nano, largest_init_amounts.get(name, nano))
    for name, nano in largest_init_amounts.items():
        total[name] = max(nano, total.get(name, nano))
    pod_amounts = container_amounts(spec)
    total.update({n: v for n, v in pod_amounts.items() if n in _POD_LEVEL_RESOURCES or n.startswith("hugepages-")})
    return total


def _required_affinity(spec: Mapping[str, Any]) -> tuple[tuple[Requirement, ...], ...] | None:
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required_affinity = node_affinity.get(well_known.REQUIRED)
    if not required_affinity:
        return None
    selector_terms: Sequence[Mapping[str, Any]] = required_affinity.get("nodeSelectorTerms") or ()
    return tuple(_parse_requirements(t.get("matchExpressions") or ()) for t in selector_terms)


def _parse_requirements(expressions: Sequence[Mapping[str, Any]]) -> tuple[Requirement, ...]:
    return tuple([Requirement(e["key"], e["operator"], tuple(e.get("values") or ())) for e in expressions])


def _preferred_affinity(spec: Mapping[str, Any]) -> tuple[WeightedNodeTerm, ...]:
    node_affinity: Mapping[str, Any] = spec["affinity"].get("nodeAffinity") or {}
    terms: list[WeightedNodeTerm] = []
    for preferred in node_affinity.get(well_known.PREFERRED) or ():
        preference: Mapping[str, Any] = preferred.get("preference") or {}
        labels = _parse_requirements(preference.get("matchExpressions") or ())
        fields = _parse_requirements(preference.get("matchFields") or ())
        if preferred["weight"] and (labels or fields):
            terms.append(WeightedNodeTerm(preferred["weight"], labels, fields))
    return tuple(terms)


def _requests_over_limit(spec: Mapping[str, Any]) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Yield pairs of a container's path (`resources` for the pod) and its resources with a request above the limit."""
    containers = [(f"initContainers[{i}]", c) for i, c in enumerate(spec.get("initContainers") or ())]
    containers += [(f"containers[{i}]", c) for i, c in enumerate(spec.get("containers") or ())]
    if spec.get("resources"):
        containers.append(("resources", spec))
    for path, container in containers:
        resources = container.get("resources") or {}
        limits = resources.get("limits") or {}
        exceeding_names = sorted(
            name
            for name, value in (resources.get("requests") or {}).items()
            if name in limits and meta.amount(name, value) > meta.amount(name, limits[name])
        )
        if exceeding_names:
            yield path, tuple(exceeding_names)


@dataclass(frozen=True, slots=True)
class NodeView:
    """The parsed fields of a Node that schedulers and controllers need."""

    name: str
    labels: Mapping[str, str]
    #: The taints with any effect, in the order of the object.
    taints: tuple[Taint, ...]
    unschedulable: bool
    #: The allocatable resources (without them, the capacity) as integers; `pods` is the maximum number of pods.
    allocatable: Mapping[str, int]
    #: Whether the condition Ready is True. Taints, not this field, keep pods away from a node that is not ready.
    ready: bool


_NODE_VIEWS_MAX: Final = 65536
_views_by_uid: dict[str, tuple[Obj, NodeView]] = {}


def node_view(obj: Obj) -> NodeView:
    """Return the parsed view of a Node, from a cache if the object is unchanged."""
    uid = obj["metadata"].get("uid", "")
    cache_entry = _views_by_uid.get(uid)
    if cache_entry is not None and cache_entry[0] is obj:
        return cache_entry[1]
    if cache_entry is None and len(_views_by_uid) >= _NODE_VIEWS_MAX:
        _views_by_uid.clear()
    new_view = _parse_node(obj)
    _views_by_uid[uid] = obj, new_view
    return new_view


def forget_node_view(uid: str) -> None:
    """Remove the parsed view of a deleted Node from the cache."""
    _views_by_uid.pop(uid, None)


def _parse_node(obj: Obj) -> NodeView:
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    allocatable = status.get("allocatable") or status.get("capacity") or {}
    return NodeView(
        name=metadata["name"],
        labels=metadata.get("labels") or {},
        taints=tuple(map(parse_taint, spec.get("taints") or ())),
        unschedulable=bool(spec.get("unschedulable")),
        allocatable={resource: meta.amount(resource, value) for resource, value in allocatable.items()},
        ready=is_true(status, "Ready"),
    )


# Values derived from a Job's spec.


def parallel_pod_count(spec: Obj) -> int:
    """Return the maximum number of pods of a Job that run at once: its parallelism, or its completions if fewer."""
    parallelism: int = spec.get("parallelism", 1)
    completions: int | None = spec.get("completions")
    return parallelism if completions is None else min(parallelism, completions)


# The labels of a Namespace for selectors.


#: The label that every Namespace has, with its name.
NAME_LABEL: Final = "kubernetes.io/metadata.name"


def namespace_labels(namespace: Obj) -> Mapping[str, str]:
    """Return the labels of a Namespace, including the label with its name."""
    metadata = namespace["metadata"]
    return {NAME_LABEL: metadata["name"], **(metadata.get("labels") or {})}


# The view of a ResourceFlavor.


_SCHEDULING_EFFECTS: Final = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class FlavorView:
    """The parsed spec of a ResourceFlavor: labels, taints and Topology of its nodes, and tolerations for its pods."""

    name: str
    labels: Mapping[str, str]
    #: The taints with the effects NoSchedule and NoExecute.
    taints: tuple[Taint, ...]
    tolerations: tuple[Toleration, ...]
    #: The name of the Topology of its nodes; '' without one.
    topology: str = ""
    #: The relative price of its quota, which weights the cost of restarts.
    price: float = 1.0


def flavor_view(obj: Obj) -> FlavorView:
    """Parse the spec of a ResourceFlavor."""
    spec = obj.get("spec") or {}
    taints = map(parse_taint, spec.get("nodeTaints") or ())
    return FlavorView(
        name=obj["metadata"]["name"],
        labels=spec.get("nodeLabels") or {},
        taints=tuple(t for t in taints if t.effect in _SCHEDULING_EFFECTS),
        tolerations=tuple(map(parse_toleration, spec.get("tolerations") or ())),
        topology=spec.get("topologyName") or "",
        price=_relative_price(obj),
    )


def _relative_price(obj: Obj) -> float:
    """Return the relative price in the annotation of a ResourceFlavor; 1 if it is missing or no positive number."""
    text = meta.annotation(obj, well_known.PRICE) or ""
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII) and float(text) > 0 else 1.0
