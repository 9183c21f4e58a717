"""The built-in kinds: the strategy that connects `batchyard.api` to the registry."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from batchyard.api import conversion, scheme, validation
from batchyard.api.conversion import ShownTimesCache, TimeLocations, times_of
from batchyard.api.errors import FieldError
from batchyard.api.manifests import DecodedObject, complete
from batchyard.api.meta import LENGTH_MAX, Obj
from batchyard.api.printing import Column, columns, row
from batchyard.api.scheme import FILES, KINDS, NATIVE, Field, ServedKind, TypeScope, kind_info, scope_for
from batchyard.api.times import days_in
from batchyard.apiserver.openapi_definitions import schemas_of
from batchyard.apiserver.patch import shape_of_kind
from batchyard.apiserver.resources import Resource, no_misfit
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Propagation

# --- go times ---
#
# Errors of Go's time.Parse for the two time layouts of Kubernetes.
#
# Source: Go's time package (Parse, ParseError), read element by element as it does; metav1.Time and metav1.MicroTime.


_TWO: Final = r"\d\d"
# --- go errors ---
#
# Go decoding errors of Kubernetes' native kinds, for values whose type differs from their field's.
#
# In Go the decoder runs before validation, so only the first such value in document order is reported. Sources:
# encoding/json (UnmarshalTypeError), k8s.io/apimachinery's Quantity, Time and IntOrString.


#: The layout elements in order: Go's name and the pattern of each.
_DAY: Final = (("2006", r"\d{4}"), ("-", "-"), ("01", _TWO), ("-", "-"), ("02", _TWO), ("T", "T"))
_CLOCK: Final = (("15", r"\d\d?"), (":", ":"), ("04", _TWO), (":", ":"))
_ZONE: Final = ("Z07:00", r"Z|[+-]\d\d:\d\d")
_SECONDS: Final = (("05", _TWO + r"(?:[.,]\d+)?"), _ZONE)
_FINE_SECONDS: Final = (("05", _TWO), (".000000", r"[.,]\d{6}"), _ZONE)
_SECOND_LAYOUT: Final = (*_DAY, *_CLOCK, *_SECONDS)
_MICRO_LAYOUT: Final = (*_DAY, *_CLOCK, *_FINE_SECONDS)
#: Name, minimum and maximum of bounded elements; the day is checked last.
_RANGES: Final = {"01": ("month", 1, 12), "15": ("hour", 0, 23), "04": ("minute", 0, 59), "05": ("second", 0, 59)}


def time_fault(text: str, *, is_micro: bool) -> str | None:
    """Return the error for a text; None if it matches the layout."""
    layout = _MICRO_LAYOUT if is_micro else _SECOND_LAYOUT
    left, found = text, dict[str, str]()
    for name, fits in layout:
        match = re.compile(fits, re.ASCII).match(left)
        if match is None:
            message = f'"{"".join(each for each, _ in layout)}": cannot parse {_quoted(left)} as "{name}"'
            return f"parsing time {_quoted(text)} as {message}"
        found[name] = match[0]
        if name in _RANGES:
            what, lowest, highest = _RANGES[name]
            if not lowest <= int(match[0][:2]) <= highest:
                return f"parsing time {_quoted(text)}: {what} out of range"
        left = left[match.end() :]
    if left:
        return f"parsing time {_quoted(text)}: extra text: {_quoted(left)}"
    if not 1 <= int(found["02"]) <= days_in(int(found["2006"]), int(found["01"])):
        return f"parsing time {_quoted(text)}: day out of range"
    return None


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


_QUANTITY: Final = re.compile(r"[+-]?[0-9.]++[eEinumkKMGTP]*+[-+]?[0-9]*+", re.ASCII)
_NO_QUANTITY: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_GO_TYPES: Final[Mapping[str, str]] = {
    "string": "string",
    "bool": "bool",
    "int": "int32",
    "int32": "int32",
    "int64": "int64",
    "bytes": "[]uint8",
}
#: Types with their own UnmarshalJSON.
_NAMED: Final = {
    "quantity": "resource.Quantity",
    "time": "v1.Time",
    "micro-time": "v1.MicroTime",
    "int-or-string": "intstr.IntOrString",
}
_TIMES: Final = frozenset({"time", "micro-time"})
_BITS: Final = {"int": 63, "int32": 31, "int64": 63}
_TEXTS: Final = frozenset({"string", "bytes"})


def misfit(sent: Mapping[str, Any], of: TypeScope, type_name: str) -> str | None:
    """Return the error for the first value of a wrong type in an object; None if all fit."""
    return next(_in_object(sent, of, type_name, ()), None)


def _in_object(value: Mapping[str, Any], of: TypeScope, type_name: str, path: tuple[str, ...]) -> Iterator[str]:
    fields = of.fields(type_name)
    for name, child in value.items():
        if name in fields and child is not None:
            yield from _in_field(child, fields[name], of, (*path, name), type_name)


def _in_field(value: Any, field: Field, of: TypeScope, path: tuple[str, ...], struct: str) -> Iterator[str]:
    """Yield the errors of a value in a field of a struct; elements of lists and maps belong to the same struct."""
    if value is None:
        return
    if field.is_list and isinstance(value, list):
        for item in value:
            yield from _in_field(item, field.element, of, path, struct)
    elif field.is_map and isinstance(value, Mapping):
        for item in value.values():
            yield from _in_field(item, field.element, of, path, struct)
    elif field.is_object and isinstance(value, Mapping):
        scope, type_name = of.scope_of(field.expression)
        yield from _in_object(value, scope, type_name, path)
    elif field.is_list or field.is_map or field.is_object or field.expression in _GO_TYPES:
        if not _fits(value, field):
            where = f"Go struct field {_short(struct)}.{'.'.join(path)}"
            yield f"json: cannot unmarshal {_describe_value(value, field)} into {where} of type {_go_type(field)}"
    else:
        yield from _of_its_own(value, field.expression)


def _fits(value: Any, field: Field) -> bool:
    expression = field.expression
    if expression in _TEXTS:
        return isinstance(value, str)
    if expression == "bool":
        return isinstance(value, bool)
    bits = _BITS.get(expression)
    return bits is not None and type(value) is int and -(1 << bits) <= value < 1 << bits


def _of_its_own(value: Any, expression: str) -> Iterator[str]:
    """Yield the errors of types with their own UnmarshalJSON."""
    if expression == "int-or-string" and not isinstance(value, str | int):
        yield f"json: cannot unmarshal {_word(value)} into Go value of type int32"
    elif expression == "quantity" and (isinstance(value, bool) or not _is_quantity(_text(value))):
        yield _NO_QUANTITY
    elif expression in _TIMES and not isinstance(value, str):
        yield f"json: cannot unmarshal {_word(value)} into Go value of type string"
    elif expression in _TIMES and (fault := time_fault(value, is_micro=expression == "micro-time")):
        yield fault


def _is_quantity(text: str) -> bool:
    return len(text) <= LENGTH_MAX and _QUANTITY.fullmatch(text) is not None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _text_of(value)


def _text_of(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _describe_value(value: Any, field: Field) -> str:
    """Describe a value as the decoder does; numbers that do not fit an integer field with their text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"number {_text_of(value)}" if is_number and field.expression in _BITS else _word(value)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _go_type(field: Field) -> str:
    """Return the Go type of a field."""
    if field.is_list:
        return f"[]{_go_type(field.element)}"
    if field.expression == "{quantity}":
        return "v1.ResourceList"
    if field.is_map:
        return f"map[string]{_go_type(field.element)}"
    known = _GO_TYPES.get(field.expression) or _NAMED.get(field.expression)
    return known or f"v1.{_short(field.expression)}"


