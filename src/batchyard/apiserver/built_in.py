"""The resources of the built-in kinds: their strategy, and Go's decoding errors for values of a wrong type."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from batchyard.api import conversion, scheme, validation
from batchyard.api.conversion import TimeLocations, WireTimesCache, time_locations
from batchyard.api.errors import FieldError, InvalidObject
from batchyard.api.manifests import DecodedObject, decode_unvalidated
from batchyard.api.meta import QUANTITY_LENGTH_MAX, Obj, with_metadata
from batchyard.api.printing import Column, columns, row
from batchyard.api.scheme import FILE_KINDS, KINDS, NATIVE, Field, ServedKind, TypeScope, kind_info, load_scope_for_kind
from batchyard.api.times import days_in_month
from batchyard.api.validation import NO_DISABLED_GATES, DisabledGates, containers, rules
from batchyard.apiserver.admission.attributes import POLICY_KINDS, WEBHOOK_KINDS
from batchyard.apiserver.openapi_definitions import schemas_of
from batchyard.apiserver.patch import merge_schema_of_kind
from batchyard.apiserver.request import UserInfo
from batchyard.apiserver.resources import Resource, invalid_object_error, no_decoding_error
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Propagation

# Errors of Go's time.Parse for the two time layouts of Kubernetes.
#
# Source: Go's time package (Parse, ParseError), read element by element as it does; metav1.Time and metav1.MicroTime.


_TWO_DIGITS: Final = r"\d\d"
#: The layout elements in order: Go's name and the pattern of each.
_DATE_LAYOUT: Final = (("2006", r"\d{4}"), ("-", "-"), ("01", _TWO_DIGITS), ("-", "-"), ("02", _TWO_DIGITS), ("T", "T"))
_HOUR_AND_MINUTE_LAYOUT: Final = (("15", r"\d\d?"), (":", ":"), ("04", _TWO_DIGITS), (":", ":"))
_ZONE_LAYOUT_ELEMENT: Final = ("Z07:00", r"Z|[+-]\d\d:\d\d")
_SECONDS_AND_ZONE_LAYOUT: Final = (("05", _TWO_DIGITS + r"(?:[.,]\d+)?"), _ZONE_LAYOUT_ELEMENT)
_SECONDS_WITH_MICROS_LAYOUT: Final = (("05", _TWO_DIGITS), (".000000", r"[.,]\d{6}"), _ZONE_LAYOUT_ELEMENT)
_SECOND_LAYOUT: Final = (*_DATE_LAYOUT, *_HOUR_AND_MINUTE_LAYOUT, *_SECONDS_AND_ZONE_LAYOUT)
_MICRO_LAYOUT: Final = (*_DATE_LAYOUT, *_HOUR_AND_MINUTE_LAYOUT, *_SECONDS_WITH_MICROS_LAYOUT)
#: Name, minimum and maximum of bounded elements; the day is checked last.
_TIME_RANGES: Final = {"01": ("month", 1, 12), "15": ("hour", 0, 23), "04": ("minute", 0, 59), "05": ("second", 0, 59)}


def go_time_error(text: str, *, is_micro_time: bool) -> str | None:
    """Return the error of Go's time.Parse for a text; None if it is a valid time (with `is_micro_time` a MicroTime)."""
    layout = _MICRO_LAYOUT if is_micro_time else _SECOND_LAYOUT
    remaining_text, matched_texts = text, dict[str, str]()
    for name, pattern in layout:
        match = re.compile(pattern, re.ASCII).match(remaining_text)
        if match is None:
            message = f'"{"".join(each for each, _ in layout)}": cannot parse {_quote(remaining_text)} as "{name}"'
            return f"parsing time {_quote(text)} as {message}"
        matched_texts[name] = match[0]
        if name in _TIME_RANGES:
            range_name, minimum, maximum = _TIME_RANGES[name]
            if not minimum <= int(match[0][:2]) <= maximum:
                return f"parsing time {_quote(text)}: {range_name} out of range"
        remaining_text = remaining_text[match.end() :]
    if remaining_text:
        return f"parsing time {_quote(text)}: extra text: {_quote(remaining_text)}"
    if not 1 <= int(matched_texts["02"]) <= days_in_month(int(matched_texts["2006"]), int(matched_texts["01"])):
        return f"parsing time {_quote(text)}: day out of range"
    return None


