"""Rules of resource requests and limits. Source: Kubernetes's pkg/apis/core/validation."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.validation import errors as amounts
from batchyard.api.validation import errors as faults
from batchyard.api.validation import metadata, names
from batchyard.base.memoize import memoized_if_short

_STANDARD: Final = ("cpu", "memory", "ephemeral-storage")
_OF_PODS: Final = ("cpu", "memory")
_NAMES_REMEDY: Final = f"use {', '.join(_STANDARD)}, hugepages-<size>, or a device such as nvidia.com/gpu"


def resources_faults(resources: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Names are container resources, amounts are valid, requests are within limits."""
    requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
    for field, listed in (("limits", limits), ("requests", requests)):
        for name, value in listed.items():
            at = f"{path}.{field}[{name}]"
            yield from resource_name_faults(name, at)
            yield from _value_faults(name, value, at)
    for name, value in requests.items():
        yield from _limit_faults(name, value, limits, path)
    if _has_hugepages(requests, limits) and not any(
        name in each for name in _STANDARD[:2] for each in (requests, limits)
    ):
        message = "HugePages require cpu or memory"
        yield faults.forbidden(path, message, "request cpu or memory as well")


def pod_resources_faults(resources: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """Validate the resources of a pod as a whole, which supports fewer resources."""
    yield from resources_faults(resources, path)
    for field in ("limits", "requests"):
        for name in resources.get(field) or {}:
            if name not in _OF_PODS and not name.startswith("hugepages-"):
                remedy = f"give {name} to a container"
                yield faults.unsupported(f"{path}.{field}[{name}]", name, (*_OF_PODS, "hugepages-*"), remedy)


def _is_native(name: str) -> bool:
    """Report whether a resource is Kubernetes's own."""
    return "/" not in name or "kubernetes.io/" in name


@memoized_if_short(maxsize=4096)
def is_extended(name: str) -> bool:
    """Report whether a resource is an extended one, counted in whole numbers."""
    return not _is_native(name) and not name.startswith("requests.") and not names.qualified_name(f"requests.{name}")


def _has_hugepages(*listed: Mapping[str, Any]) -> bool:
    """Report whether any list has hugepages."""
    return any(name.startswith("hugepages-") for each in listed for name in each)


def resource_name_faults(name: str, path: str) -> Iterator[FieldError]:
    """A resource is a standard one, hugepages, or an extended one."""
    if names.qualified_name(name):
        yield from metadata.label_key_faults(name, path)
    elif "/" not in name:
        if name not in _STANDARD and not name.startswith("hugepages-"):
            yield faults.invalid(path, name, "must be a standard resource for containers", _NAMES_REMEDY)
    elif not _is_native(name) and not is_extended(name):
        yield faults.invalid(path, name, "doesn't follow extended resource name standard", _NAMES_REMEDY)


def _value_faults(name: str, value: Any, path: str) -> Iterator[FieldError]:
    """Amounts are not negative; extended resources are whole numbers."""
    yield from amounts.amount_faults(value, path)
    amount = amounts.nano(value)
    if amount is not None and amount % 10**9 and is_extended(name):
        yield faults.invalid(path, amounts.shown(value), "must be an integer", "give a whole number")


def _limit_faults(name: str, value: Any, limits: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    """A request is at most its limit; for resources without overcommit it equals its limit."""
    shared = _is_native(name) and not name.startswith("hugepages-")
    limit = limits.get(name)
    if limit is None:
        if not shared:
            message = "Limit must be set for non overcommitable resources"
            yield faults.required(f"{path}.limits", message, f"set the limit of {name} to {amounts.shown(value)}")
        return
    shown, bound = amounts.shown(value), amounts.shown(limit)
    if shared and amounts.exceeds(value, limit):
        message = f"must be less than or equal to {name} limit of {bound}"
        yield faults.invalid(
            f"{path}.requests", shown, message, f"request at most {bound} of {name}, or raise its limit"
        )
    elif not shared and amounts.nano(value) != amounts.nano(limit):
        message = f"must be equal to {name} limit of {bound}"
        yield faults.invalid(f"{path}.requests", shown, message, f"give {name} the same request and limit")
