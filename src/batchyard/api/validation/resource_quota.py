"""Rules of ResourceQuotas. Source: Kubernetes's pkg/apis/core/validation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import amounts, faults, metadata, names

_COMPUTE: Final = ("cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory")
_WHOLE: Final = frozenset(
    {
        *("pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps"),
        *("persistentvolumeclaims", "services.nodeports", "services.loadbalancers"),
    }
)
_STORAGE: Final = ("ephemeral-storage", "requests.ephemeral-storage", "limits.ephemeral-storage", "requests.storage")
_STANDARD: Final = frozenset({*_COMPUTE, *_STORAGE, *_WHOLE})
_HUGE_PAGES: Final = ("hugepages-", "requests.hugepages-")
_BEST_EFFORT: Final = "BestEffort"
_PRIORITY: Final = "PriorityClass"
#: Scopes that a Pod is in or not, without further values.
_PLAIN: Final = ("Terminating", "NotTerminating", _BEST_EFFORT, "NotBestEffort", "CrossNamespacePodAffinity")
_SCOPES: Final = (*_PLAIN, _PRIORITY)
_CONFLICTS: Final = ((_BEST_EFFORT, "NotBestEffort"), ("Terminating", "NotTerminating"))
_MUST_EXIST: Final = (
    "must be 'Exist' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, "
    "ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"
)
_UNSUITED: Final = "unsupported scope applied to resource"


def resource_quota_faults(quota: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a ResourceQuota."""
    yield from metadata.metadata_faults(quota)
    spec = quota.get("spec") or {}
    hard = spec.get("hard") or {}
    for name, value in hard.items():
        path = f"spec.hard[{name}]"
        yield from _name_faults(name, path)
        yield from amounts.amount_faults(value, path)
        if name in _WHOLE and (amounts.nano(value) or 0) % 10**9:
            yield faults.invalid(path, amounts.shown(value), "must be an integer", "give a whole number")
    standard = [name for name in sorted(hard) if _is_standard(name)]
    yield from _scopes_faults(spec.get("scopes") or (), standard)
    yield from _selector_faults(spec.get("scopeSelector"), standard)


def resource_quota_update_faults(new: Mapping[str, Any], old: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a changed ResourceQuota: its scopes stay."""
    yield from resource_quota_faults(new)
    after, before = ((each.get("spec") or {}).get("scopes") or [] for each in (new, old))
    if sorted(after) != sorted(before):
        yield faults.immutable("spec.scopes", after)


def _is_standard(name: str) -> bool:
    return name in _STANDARD or name.startswith(_HUGE_PAGES)


def _name_faults(name: str, path: str) -> Iterator[FieldError]:
    """What is bounded is something a quota knows, or has a prefix."""
    remedy = "bound pods, requests.cpu, limits.memory, requests.nvidia.com/gpu or count/jobs.batch, for example"
    wrong = names.qualified_name(name)
    for message in wrong:
        yield faults.invalid(path, name, message, remedy)
    if wrong or "/" in name:
        return
    if not _is_standard(name) and name != "storage":
        yield faults.invalid(path, name, "must be a standard resource type or fully qualified", remedy)
    if not _is_standard(name):
        yield faults.invalid(path, name, "must be a standard resource for quota", remedy)


def _suits(scope: str, name: str) -> bool:
    """Whether a scope makes sense for what is bounded."""
    if scope == _BEST_EFFORT:
        return name == "pods"
    return scope not in _SCOPES or name == "pods" or name in _COMPUTE


def _scopes_faults(scopes: Sequence[str], hard: Sequence[str]) -> Iterator[FieldError]:
    remedy = f"use some of {', '.join(_PLAIN)}, and bound only what Pods use"
    for scope in scopes:
        if scope not in _SCOPES:
            yield faults.invalid("spec.scopes", scopes, "unsupported scope", remedy)
        for name in hard:
            if not _suits(scope, name):
                yield faults.invalid("spec.scopes", scopes, _UNSUITED, remedy)
    yield from _conflict_faults(scopes, scopes, "spec.scopes")


def _selector_faults(selector: Mapping[str, Any] | None, hard: Sequence[str]) -> Iterator[FieldError]:
    path, expressions = "spec.scopeSelector.matchExpressions", (selector or {}).get("matchExpressions") or ()
    for expression in expressions:
        scope = expression["scopeName"]
        if scope not in _SCOPES:
            yield faults.invalid(f"{path}.scopeName", scope, "unsupported scope", f"use one of {', '.join(_SCOPES)}")
        for name in hard:
            if not _suits(scope, name):
                yield faults.invalid(path, selector, _UNSUITED, "bound only what Pods use")
        yield from _operator_faults(expression, path)
    yield from _conflict_faults([each["scopeName"] for each in expressions], [], path)


def _operator_faults(expression: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    operator, values = expression["operator"], expression.get("values") or ()
    if expression["scopeName"] in _PLAIN and operator != "Exists":
        yield faults.invalid(f"{path}.operator", operator, _MUST_EXIST, "use Exists")
    match operator:
        case "In" | "NotIn":
            if not values:
                message = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
                yield faults.required(f"{path}.values", message, "name a PriorityClass")
        case "Exists" | "DoesNotExist":
            if values:
                message = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
                yield faults.invalid(f"{path}.values", values, message, "leave the values out")
        case _:
            remedy = "use In, NotIn, Exists or DoesNotExist"
            yield faults.invalid(f"{path}.operator", operator, "not a valid selector operator", remedy)


def _conflict_faults(scopes: Sequence[str], shown: Sequence[str], path: str) -> Iterator[FieldError]:
    for pair in _CONFLICTS:
        if all(scope in scopes for scope in pair):
            yield faults.invalid(path, list(shown), "conflicting scopes", f"drop {pair[0]} or {pair[1]}")
