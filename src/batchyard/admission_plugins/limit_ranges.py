"""The LimitRanger admission plugin: default requests and limits of new Pods, and checks against LimitRanges.

Source: Kubernetes's plugin/pkg/admission/limitranger. Updates are not checked, because the API server keeps the
resources of a Pod's containers immutable. PersistentVolumeClaim limits do not apply.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.admission_plugins.built_in import forbidden_prefix
from batchyard.api import meta
from batchyard.api.errors import TemporarilyForbidden
from batchyard.api.views.node import container_limits, container_requests, pod_total_amounts

_LIMIT_RANGER_ANNOTATION: Final = "kubernetes.io/limit-ranger"
_CONTAINER_TYPE: Final = "Container"
_POD_TYPE: Final = "Pod"
_CONTAINER_FIELDS: Final = (("containers", "container"), ("initContainers", "init container"))


class _LimitConstraint(NamedTuple):
    limit_type: str
    resource: str
    nano_amount: int
    text: str


class _RequestedResources(NamedTuple):
    requests: Mapping[str, int]
    limits: Mapping[str, int]
    quantity_texts: Mapping[str, str]

    def request_text(self, name: str) -> str:
        return self._format_amount(name, self.requests[name])

    def limit_text(self, name: str) -> str:
        return self._format_amount(name, self.limits[name])

    def _format_amount(self, name: str, nano_amount: int) -> str:
        return meta.format_quantity(nano_amount, meta.quantity_format(self.quantity_texts.get(name, "")))


_ConstraintRule: TypeAlias = Callable[[_LimitConstraint, _RequestedResources], str | None]


def limits_of(limit_range: meta.Obj) -> Sequence[Mapping[str, Any]]:
    """Return the limit items of a LimitRange; empty if it has no spec, which Kubernetes accepts."""
    return (limit_range.get("spec") or {}).get("limits") or ()


def with_limit_defaults(pod: meta.Obj, limit_ranges: Sequence[meta.Obj]) -> meta.Obj:
    """Return the Pod with the default requests and limits of the LimitRanges where its containers set none.

    An annotation on the Pod lists the defaults that were set.
    """
    for limit_range in limit_ranges:
        pod = _apply_defaults(pod, limit_range)
    return pod


def check_limits(pod: meta.Obj, limit_ranges: Sequence[meta.Obj]) -> None:
    """Raise TemporarilyForbidden if a Pod violates a LimitRange."""
    for limit_range in limit_ranges:
        violations = list(dict.fromkeys(_limit_errors(pod["spec"], limits_of(limit_range))))
        if violations:
            message = violations[0] if len(violations) == 1 else f"[{', '.join(violations)}]"
            raise TemporarilyForbidden(f"{forbidden_prefix(pod)}: {message}")


def _apply_defaults(pod: meta.Obj, limit_range: meta.Obj) -> meta.Obj:
    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}
    for limit in limits_of(limit_range):
        if limit["type"] == _CONTAINER_TYPE:
            limits |= limit.get("default") or {}
            requests |= limit.get("defaultRequest") or {}
    spec, descriptions = dict(pod["spec"]), []
    for field, kind in _CONTAINER_FIELDS:
        if spec.get(field):
            descriptions += [line for c in spec[field] for line in _describe_defaults(c, kind, requests, limits)]
            spec[field] = [_fill_defaults(container, requests, limits) for container in spec[field]]
    if not descriptions:
        return pod
    annotations = pod["metadata"].get("annotations") or {}
    new_annotations = {**annotations, _LIMIT_RANGER_ANNOTATION: f"LimitRanger plugin set: {'; '.join(descriptions)}"}
    return meta.with_metadata({**pod, "spec": spec}, annotations=new_annotations)


def _describe_defaults(
    container: Mapping[str, Any], container_type: str, requests: Mapping[str, Any], limits: Mapping[str, Any]
) -> Iterator[str]:
    resources = container.get("resources") or {}
    for field, field_text, defaults in (("requests", "request", requests), ("limits", "limit", limits)):
        missing_names = sorted(name for name in defaults if name not in (resources.get(field) or {}))
        if missing_names:
            yield f"{', '.join(missing_names)} {field_text} for {container_type} {container['name']}"


def _fill_defaults(
    container: Mapping[str, Any], default_requests: Mapping[str, Any], default_limits: Mapping[str, Any]
) -> Mapping[str, Any]:
    resources = container.get("resources") or {}
    amounts = {"limits": {**default_limits, **(resources.get("limits") or {})}}
    amounts["requests"] = {**default_requests, **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, **{field: value for field, value in amounts.items() if value}}}


def _limit_errors(spec: Mapping[str, Any], limit_items: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for limit in limit_items:
        if limit["type"] == _CONTAINER_TYPE:
            for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
                pod_resources = _RequestedResources(
                    container_requests(container), container_limits(container), _quantity_texts([container])
                )
                yield from _constraint_errors(limit, pod_resources)
        elif limit["type"] == _POD_TYPE:
            containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
            requests, limits = pod_total_amounts(spec, container_requests), pod_total_amounts(spec, container_limits)
            yield from _constraint_errors(limit, _RequestedResources(requests, limits, _quantity_texts(containers)))


def _quantity_texts(containers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return by resource name the first quantity that a container has for it, as written, such as `500m`.

    Messages write the sum of the quantities in the same notation as this quantity. A request precedes a limit.
    """
    quantity_texts: dict[str, str] = {}
    for container in containers:
        resources = container.get("resources") or {}
        for name, value in ({**(resources.get("limits") or {}), **(resources.get("requests") or {})}).items():
            quantity_texts.setdefault(name, str(value))
    return quantity_texts