def _quote(text: str) -> str:
    return msgspec.json.encode(text).decode()


# Go decoding errors of Kubernetes' native kinds, for values whose type differs from their field's.
#
# In Go the decoder runs before validation, so only the first such value in document order is reported. Sources:
# encoding/json (UnmarshalTypeError), k8s.io/apimachinery's Quantity, Time and IntOrString.


_QUANTITY_PATTERN: Final = re.compile(r"[+-]?[0-9.]++[eEinumkKMGTP]*+[-+]?[0-9]*+", re.ASCII)
_NOT_A_QUANTITY: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_GO_TYPES: Final[Mapping[str, str]] = {
    "string": "string",
    "bool": "bool",
    "int": "int32",
    "int32": "int32",
    "int64": "int64",
    "bytes": "[]uint8",
}
#: Types with their own UnmarshalJSON.
_GO_TYPES_WITH_UNMARSHAL: Final = {
    "quantity": "resource.Quantity",
    "time": "v1.Time",
    "micro-time": "v1.MicroTime",
    "int-or-string": "intstr.IntOrString",
}
_TIME_TYPES: Final = frozenset({"time", "micro-time"})
_INTEGER_BITS: Final = {"int": 63, "int32": 31, "int64": 63}
_STRING_TYPES: Final = frozenset({"string", "bytes"})


def find_decoding_error(sent_object: Mapping[str, Any], scope: TypeScope, type_name: str) -> str | None:
    """Return Go's decoding error for the first value of a wrong type in an object; None if all values fit."""
    return next(_object_errors(sent_object, scope, type_name, ()), None)


def _object_errors(value: Mapping[str, Any], scope: TypeScope, type_name: str, path: tuple[str, ...]) -> Iterator[str]:
    fields = scope.fields(type_name)
    for name, child in value.items():
        if name in fields and child is not None:
            yield from _field_errors(child, fields[name], scope, (*path, name), type_name)


def _field_errors(value: Any, field: Field, scope: TypeScope, path: tuple[str, ...], struct_name: str) -> Iterator[str]:
    if value is None:
        return
    if field.is_list and isinstance(value, list):
        for item in value:
            yield from _field_errors(item, field.element, scope, path, struct_name)
    elif field.is_map and isinstance(value, Mapping):
        for item in value.values():
            yield from _field_errors(item, field.element, scope, path, struct_name)
    elif field.is_object and isinstance(value, Mapping):
        nested_scope, type_name = scope.scope_of(field.expression)
        yield from _object_errors(value, nested_scope, type_name, path)
    elif field.is_list or field.is_map or field.is_object or field.expression in _GO_TYPES:
        if not _has_go_type(value, field):
            location = f"Go struct field {_unqualified_name(struct_name)}.{'.'.join(path)}"
            yield f"json: cannot unmarshal {_describe_value(value, field)} into {location} of type {_go_type(field)}"
    else:
        yield from _custom_decoding_errors(value, field.expression)


def _has_go_type(value: Any, field: Field) -> bool:
    expression = field.expression
    if expression in _STRING_TYPES:
        return isinstance(value, str)
    if expression == "bool":
        return isinstance(value, bool)
    magnitude_bits = _INTEGER_BITS.get(expression)
    return magnitude_bits is not None and type(value) is int and -(1 << magnitude_bits) <= value < 1 << magnitude_bits


