"""The strategy of custom objects.

An object is pruned, defaulted and validated in the version in which it is sent, then stored in the storage version.
Conversion changes only `apiVersion` and prunes fields that the other version lacks. Validation rules are those of the
storage version. Source: k8s.io/apiextensions-apiserver, pkg/apiserver/customresource_handler.go.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from batchyard.api.conversion import TimeLocations, in_whole_seconds, times_of_metadata
from batchyard.api.errors import FieldError
from batchyard.api.manifests import DecodedObject
from batchyard.api.meta import Obj
from batchyard.api.printing import Column as PrintedColumn
from batchyard.api.printing.cells import Column, text
from batchyard.api.schema import validate
from batchyard.api.scheme import NATIVE, ServedKind, scope
from batchyard.api.times import parse_time
from batchyard.api.validation.rules import metadata_faults
from batchyard.apiserver.crd.json_path import Step, path_of, values_at
from batchyard.apiserver.crd.rules import NO_OLD_VALUE, ValidationRules
from batchyard.apiserver.crd.values import (
    RULES,
    Schema,
    has_somewhere,
    pruned,
    root_schema,
    value_faults,
    with_defaults,
)
from batchyard.apiserver.openapi_definitions import REFERENCE, metadata_schemas, schema_name
from batchyard.apiserver.patch import MergeSchema, metadata_shape, shape_of_schema
from batchyard.apiserver.request import StatusError
from batchyard.base.instant import Instant, format_age

# --- columns ---
#
# Table columns of custom kinds: the name, and the columns of the definition, or else the age.
#
# Source: k8s.io/apiextensions-apiserver, pkg/registry/customresource/tableconvertor.


_NAME: Final = Column("Name", format="name")
_AGE: Final[Mapping[str, Any]] = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_encode = msgspec.json.encode


class Columns:
    """The table columns of one version of a definition."""

    def __init__(self, defined: Sequence[Mapping[str, Any]]) -> None:
        self._defined = defined or [_AGE]
        self._paths: Sequence[Sequence[Step]] = [path_of(each["jsonPath"]) for each in self._defined]

    def columns(self) -> list[Column]:
        """Return the columns."""
        return [_NAME, *map(_column, self._defined)]

    def cells(self, obj: Obj, now: Instant) -> list[str]:
        """Return the cells of an object."""
        found = [_cell(obj, each["type"], path, now) for each, path in zip(self._defined, self._paths, strict=True)]
        return [obj["metadata"]["name"], *found]


def _column(defined: Mapping[str, Any]) -> Column:
    return Column(
        defined["name"],
        defined.get("priority", 0),
        defined["type"],
        defined.get("format", ""),
        defined.get("description", ""),
    )


def _cell(obj: Obj, type_: str, path: Sequence[Step], now: Instant) -> str:
    """Return the first value at a path, if it has the column's type."""
    values = values_at(obj, path)
    if not values or values[0] is None:
        return ""
    value = values[0]
    match type_:
        case "string":
            return _encode(value).decode() if isinstance(value, Mapping | list) else text(value)
        case "date":
            return _age(value, now)
        case "boolean":
            return text(value) if isinstance(value, bool) else ""
        case "integer":
            return str(int(value)) if _is_number(value) else ""
    return text(value) if _is_number(value) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _age(value: Any, now: Instant) -> str:
    try:
        return format_age(now - parse_time(value))
    except (TypeError, ValueError):
        return "<invalid>"


_METADATA: Final = "ObjectMeta"
_SOUND_MAX: Final = 100_000
#: Errors after which validation rules are skipped.
_BLOCKING: Final = ("Required value", "Too long", "Too many")
_UNCHECKED: Final = FieldError(
    "<nil>",
    'Invalid value: "null": some validation rules were not checked because the object was invalid; correct the '
    "existing errors to complete validation",
)
_TEXT: Final[Schema] = {"type": "string"}
#: The fields of the object root that rules can access.
_ROOT_PROPERTIES: Final[Mapping[str, Schema]] = {
    "apiVersion": _TEXT,
    "kind": _TEXT,
    "metadata": {"type": "object", "properties": {"name": _TEXT, "generateName": _TEXT}},
}
_ABOUT_VERSION: Final = (
    "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized "
    "schemas to the latest internal value, and may reject unrecognized values."
)
_ABOUT_KIND: Final = "Kind is a string value representing the REST resource this object represents."


