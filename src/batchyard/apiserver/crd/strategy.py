"""The kind-specific API logic of custom objects: their schemas, table columns and validation rules by version.

An object is pruned, defaulted and validated in the version in which it is sent, then stored in the storage version.
Conversion changes only `apiVersion` and prunes fields that the other version lacks. Validation rules are those of the
storage version. Source: k8s.io/apiextensions-apiserver, pkg/apiserver/customresource_handler.go.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec

from batchyard.api.conversion import TimeLocations, cut_times_to_seconds, metadata_time_locations
from batchyard.api.errors import FieldError
from batchyard.api.manifests import DecodedObject
from batchyard.api.meta import Obj
from batchyard.api.printing import Column as PrintedColumn
from batchyard.api.printing.cells import Column, format_value
from batchyard.api.schema import validate
from batchyard.api.scheme import NATIVE, ServedKind, load_scope
from batchyard.api.times import parse_time
from batchyard.api.validation.rules import metadata_errors
from batchyard.apiserver.crd.json_path import Step, parse_json_path, values_at
from batchyard.apiserver.crd.rules import NO_OLD_VALUE, ValidationRules
from batchyard.apiserver.crd.values import (
    VALIDATION_RULES,
    Schema,
    prune_unknown_fields,
    root_schema,
    uses_keyword,
    value_errors,
    with_defaults,
)
from batchyard.apiserver.openapi_definitions import REFERENCE, metadata_schemas, schema_name
from batchyard.apiserver.patch import MergeSchema, merge_schema_of_custom_kind, metadata_merge_schema
from batchyard.apiserver.request import StatusError
from batchyard.base.instant import Instant, format_age

# Table columns of custom kinds: the name, and the columns of the definition, or else the age.
#
# Source: k8s.io/apiextensions-apiserver, pkg/registry/customresource/tableconvertor.


_NAME_COLUMN: Final = Column("Name", format="name")
_AGE_COLUMN: Final[Mapping[str, Any]] = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
_encode_json = msgspec.json.encode


class CustomColumns:
    """The table columns of one version of a CustomResourceDefinition."""

    def __init__(self, column_definitions: Sequence[Mapping[str, Any]]) -> None:
        self._column_definitions = column_definitions or [_AGE_COLUMN]
        self._paths: Sequence[Sequence[Step]] = [parse_json_path(each["jsonPath"]) for each in self._column_definitions]

    def columns(self) -> list[Column]:
        """Return the table columns: the name, then `additionalPrinterColumns`, or if there are none the age."""
        return [_NAME_COLUMN, *map(_column_from_definition, self._column_definitions)]

    def cells(self, obj: Obj, now: Instant) -> list[str]:
        """Return the table cells of a custom object."""
        values = [
            _format_cell(obj, each["type"], path, now)
            for each, path in zip(self._column_definitions, self._paths, strict=True)
        ]
        return [obj["metadata"]["name"], *values]


def _column_from_definition(definition: Mapping[str, Any]) -> Column:
    value_format, description = definition.get("format", ""), definition.get("description", "")
    return Column(definition["name"], definition.get("priority", 0), definition["type"], value_format, description)


def _format_cell(obj: Obj, column_type: str, path: Sequence[Step], now: Instant) -> str:
    values = values_at(obj, path)
    if not values or values[0] is None:
        return ""
    value = values[0]
    match column_type:
        case "string":
            return _encode_json(value).decode() if isinstance(value, Mapping | list) else format_value(value)
        case "date":
            return _format_age(value, now)
        case "boolean":
            return format_value(value) if isinstance(value, bool) else ""
        case "integer":
            return str(int(value)) if _is_number(value) else ""
    return format_value(value) if _is_number(value) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _format_age(value: Any, now: Instant) -> str:
    try:
        return format_age(now - parse_time(value))
    except (TypeError, ValueError):
        return "<invalid>"


_METADATA_TYPE: Final = "ObjectMeta"
_CONFORMING_OBJECTS_MAX: Final = 100_000
#: Errors after which validation rules are skipped.
_BLOCKING_PROBLEMS: Final = ("Required value", "Too long", "Too many")
_RULES_NOT_CHECKED_ERROR: Final = FieldError(
    "<nil>",
    'Invalid value: "null": some validation rules were not checked because the object was invalid; correct the '
    "existing errors to complete validation",
)
_STRING_SCHEMA: Final[Schema] = {"type": "string"}
#: The fields of the object root that rules can access.
_ROOT_PROPERTIES: Final[Mapping[str, Schema]] = {
    "apiVersion": _STRING_SCHEMA,
    "kind": _STRING_SCHEMA,
    "metadata": {"type": "object", "properties": {"name": _STRING_SCHEMA, "generateName": _STRING_SCHEMA}},
}
_API_VERSION_DESCRIPTION: Final = (
    "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized "
    "schemas to the latest internal value, and may reject unrecognized values."
)
_KIND_DESCRIPTION: Final = "Kind is a string value representing the REST resource this object represents."


class CustomStrategy:
    """The kind-specific API logic of one custom kind, with schemas, table columns and validation rules by version."""

    def __init__(self, served_kind: ServedKind, versions: Sequence[Obj], *, is_terminating: bool = False) -> None:
        self._served_kind = served_kind
        self._is_terminating = is_terminating
        self._schemas = {served_kind.api_version_for(each["name"]): root_schema(each) for each in versions}
        self._deprecation_warnings = {
            served_kind.api_version_for(each["name"]): each.get("deprecationWarning")
            or f"{served_kind.api_version_for(each['name'])} {served_kind.kind} is deprecated"
            for each in versions
            if each.get("deprecated")
        }
        #: The metadata of objects known to conform to the schema, by uid. Each revision has its own metadata object.
        self._conforming_metadata: dict[str, Mapping[str, Any]] = {}
        self._columns = {
            served_kind.api_version_for(each["name"]): CustomColumns(each.get("additionalPrinterColumns") or [])
            for each in versions
        }

    def decode(self, sent_object: Mapping[str, Any], namespace: str, valid_obj: Obj | None = None) -> DecodedObject:
        """Decode a custom object into its storage version with defaults, or return its errors."""
        schema = self._schemas[sent_object["apiVersion"]]
        obj = {
            **sent_object,
            "metadata": _complete_metadata(
                sent_object.get("metadata"), namespace if self._served_kind.namespaced else ""
            ),
        }
        faults = [*_metadata_errors(obj)]
        complete_object = with_defaults(prune_unknown_fields(obj, schema), schema)
        errors = list(value_errors(complete_object, schema, ""))
        if any(fault.problem.startswith(_BLOCKING_PROBLEMS) or "must be of type" in fault.problem for fault in errors):
            errors += [_RULES_NOT_CHECKED_ERROR] if uses_keyword(schema, VALIDATION_RULES) else []
        faults += errors
        warning = self._deprecation_warnings.get(sent_object["apiVersion"])
        warnings = [] if warning is None else [warning]
        return DecodedObject(
            None if faults else self._convert_to_version(complete_object, self._served_kind.api_version),
            faults,
            warnings,
        )

    def prepare_update(self, new: dict[str, Any], old: Obj) -> dict[str, Any]:
        """Return an updated object unchanged: clients may change all fields."""
        return new

    def render(self, stored_object: Obj, api_version: str) -> dict[str, Any]:
        """Return a stored object in a served version, with its metadata times in whole seconds."""
        return cut_times_to_seconds(self.in_version(stored_object, api_version), self._time_locations())

    def in_version(self, stored_object: Obj, api_version: str) -> dict[str, Any]:
        """Convert a stored object to a served version, with times in stored precision, not cut to seconds.

        The result is meant for comparisons with other objects, not for responses.
        """
        return self._convert_to_version(self._upgrade_stored_object(stored_object), api_version)

    def _time_locations(self) -> TimeLocations:
        return metadata_time_locations()

    def check_create(self, new: Obj) -> list[FieldError]:
        """Return the errors of a new object by the CEL validation rules.

        Raises StatusError if its CustomResourceDefinition is being deleted.
        """
        if self._is_terminating:
            message = "create not allowed while custom resource definition is terminating"
            raise StatusError(405, "MethodNotAllowed", message)
        return list(self._validation_rules.rule_errors(new, NO_OLD_VALUE))

    def check_update(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the errors of an updated object by the CEL validation rules."""
        return list(self._validation_rules.rule_errors(new, self.render(old, self._served_kind.api_version)))

    def check_status(self, new: Obj, old: Obj) -> list[FieldError]:
        """Return the errors of an object with an updated status by the CEL validation rules."""
        return self.check_update(new, old)

    def columns(self, api_version: str) -> Sequence[PrintedColumn]:
        """Return the table columns, including those of `-o wide`."""
        return self._columns[api_version].columns()

    def cells(self, stored_object: Obj, now: Instant, api_version: str) -> list[str]:
        """Return the table cells of a stored object."""
        return self._columns[api_version].cells(stored_object, now)

    def merge_schema(self, version: str) -> MergeSchema:
        """Return the merge schema of objects in a version: how server-side apply merges and owns their fields."""
        schema = self._schemas[self._served_kind.api_version_for(version)]
        fields = {**(schema.get("properties") or {}), "apiVersion": _STRING_SCHEMA, "kind": _STRING_SCHEMA}
        return merge_schema_of_custom_kind({**schema, "properties": fields}, metadata_merge_schema())

    def schemas(self, version: str) -> Mapping[str, Any]:
        """Return the OpenAPI schemas of the kind and of its metadata in a version, by name."""
        metadata = metadata_schemas()
        schema = self._schemas[self._served_kind.api_version_for(version)]
        fields = {
            "apiVersion": {"type": "string", "description": _API_VERSION_DESCRIPTION},
            "kind": {"type": "string", "description": _KIND_DESCRIPTION},
            **(schema.get("properties") or {}),
            "metadata": {"allOf": [{"$ref": REFERENCE + next(iter(metadata))}]},
        }
        kind = {"group": self._served_kind.group, "version": version, "kind": self._served_kind.kind}
        object_schema = {**schema, "properties": fields, "x-kubernetes-group-version-kind": [kind]}
        return {schema_name(self._served_kind, version): object_schema, **metadata}

    @cached_property
    def _validation_rules(self) -> ValidationRules:
        return self._compile_rules(self._schemas[self._served_kind.api_version])

    def _compile_rules(self, schema: Schema) -> ValidationRules:
        return ValidationRules({**schema, "properties": {**(schema.get("properties") or {}), **_ROOT_PROPERTIES}})

    def _upgrade_stored_object(self, stored_object: Obj) -> Obj:
        metadata = stored_object["metadata"]
        uid = metadata.get("uid", "")
        if self._conforming_metadata.get(uid) is metadata:
            return stored_object
        schema = self._schemas[self._served_kind.api_version]
        current_object: Obj = with_defaults(prune_unknown_fields(stored_object, schema), schema)
        if uid and current_object == stored_object:
            if len(self._conforming_metadata) >= _CONFORMING_OBJECTS_MAX:
                self._conforming_metadata.clear()
            self._conforming_metadata[uid] = metadata
        return current_object

    def _convert_to_version(self, obj: Mapping[str, Any], api_version: str) -> dict[str, Any]:
        if obj["apiVersion"] == api_version:
            return dict(obj)
        schema = self._schemas[api_version]
        return {**with_defaults(prune_unknown_fields(obj, schema), schema), "apiVersion": api_version}


def _complete_metadata(metadata: Any, namespace: str) -> Any:
    if not isinstance(metadata, Mapping):
        return metadata
    known_fields = load_scope(NATIVE).fields(_METADATA_TYPE)
    known_metadata = {name: each for name, each in metadata.items() if name in known_fields and each is not None}
    if not namespace:
        known_metadata.pop("namespace", None)
        return known_metadata
    return {**known_metadata, "namespace": known_metadata.get("namespace") or namespace}


def _metadata_errors(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    metadata = obj["metadata"]
    if metadata is None:
        yield FieldError("metadata", "Required value")
    elif not isinstance(metadata, Mapping):
        yield FieldError("metadata", "Invalid value: must be an object")
    elif errors := validate(_METADATA_TYPE, metadata):
        yield from (fault._replace(path=f"metadata.{fault.path}") for fault in errors)
    else:
        yield from metadata_errors(obj)