def _custom_decoding_errors(value: Any, expression: str) -> Iterator[str]:
    if expression == "int-or-string" and not isinstance(value, str | int):
        yield f"json: cannot unmarshal {_json_type(value)} into Go value of type int32"
    elif expression == "quantity" and (isinstance(value, bool) or not _is_quantity(_string_or_json(value))):
        yield _NOT_A_QUANTITY
    elif expression in _TIME_TYPES and not isinstance(value, str):
        yield f"json: cannot unmarshal {_json_type(value)} into Go value of type string"
    elif expression in _TIME_TYPES and (fault := go_time_error(value, is_micro_time=expression == "micro-time")):
        yield fault


def _is_quantity(text: str) -> bool:
    return len(text) <= QUANTITY_LENGTH_MAX and _QUANTITY_PATTERN.fullmatch(text) is not None


def _string_or_json(value: Any) -> str:
    return value if isinstance(value, str) else _to_json(value)


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _describe_value(value: Any, field: Field) -> str:
    """Describe a value as Go's decoder does; a number that does not fit an integer field includes its digits."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"number {_to_json(value)}" if is_number and field.expression in _INTEGER_BITS else _json_type(value)


def _json_type(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _go_type(field: Field) -> str:
    if field.is_list:
        return f"[]{_go_type(field.element)}"
    if field.expression == "{quantity}":
        return "v1.ResourceList"
    if field.is_map:
        return f"map[string]{_go_type(field.element)}"
    type_name = _GO_TYPES.get(field.expression) or _GO_TYPES_WITH_UNMARSHAL.get(field.expression)
    return type_name or f"v1.{_unqualified_name(field.expression)}"


def _unqualified_name(type_name: str) -> str:
    return type_name.rpartition(".")[2]


class BuiltInStrategy:
    """The kind-specific API logic of one built-in kind: decoding, conversion, validation and table output."""

    def __init__(self, kind: str, disabled_gates: DisabledGates = NO_DISABLED_GATES) -> None:
        """`disabled_gates` are the disabled feature gates of Kueue that validation obeys."""
        self._constant = kind
        self._disabled_gates = disabled_gates
        self._wire_times = WireTimesCache()
        #: The paths of time fields, by version.
        self._time_paths_by_version: dict[str, TimeLocations] = {}

    def decode(self, sent_object: Mapping[str, Any], namespace: str, valid_obj: Obj | None = None) -> DecodedObject:
        """Decode an object into its storage version with defaults, or return its errors."""
        return decode_unvalidated(sent_object, namespace, valid_obj)

    def prepare_update(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        """Return an updated object unchanged: clients may change all fields."""
        return new

    def render(self, stored_object: Obj, api_version: str) -> dict[str, Any]:
        """Return a stored object in a served version, with metav1.Time fields in whole seconds."""
        time_paths = self._time_paths_by_version.get(api_version)
        if time_paths is None:
            time_paths = self._time_paths_by_version[api_version] = self.time_paths(api_version)
        return self._wire_times.cut_times_to_seconds(self.in_version(stored_object, api_version), time_paths)

    def in_version(self, stored_object: Obj, api_version: str) -> dict[str, Any]:
        """Convert a stored object to a served version for a comparison; times keep the stored precision."""
        return conversion.from_storage(stored_object, api_version)

    def time_paths(self, api_version: str) -> TimeLocations:
        """Return the paths of metav1.Time fields in a version of the kind."""
        return time_locations(kind_info(self._constant), api_version.rpartition("/")[2])

    def check_create(self, new: Obj) -> list[FieldError]:
        """Return the validation errors of a new object."""
        return validation.validate(new, self._disabled_gates)

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of an update."""
        return validation.validate_update(new, old, self._disabled_gates)

    def check_status(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of a status update."""
        return validation.validate_status(new, old, self._disabled_gates)

    def columns(self, api_version: str) -> Sequence[Column]:
        """Return the table columns of the kind, including those of `-o wide`."""
        return columns(self._constant, wide=True)

    def cells(self, stored_object: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of a stored object."""
        return row(stored_object, now=now, wide=True)

    def schemas(self, version: str) -> Mapping[str, Any]:
        """Return the OpenAPI schemas of the kind in a version, including referenced ones, by name."""
        return schemas_of(kind_info(self._constant), version)


# Ephemeral containers: `kubectl debug` adds them to pods that run.
#
# Sources: Kubernetes's pkg/registry/core/pod/strategy.go (podEphemeralContainersStrategy) and pkg/apis/core/validation.


_EPHEMERAL: Final = "ephemeralContainers"
_EPHEMERAL_PATH: Final = f"spec.{_EPHEMERAL}"
#: Fields that ephemeral containers cannot have.
_FORBIDDEN_FIELDS: Final = ("ports", "resources", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle")
_FORBIDDEN_MESSAGE: Final = "cannot be set for an Ephemeral Container"


class EphemeralContainersStrategy(BuiltInStrategy):
    """The API logic of the subresource `ephemeralcontainers`, which only adds ephemeral containers to a pod."""

    def __init__(self) -> None:
        super().__init__(scheme.POD)

    def prepare_update(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        """Return the old pod with the ephemeral containers of the new one."""
        version = new["metadata"].get("resourceVersion") or old["metadata"]["resourceVersion"]
        spec = {**old["spec"], _EPHEMERAL: new["spec"].get(_EPHEMERAL) or []}
        return {**with_metadata(old, resourceVersion=version), "spec": spec}

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the errors of the added containers, and of changes of those that exist."""
        return [*_ephemeral_container_errors(new["spec"]), *_changed_container_errors(new["spec"], old["spec"])]


def _ephemeral_container_errors(spec: Mapping[str, Any]) -> Iterator[FieldError]:
    init_containers, added_containers = spec.get("initContainers") or [], spec[_EPHEMERAL]
    names = [each["name"] for each in (*spec["containers"], *init_containers)]
    volumes = dict.fromkeys(volume["name"] for volume in spec.get("volumes") or ())
    # The common rules of containers: the ephemeral ones are checked as if they were further init containers.
    checked_spec = {**spec, "initContainers": [*init_containers, *added_containers]}
    for fault in containers.containers_errors(checked_spec, volumes, "spec"):
        prefix, _, suffix = fault.path.partition("]")
        index = int(prefix.removeprefix("spec.initContainers[")) if prefix.startswith("spec.initContainers[") else -1
        if index >= len(init_containers):
            yield fault._replace(path=f"{_EPHEMERAL_PATH}[{index - len(init_containers)}]{suffix}")
    for index, container in enumerate(added_containers):
        path, target = f"{_EPHEMERAL_PATH}[{index}]", container.get("targetContainerName")
        if target and target not in names:
            yield rules.not_found(f"{path}.targetContainerName", target, "")
        for field in _FORBIDDEN_FIELDS:
            if container.get(field):
                yield rules.forbidden(f"{path}.{field}", _FORBIDDEN_MESSAGE, "")
        for mount_index, mount in enumerate(container.get("volumeMounts") or ()):
            for field in ("subPath", "subPathExpr"):
                if mount.get(field):
                    yield rules.forbidden(f"{path}.volumeMounts[{mount_index}].{field}", _FORBIDDEN_MESSAGE, "")


def _changed_container_errors(spec: Mapping[str, Any], old_spec: Mapping[str, Any]) -> Iterator[FieldError]:
    containers_by_name = {container["name"]: container for container in spec[_EPHEMERAL]}
    for old_container in old_spec.get(_EPHEMERAL) or ():
        name = old_container["name"]
        if name not in containers_by_name:
            message = f'existing ephemeral containers "{name}" may not be removed\n'
            yield rules.forbidden(_EPHEMERAL_PATH, message, "")
        elif containers_by_name[name] != old_container:
            message = f'existing ephemeral containers "{name}" may not be changed\n'
            yield rules.forbidden(_EPHEMERAL_PATH, message, "")


class PolicyStrategy(BuiltInStrategy):
    """The kind-specific API logic of admission policies and bindings; their validation is loaded on first use."""

    def check_create(self, new: Obj) -> list[FieldError]:
        """Return the validation errors of a new policy or binding."""
        from batchyard.apiserver.policies.validation import policy_errors  # noqa: PLC0415 - loads the CEL library

        return [*super().check_create(new), *policy_errors(new)]

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of an update."""
        return self.check_create(new)


#: Source: Kubernetes's pkg/registry/batch/job/strategy.go.
_ORPHAN_WARNING: Final = (
    "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove them or set "
    "propagationPolicy=Orphan to suppress this warning"
)
#: Source: `ReturnDeletedObject` in Kubernetes's pkg/registry/core.
_KINDS_RETURNING_DELETED: Final = frozenset(
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


def built_in_resources(
    disabled_gates: DisabledGates = NO_DISABLED_GATES, custom_groups: Collection[str] = ()
) -> list[Resource]:
    """Return the resources of the built-in kinds, except kinds that occur only in files.

    `disabled_gates` are the disabled feature gates of Kueue that validation obeys. Kinds of the API groups
    `custom_groups` are left to CustomResourceDefinitions.
    """
    served_kinds = [kind for kind in KINDS if kind.constant not in FILE_KINDS and kind.group not in custom_groups]
    return [_built_in_resource(served_kind, disabled_gates) for served_kind in served_kinds]


def _built_in_resource(served_kind: ServedKind, disabled_gates: DisabledGates) -> Resource:
    orphans_by_default, type_scope = (
        served_kind.constant == scheme.JOB,
        load_scope_for_kind(served_kind, served_kind.storage_version),
    )
    is_native = type_scope.name == NATIVE
    strategy_class = PolicyStrategy if served_kind.constant in POLICY_KINDS else BuiltInStrategy
    return Resource(
        served_kind,
        strategy_class(served_kind.constant, disabled_gates),
        ("status",) if served_kind.has_status else (),
        merge_schema=partial(merge_schema_of_kind, served_kind),
        is_native=is_native,
        find_decoding_error=partial(find_decoding_error, scope=type_scope, type_name=served_kind.kind)
        if is_native
        else no_decoding_error,
        guard=_check_match_conditions if served_kind.constant in WEBHOOK_KINDS else None,
        # kubelets create Nodes with a status
        keeps_sent_status=served_kind.constant == scheme.NODE,
        returns_deleted_object=served_kind.constant in _KINDS_RETURNING_DELETED,
        is_adoptable=served_kind.constant == scheme.CLUSTER_ROLE,
        propagation=Propagation.ORPHAN if orphans_by_default else Propagation.BACKGROUND,
        propagation_warning=_ORPHAN_WARNING if orphans_by_default else "",
    )


def _check_match_conditions(_user: UserInfo, configuration: Obj, old: Obj | None) -> None:
    """Raise StatusError if a changed match condition of a webhook configuration does not compile."""
    conditions, old_conditions = (
        [webhook.get("matchConditions") or [] for webhook in (each or {}).get("webhooks") or ()]
        for each in (configuration, old)
    )
    if conditions == old_conditions or not any(conditions):
        return
    from batchyard.apiserver.admission.registrations import compile_condition  # noqa: PLC0415 - loads CEL

    errors = []
    for i, webhook_conditions in enumerate(conditions):
        for j, condition in enumerate(webhook_conditions):
            expression = condition["expression"]
            if expression.strip() and (problem := compile_condition(expression)[1]):
                path = f"webhooks[{i}].matchConditions[{j}].expression"
                value = msgspec.json.encode(expression.strip()).decode()
                errors.append(FieldError(path, f"Invalid value: {value}: {problem}"))
    if errors:
        served_kind = kind_info(f"{configuration['kind']}.admissionregistration.k8s.io")
        raise invalid_object_error(InvalidObject(errors), served_kind, configuration["metadata"]["name"])