def _short(type_name: str) -> str:
    """Return a type name without its enclosing types."""
    return type_name.rpartition(".")[2]


class BuiltIn:
    """The strategy of one built-in kind."""

    def __init__(self, constant: str) -> None:
        self._constant = constant
        self._seconds = ShownTimesCache()
        #: The paths of time fields, by version.
        self._times: dict[str, TimeLocations] = {}

    def decode(self, sent: Mapping[str, Any], namespace: str, sound: Obj | None = None) -> DecodedObject:
        """Decode an object into its storage version with defaults; or return its errors."""
        return complete(sent, namespace, sound)

    def prepared(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        """Return an updated object unchanged: clients may change all fields."""
        return new

    def show(self, stored: Obj, api_version: str) -> dict[str, Any]:
        """Return a stored object in a served version, with times in whole seconds."""
        times = self._times.get(api_version)
        if times is None:
            times = self._times[api_version] = self.times(api_version)
        return self._seconds.in_whole_seconds(self.in_version(stored, api_version), times)

    def in_version(self, stored: Obj, api_version: str) -> dict[str, Any]:
        """Convert a stored object without rounding times, for comparison."""
        return conversion.from_storage(stored, api_version)

    def times(self, api_version: str) -> TimeLocations:
        """Return the paths of time fields in a version."""
        return times_of(kind_info(self._constant), api_version.rpartition("/")[2])

    def check_create(self, new: Obj) -> list[FieldError]:
        """Return the validation errors of a new object."""
        return validation.validate(new)

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of an update."""
        return validation.validate_update(new, old)

    def check_status(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of a status update."""
        return validation.validate_status(new, old)

    def columns(self, api_version: str) -> Sequence[Column]:
        """Return the table columns, including those of `-o wide`."""
        return columns(self._constant, wide=True)

    def cells(self, stored: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of a stored object."""
        return row(stored, now=now, wide=True)

    def schemas(self, version: str) -> Mapping[str, Any]:
        """Return the OpenAPI schemas of the kind in a version, including referenced ones, by name."""
        return schemas_of(kind_info(self._constant), version)


#: Source: Kubernetes's pkg/registry/batch/job/strategy.go.
_ORPHANS: Final = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)
#: Source: `ReturnDeletedObject` in Kubernetes's pkg/registry/core.
_RETURN_DELETED: Final = frozenset(
    {
        scheme.NAMESPACE,
        scheme.PERSISTENT_VOLUME,
        scheme.PERSISTENT_VOLUME_CLAIM,
        scheme.POD,
        scheme.POD_TEMPLATE,
        scheme.RESOURCE_QUOTA,
        scheme.SERVICE,
        scheme.SERVICE_ACCOUNT,
    }
)


def built_in_resources() -> list[Resource]:
    """Return the resources of the built-in kinds, except file formats."""
    return [_resource(info) for info in KINDS if info.constant not in FILES]


def _resource(info: ServedKind) -> Resource:
    orphans, fields = info.constant == scheme.JOB, scope_for(info, info.storage_version)
    is_native = fields.name == NATIVE
    return Resource(
        info,
        BuiltIn(info.constant),
        ("status",) if info.has_status else (),
        shape=partial(shape_of_kind, info),
        is_native=is_native,
        misfit=partial(misfit, of=fields, type_name=info.kind) if is_native else no_misfit,
        # kubelets create Nodes with a status
        is_born_with_status=info.constant == scheme.NODE,
        returns_deleted=info.constant in _RETURN_DELETED,
        is_adoptable=info.constant == scheme.CLUSTER_ROLE,
        propagation=Propagation.ORPHAN if orphans else Propagation.BACKGROUND,
        propagation_warning=_ORPHANS if orphans else "",
    )
