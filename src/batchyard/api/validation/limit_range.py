"""Rules of LimitRanges. Source: Kubernetes's pkg/apis/core/validation."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from batchyard.api.errors import FieldError
from batchyard.api.quantity import NANO
from batchyard.api.validation import amounts, faults, metadata, names
from batchyard.api.validation.resources import is_extended, resource_name_faults

_CLAIM: Final = "PersistentVolumeClaim"
_TYPES: Final = ("Container", "Pod", _CLAIM)
_FIELDS: Final = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")
#: Pairs of which the first is at most the second: which is wrong otherwise and how each is called.
_ORDERED: Final = (
    ("min", "max", "min", "min value", "max value"),
    ("min", "defaultRequest", "defaultRequest", "min value", "default request value"),
    ("defaultRequest", "max", "defaultRequest", "default request value", "max value"),
    ("defaultRequest", "default", "defaultRequest", "default request value", "default limit value"),
    ("min", "default", "default", "min value", "default value"),
    ("default", "max", "default", "default value", "max value"),
)
#: Of these pairs not the field's own value is shown, but the other one.
_SHOWN: Final = {("min", "default"): "min", ("default", "max"): "max"}


def limit_range_faults(limit_range: Mapping[str, Any]) -> Iterator[FieldError]:
    """All rules of a LimitRange."""
    yield from metadata.metadata_faults(limit_range)
    seen: dict[str, None] = {}
    for i, limit in enumerate((limit_range.get("spec") or {}).get("limits") or ()):
        path, kind = f"spec.limits[{i}]", limit["type"]
        yield from _type_faults(kind, f"{path}.type")
        if kind in seen:
            yield faults.duplicate(f"{path}.type", kind, "join the two")
        seen[kind] = None
        yield from _field_faults(limit, path)
        listed = {name: None for field in _FIELDS for name in limit.get(field) or ()}
        for name in sorted(listed):
            yield from _amount_faults(limit, name, path)


def _type_faults(kind: str, path: str) -> Iterator[FieldError]:
    remedy, wrong = f"use one of {', '.join(_TYPES)}", names.qualified_name(kind)
    for message in wrong:
        yield faults.invalid(path, kind, message, remedy)
    if not wrong and "/" not in kind and kind not in _TYPES:
        yield faults.invalid(path, kind, "must be a standard limit type or fully qualified", remedy)


def _field_faults(limit: Mapping[str, Any], path: str) -> Iterator[FieldError]:
    kind = limit["type"]
    for field in _FIELDS:
        if kind == "Pod" and field.startswith("default"):
            if limit.get(field):
                message = "may not be specified when `type` is 'Pod'"
                yield faults.forbidden(f"{path}.{field}", message, "give it for containers")
        elif kind in _TYPES[:2]:
            for name in limit.get(field) or ():
                yield from resource_name_faults(name, f"{path}.{field}[{name}]")
    if kind == _CLAIM and not any("storage" in (limit.get(field) or ()) for field in ("min", "max")):
        message = "either minimum or maximum storage value is required, but neither was provided"
        yield faults.required(f"{path}.limits", message, "give a minimum or maximum of storage")


def _amount_faults(limit: Mapping[str, Any], name: str, path: str) -> Iterator[FieldError]:
    """How the amounts of one resource stand to each other."""
    given = {field: limit[field][name] for field in _FIELDS if name in (limit.get(field) or ())}
    for less, more, wrong, first, second in _ORDERED:
        if less in given and more in given and amounts.exceeds(given[less], given[more]):
            low, high = amounts.shown(given[less]), amounts.shown(given[more])
            value = amounts.shown(given[_SHOWN.get((less, more), wrong)])
            message = f"{first} {low} is greater than {second} {high}"
            yield faults.invalid(f"{path}.{wrong}[{name}]", value, message, f"give at most {high}")
    yield from _ratio_faults(given, name, path)
    is_shared = not is_extended(name) and not name.startswith("hugepages-")
    if not is_shared and "default" in given and "defaultRequest" in given:
        default, request = amounts.shown(given["default"]), amounts.shown(given["defaultRequest"])
        if amounts.nano(given["default"]) != amounts.nano(given["defaultRequest"]):
            message = f"default value {default} must equal to defaultRequest value {request} in {name}"
            yield faults.invalid(f"{path}.defaultRequest[{name}]", request, message, f"give {default}")


def _ratio_faults(given: Mapping[str, Any], name: str, path: str) -> Iterator[FieldError]:
    ratio = amounts.nano(given.get("maxLimitRequestRatio", ""))
    if ratio is None:
        return
    at, shown = f"{path}.maxLimitRequestRatio[{name}]", amounts.shown(given["maxLimitRequestRatio"])
    if ratio < NANO:
        yield faults.invalid(at, shown, f"ratio {shown} is less than 1", "give at least 1")
    low, high = amounts.nano(given.get("min", "")), amounts.nano(given.get("max", ""))
    if low and high is not None and ratio * low > high * NANO:
        message = f"ratio {shown} is greater than max/min = {high / low:f}"
        yield faults.invalid(at, shown, message, "give less, or move the bounds")