def _constraint_errors(limit_item: Mapping[str, Any], pod_resources: _RequestedResources) -> Iterator[str]:
    for field, rule in _CONSTRAINT_RULES:
        for name, value in sorted((limit_item.get(field) or {}).items()):
            message = rule(
                _LimitConstraint(limit_item["type"], name, meta.parse_quantity(value), meta.canonical_quantity(value)),
                pod_resources,
            )
            if message is not None:
                yield message


def _check_minimum(limit: _LimitConstraint, resources: _RequestedResources) -> str | None:
    name, message_start = limit.resource, f"minimum {limit.resource} usage per {limit.limit_type} is {limit.text}"
    if name not in resources.requests:
        return f"{message_start}.  No request is specified"
    if resources.requests[name] < limit.nano_amount:
        return f"{message_start}, but request is {resources.request_text(name)}"
    if name in resources.limits and resources.limits[name] < limit.nano_amount:
        return f"{message_start}, but limit is {resources.limit_text(name)}"
    return None


def _check_maximum(limit: _LimitConstraint, resources: _RequestedResources) -> str | None:
    name, message_start = limit.resource, f"maximum {limit.resource} usage per {limit.limit_type} is {limit.text}"
    if name not in resources.limits:
        return f"{message_start}.  No limit is specified"
    if resources.limits[name] > limit.nano_amount:
        return f"{message_start}, but limit is {resources.limit_text(name)}"
    if resources.requests.get(name, 0) > limit.nano_amount:
        return f"{message_start}, but request is {resources.request_text(name)}"
    return None


def _check_ratio(constraint: _LimitConstraint, resources: _RequestedResources) -> str | None:
    message_start = f"{constraint.resource} max limit to request ratio per {constraint.limit_type} is {constraint.text}"
    request, limit = resources.requests.get(constraint.resource, 0), resources.limits.get(constraint.resource, 0)
    if not request:
        return f"{message_start}, but no request is specified or request is 0"
    if not limit:
        return f"{message_start}, but no limit is specified or limit is 0"
    if limit * meta.NANO > constraint.nano_amount * request:
        return f"{message_start}, but provided ratio is {limit / request:f}"
    return None


_CONSTRAINT_RULES: Final[tuple[tuple[str, _ConstraintRule], ...]] = (
    ("min", _check_minimum),
    ("max", _check_maximum),
    ("maxLimitRequestRatio", _check_ratio),
)