class CustomStrategy:
    """The schemas, columns and rules of one custom kind, by version."""

    def __init__(self, info: ServedKind, versions: Sequence[Mapping[str, Any]], *, is_leaving: bool = False) -> None:
        self._info = info
        self._is_leaving = is_leaving
        self._schemas = {info.api_version_for(each["name"]): root_schema(each) for each in versions}
        self._deprecated = {
            info.api_version_for(each["name"]): each.get("deprecationWarning")
            or f"{info.api_version_for(each['name'])} {info.kind} is deprecated"
            for each in versions
            if each.get("deprecated")
        }
        #: The metadata of objects known to conform to the schema, by uid. Each revision has its own metadata object.
        self._sound: dict[str, Mapping[str, Any]] = {}
        self._columns = {
            info.api_version_for(each["name"]): Columns(each.get("additionalPrinterColumns") or []) for each in versions
        }

    def decode(self, sent: Mapping[str, Any], namespace: str, sound: Obj | None = None) -> DecodedObject:
        """Decode an object into its storage version with defaults; or return its errors."""
        schema = self._schemas[sent["apiVersion"]]
        obj = {**sent, "metadata": _placed(sent.get("metadata"), namespace if self._info.namespaced else "")}
        faults = [*_faults_of_metadata(obj)]
        completed = with_defaults(pruned(obj, schema), schema)
        found = list(value_faults(completed, schema, ""))
        if any(fault.problem.startswith(_BLOCKING) or "must be of type" in fault.problem for fault in found):
            found += [_UNCHECKED] if has_somewhere(schema, RULES) else []
        faults += found
        reported = self._deprecated.get(sent["apiVersion"])
        warnings = [] if reported is None else [reported]
        return DecodedObject(None if faults else self._as(completed, self._info.api_version), faults, warnings)

    def prepared(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        """Return an updated object unchanged: clients may change all fields."""
        return new

    def show(self, stored: Obj, api_version: str) -> dict[str, Any]:
        """Return a stored object in a served version, with times in whole seconds."""
        return in_whole_seconds(self.in_version(stored, api_version), self._times())

    def in_version(self, stored: Obj, api_version: str) -> dict[str, Any]:
        """Convert a stored object without rounding times, for comparison."""
        return self._as(self._current(stored), api_version)

    def _times(self) -> TimeLocations:
        """Return the paths of time fields; only those of the metadata are known."""
        return times_of_metadata()

    def check_create(self, new: Obj) -> list[FieldError]:
        """Return the validation errors of a new object. Raises Refused if the definition is terminating."""
        if self._is_leaving:
            message = "create not allowed while custom resource definition is terminating"
            raise StatusError(405, "MethodNotAllowed", message)
        return list(self._rules.faults(new, NO_OLD_VALUE))

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of an update."""
        return list(self._rules.faults(new, self.show(old, self._info.api_version)))

    def check_status(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the validation errors of a status update."""
        return self.check_update(new, old)

    def columns(self, api_version: str) -> Sequence[PrintedColumn]:
        """Return the table columns, including those of `-o wide`."""
        return self._columns[api_version].columns()

    def cells(self, stored: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of a stored object."""
        return self._columns[api_version].cells(stored, now)

    def shape(self, version: str) -> MergeSchema:
        """Return the merge schema of a version."""
        schema = self._schemas[self._info.api_version_for(version)]
        fields = {**(schema.get("properties") or {}), "apiVersion": _TEXT, "kind": _TEXT}
        return shape_of_schema({**schema, "properties": fields}, metadata_shape())

    def schemas(self, version: str) -> Mapping[str, Any]:
        """Return the OpenAPI schemas of the kind in a version, including referenced ones, by name."""
        metadata = metadata_schemas()
        schema = self._schemas[self._info.api_version_for(version)]
        fields = {
            "apiVersion": {"type": "string", "description": _ABOUT_VERSION},
            "kind": {"type": "string", "description": _ABOUT_KIND},
            **(schema.get("properties") or {}),
            "metadata": {"allOf": [{"$ref": REFERENCE + next(iter(metadata))}]},
        }
        kind = {"group": self._info.group, "version": version, "kind": self._info.kind}
        reported = {**schema, "properties": fields, "x-kubernetes-group-version-kind": [kind]}
        return {schema_name(self._info, version): reported, **metadata}

    @cached_property
    def _rules(self) -> ValidationRules:
        """The rules of the storage version, compiled on first use."""
        schema = self._schemas[self._info.api_version]
        return ValidationRules({**schema, "properties": {**(schema.get("properties") or {}), **_ROOT_PROPERTIES}})

    def _current(self, stored: Obj) -> Obj:
        """Return a stored object as the current schema prunes and defaults it; the schema may have changed since."""
        metadata = stored["metadata"]
        uid = metadata.get("uid", "")
        if self._sound.get(uid) is metadata:
            return stored
        schema = self._schemas[self._info.api_version]
        current: Obj = with_defaults(pruned(stored, schema), schema)
        if uid and current == stored:
            if len(self._sound) >= _SOUND_MAX:
                self._sound.clear()
            self._sound[uid] = metadata
        return current

    def _as(self, obj: Mapping[str, Any], api_version: str) -> dict[str, Any]:
        if obj["apiVersion"] == api_version:
            return dict(obj)
        schema = self._schemas[api_version]
        return {**with_defaults(pruned(obj, schema), schema), "apiVersion": api_version}


def _placed(metadata: Any, namespace: str) -> Any:
    """Return metadata without unknown fields, in the namespace or in none."""
    if not isinstance(metadata, Mapping):
        return metadata
    known = scope(NATIVE).fields(_METADATA)
    kept = {name: each for name, each in metadata.items() if name in known and each is not None}
    if not namespace:
        kept.pop("namespace", None)
        return kept
    return {**kept, "namespace": kept.get("namespace") or namespace}


def _faults_of_metadata(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    metadata = obj["metadata"]
    if metadata is None:
        yield FieldError("metadata", "Required value")
    elif not isinstance(metadata, Mapping):
        yield FieldError("metadata", "Invalid value: must be an object")
    elif faults := validate(_METADATA, metadata):
        yield from (fault._replace(path=f"metadata.{fault.path}") for fault in faults)
    else:
        yield from metadata_faults(obj)
