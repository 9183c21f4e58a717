"""The LimitRanger admission plugin: default requests and limits of new Pods, and checks against LimitRanges.

Source: Kubernetes's plugin/pkg/admission/limitranger. Updates are not checked, because the API server keeps the
resources of a Pod's containers immutable. PersistentVolumeClaim limits do not apply.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.admission_plugins.built_in import forbidden
from batchyard.api.errors import RefusedForNow
from batchyard.api.meta import NANO, Obj, canonical, format_of, formatted, parse, with_metadata
from batchyard.api.views.node import container_limits, container_requests, pod_total

_ANNOTATION: Final = "kubernetes.io/limit-ranger"
_CONTAINER: Final = "Container"
_POD: Final = "Pod"
_KINDS: Final = (("containers", "container"), ("initContainers", "init container"))


class _LimitConstraint(NamedTuple):
    """One constraint of a LimitRange: type, resource, and amount in billionths and as text."""

    on: str
    resource: str
    nano: int
    shown: str


class _RequestedResources(NamedTuple):
    """Requests and limits of a container or Pod in billionths, and the texts whose format messages use."""

    requests: Mapping[str, int]
    limits: Mapping[str, int]
    texts: Mapping[str, str]

    def request(self, name: str) -> str:
        """Format a request for messages."""
        return self._shown(name, self.requests[name])

    def limit(self, name: str) -> str:
        """Format a limit for messages."""
        return self._shown(name, self.limits[name])

    def _shown(self, name: str, nano: int) -> str:
        return formatted(nano, format_of(self.texts.get(name, "")))


_Rule: TypeAlias = Callable[[_LimitConstraint, _RequestedResources], str | None]


def limits_of(limit_range: Obj) -> Sequence[Mapping[str, Any]]:
    """Return the limits of a LimitRange; empty without a spec, which Kubernetes accepts."""
    return (limit_range.get("spec") or {}).get("limits") or ()


def with_limit_defaults(pod: Obj, ranges: Sequence[Obj]) -> Obj:
    """Return the Pod with the default requests and limits of the LimitRanges."""
    for limit_range in ranges:
        pod = _completed(pod, limit_range)
    return pod


def check_limits(pod: Obj, ranges: Sequence[Obj]) -> None:
    """Raise RefusedForNow if a Pod violates a LimitRange."""
    for limit_range in ranges:
        messages = list(dict.fromkeys(_faults(pod["spec"], limits_of(limit_range))))
        if messages:
            message = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
            raise RefusedForNow(f"{forbidden(pod)}: {message}")


def _completed(pod: Obj, limit_range: Obj) -> Obj:
    """Apply the defaults of one LimitRange, and record them in an annotation."""
    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}
    for limit in limits_of(limit_range):
        if limit["type"] == _CONTAINER:
            limits |= limit.get("default") or {}
            requests |= limit.get("defaultRequest") or {}
    spec, reported = dict(pod["spec"]), []
    for field, word in _KINDS:
        if spec.get(field):
            reported += [line for c in spec[field] for line in _describe_defaults(c, word, requests, limits)]
            spec[field] = [_filled(container, requests, limits) for container in spec[field]]
    if not reported:
        return pod
    annotations = pod["metadata"].get("annotations") or {}
    noted = {**annotations, _ANNOTATION: f"LimitRanger plugin set: {'; '.join(reported)}"}
    return with_metadata({**pod, "spec": spec}, annotations=noted)


def _describe_defaults(
    container: Mapping[str, Any], word: str, requests: Mapping[str, Any], limits: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a description of each default set on a container."""
    resources = container.get("resources") or {}
    for field, what, defaults in (("requests", "request", requests), ("limits", "limit", limits)):
        missing = sorted(name for name in defaults if name not in (resources.get(field) or {}))
        if missing:
            yield f"{', '.join(missing)} {what} for {word} {container['name']}"


def _filled(container: Mapping[str, Any], requests: Mapping[str, Any], limits: Mapping[str, Any]) -> Mapping[str, Any]:
    resources = container.get("resources") or {}
    own = {"limits": {**limits, **(resources.get("limits") or {})}}
    own["requests"] = {**requests, **(resources.get("requests") or {})}
    return {**container, "resources": {**resources, **{field: value for field, value in own.items() if value}}}


def _faults(spec: Mapping[str, Any], limits: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the violated constraints."""
    for limit in limits:
        if limit["type"] == _CONTAINER:
            for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
                asked = _RequestedResources(
                    container_requests(container), container_limits(container), _texts([container])
                )
                yield from _broken(limit, asked)
        elif limit["type"] == _POD:
            containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
            requests, bounds = pod_total(spec, container_requests), pod_total(spec, container_limits)
            yield from _broken(limit, _RequestedResources(requests, bounds, _texts(containers)))


def _texts(containers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the first quantity text of each resource; sums are formatted in its notation."""
    texts: dict[str, str] = {}
    for container in containers:
        resources = container.get("resources") or {}
        for name, value in ({**(resources.get("limits") or {}), **(resources.get("requests") or {})}).items():
            texts.setdefault(name, str(value))
    return texts


def _broken(limit: Mapping[str, Any], asked: _RequestedResources) -> Iterator[str]:
    """Yield the constraints of a limit that the requests and limits violate."""
    for field, rule in _RULES:
        for name, value in sorted((limit.get(field) or {}).items()):
            message = rule(_LimitConstraint(limit["type"], name, parse(value), canonical(value)), asked)
            if message is not None:
                yield message


def _below(bound: _LimitConstraint, asked: _RequestedResources) -> str | None:
    name, start = bound.resource, f"minimum {bound.resource} usage per {bound.on} is {bound.shown}"
    if name not in asked.requests:
        return f"{start}.  No request is specified"
    if asked.requests[name] < bound.nano:
        return f"{start}, but request is {asked.request(name)}"
    if name in asked.limits and asked.limits[name] < bound.nano:
        return f"{start}, but limit is {asked.limit(name)}"
    return None


def _above(bound: _LimitConstraint, asked: _RequestedResources) -> str | None:
    name, start = bound.resource, f"maximum {bound.resource} usage per {bound.on} is {bound.shown}"
    if name not in asked.limits:
        return f"{start}.  No limit is specified"
    if asked.limits[name] > bound.nano:
        return f"{start}, but limit is {asked.limit(name)}"
    if asked.requests.get(name, 0) > bound.nano:
        return f"{start}, but request is {asked.request(name)}"
    return None


def _apart(bound: _LimitConstraint, asked: _RequestedResources) -> str | None:
    """Check the ratio of limit to request."""
    start = f"{bound.resource} max limit to request ratio per {bound.on} is {bound.shown}"
    request, limit = asked.requests.get(bound.resource, 0), asked.limits.get(bound.resource, 0)
    if not request:
        return f"{start}, but no request is specified or request is 0"
    if not limit:
        return f"{start}, but no limit is specified or limit is 0"
    if limit * NANO > bound.nano * request:
        return f"{start}, but provided ratio is {limit / request:f}"
    return None


_RULES: Final[tuple[tuple[str, _Rule], ...]] = (("min", _below), ("max", _above), ("maxLimitRequestRatio", _apart))
