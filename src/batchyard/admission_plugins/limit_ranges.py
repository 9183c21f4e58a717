"""What the LimitRanges of a Namespace make of a new Pod, and ask of it.

Source: Kubernetes's plugin/pkg/admission/limitranger. That the API server keeps a Pod's containers as they are makes
it needless to look at them again when a Pod changes. There are no PersistentVolumeClaims here to be limited.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.admission_plugins.pods import forbidden
from batchyard.api.errors import RefusedForNow
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.quantity import NANO, canonical, family_of, formatted, parse
from batchyard.api.views.pod import container_limits, container_requests, pod_total

_ANNOTATION: Final = "kubernetes.io/limit-ranger"
_CONTAINER: Final = "Container"
_POD: Final = "Pod"
_KINDS: Final = (("containers", "container"), ("initContainers", "init container"))


class _Bound(NamedTuple):
    """One bound: on what, of which resource, and how much; as the messages have it, too."""

    on: str
    resource: str
    nano: int
    shown: str


class _Asked(NamedTuple):
    """What a container or a Pod requests and is limited to, in billionths, and texts of it."""

    requests: Mapping[str, int]
    limits: Mapping[str, int]
    texts: Mapping[str, str]

    def request(self, name: str) -> str:
        """A request as the messages show it."""
        return self._shown(name, self.requests[name])

    def limit(self, name: str) -> str:
        """A limit as the messages show it."""
        return self._shown(name, self.limits[name])

    def _shown(self, name: str, nano: int) -> str:
        return formatted(nano, family_of(self.texts.get(name, "")))


_Rule: TypeAlias = Callable[[_Bound, _Asked], str | None]


def limits_of(limit_range: Obj) -> Sequence[Mapping[str, Any]]:
    """What a LimitRange says; one without a spec, which Kubernetes takes, says nothing."""
    return (limit_range.get("spec") or {}).get("limits") or ()


def with_limit_defaults(pod: Obj, ranges: Sequence[Obj]) -> Obj:
    """The Pod, whose containers request, and are limited to, what LimitRanges say of those that say nothing."""
    for limit_range in ranges:
        pod = _completed(pod, limit_range)
    return pod


def check_limits(pod: Obj, ranges: Sequence[Obj]) -> None:
    """Raise RefusedForNow if a Pod is not within the bounds of a LimitRange."""
    for limit_range in ranges:
        messages = list(dict.fromkeys(_faults(pod["spec"], limits_of(limit_range))))
        if messages:
            told = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
            raise RefusedForNow(f"{forbidden(pod)}: {told}")


def _completed(pod: Obj, limit_range: Obj) -> Obj:
    """The Pod with the defaults of one LimitRange, told by an annotation."""
    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}
    for limit in limits_of(limit_range):
        if limit["type"] == _CONTAINER:
            limits |= limit.get("default") or {}
            requests |= limit.get("defaultRequest") or {}
    spec, told = dict(pod["spec"]), []
    for field, word in _KINDS:
        if spec.get(field):
            told += [line for c in spec[field] for line in _told(c, word, requests, limits)]
            spec[field] = [_filled(container, requests, limits) for container in spec[field]]
    if not told:
        return pod
    annotations = pod["metadata"].get("annotations") or {}
    noted = {**annotations, _ANNOTATION: f"LimitRanger plugin set: {'; '.join(told)}"}
    return with_metadata({**pod, "spec": spec}, annotations=noted)


def _told(
    container: Mapping[str, Any], word: str, requests: Mapping[str, Any], limits: Mapping[str, Any]
) -> Iterator[str]:
    """What is said to have been set of a container."""
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
    """What is out of bounds."""
    for limit in limits:
        if limit["type"] == _CONTAINER:
            for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
                asked = _Asked(container_requests(container), container_limits(container), _texts([container]))
                yield from _broken(limit, asked)
        elif limit["type"] == _POD:
            containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
            requests, bounds = pod_total(spec, container_requests), pod_total(spec, container_limits)
            yield from _broken(limit, _Asked(requests, bounds, _texts(containers)))


def _texts(containers: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """An amount of each resource as it was written: sums are shown with the suffixes of the first."""
    texts: dict[str, str] = {}
    for container in containers:
        resources = container.get("resources") or {}
        for name, value in ({**(resources.get("limits") or {}), **(resources.get("requests") or {})}).items():
            texts.setdefault(name, str(value))
    return texts


def _broken(limit: Mapping[str, Any], asked: _Asked) -> Iterator[str]:
    """The bounds that what is asked for breaks."""
    for field, rule in _RULES:
        for name, value in sorted((limit.get(field) or {}).items()):
            message = rule(_Bound(limit["type"], name, parse(value), canonical(value)), asked)
            if message is not None:
                yield message


def _below(bound: _Bound, asked: _Asked) -> str | None:
    name, start = bound.resource, f"minimum {bound.resource} usage per {bound.on} is {bound.shown}"
    if name not in asked.requests:
        return f"{start}.  No request is specified"
    if asked.requests[name] < bound.nano:
        return f"{start}, but request is {asked.request(name)}"
    if name in asked.limits and asked.limits[name] < bound.nano:
        return f"{start}, but limit is {asked.limit(name)}"
    return None


def _above(bound: _Bound, asked: _Asked) -> str | None:
    name, start = bound.resource, f"maximum {bound.resource} usage per {bound.on} is {bound.shown}"
    if name not in asked.limits:
        return f"{start}.  No limit is specified"
    if asked.limits[name] > bound.nano:
        return f"{start}, but limit is {asked.limit(name)}"
    if asked.requests.get(name, 0) > bound.nano:
        return f"{start}, but request is {asked.request(name)}"
    return None


def _apart(bound: _Bound, asked: _Asked) -> str | None:
    """The limit is too many times the request."""
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
