"""Schemas of the OpenAPI documents, and CustomResourceDefinitions of this platform's kinds.

A definition for another API server has only the storage version unless it names a conversion webhook, because that
server cannot convert versions. Schemas come from the tables of each kind's fields and omit rules that compare fields.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.printing.cells import json_path
from batchyard.api.printing.kinds import TABLES
from batchyard.api.scheme import (
    NATIVE,
    Field,
    ServedKind,
    TypeScope,
    description,
    is_native,
    load_scope,
    load_scope_for_kind,
)

Schemas: TypeAlias = dict[str, dict[str, Any]]

REFERENCE: Final = "#/components/schemas/"
_SCALAR_SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = {
    "string": {"type": "string"},
    "bool": {"type": "boolean"},
    "int": {"type": "integer", "format": "int64"},
    "int32": {"type": "integer", "format": "int32"},
    "int64": {"type": "integer", "format": "int64"},
    "number": {"type": "number"},
    "quantity": {"x-kubernetes-int-or-string": True},
    "int-or-string": {"x-kubernetes-int-or-string": True},
    "time": {"type": "string", "format": "date-time"},
    "micro-time": {"type": "string", "format": "date-time"},
    "duration": {"type": "string"},
    "bytes": {"type": "string", "format": "byte"},
    "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
}
#: Quantities of native kinds refer to a type of their own.
_QUANTITY: Final = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_QUANTITY_SCHEMA: Final[dict[str, Any]] = {
    "description": "An amount of a resource: 500m, 2, 10Gi.",
    "x-kubernetes-int-or-string": True,
}
_METADATA_TYPE: Final = "ObjectMeta"
_SCHEMA_KEYWORDS: Final[Mapping[str, str]] = {
    "default": "default",
    "enum": "enum",
    "max": "maximum",
    "maxItems": "maxItems",
    "maxLength": "maxLength",
    "maxProperties": "maxProperties",
    "min": "minimum",
    "minItems": "minItems",
    "minLength": "minLength",
    "nullable": "nullable",
    "pattern": "pattern",
}


def schema_name(served_kind: ServedKind, version: str) -> str:
    """Return the name of a kind's OpenAPI schema: reversed group, version, kind.

    A group without dots is prefixed with `io.k8s.api.`; the core group is named `core`.
    """
    group = (
        ".".join(reversed(served_kind.group.split(".")))
        if "." in served_kind.group
        else f"io.k8s.api.{served_kind.group or 'core'}"
    )
    return f"{group}.{version}.{served_kind.kind}"


def schemas_of(served_kind: ServedKind, version: str) -> Schemas:
    """Return the OpenAPI schemas of a kind in a version, by name: that of the kind first, then the referenced ones."""
    schemas = _collect_schemas(
        schema_name(served_kind, version), load_scope_for_kind(served_kind, version), served_kind.kind
    )
    kind = {"group": served_kind.group, "version": version, "kind": served_kind.kind}
    schema = schemas[schema_name(served_kind, version)]
    schema["x-kubernetes-group-version-kind"] = [kind]
    if is_native(served_kind) and "required" in schema:
        # Kubernetes publishes these fields as optional, although validation requires them.
        schema["required"] = [field for field in schema["required"] if field not in ("spec", "template")]
        if not schema["required"]:
            del schema["required"]
    return schemas


def metadata_schemas() -> Schemas:
    """Return the OpenAPI schemas of object metadata, by name: ObjectMeta, then the referenced ones and Quantity."""
    native_scope = load_scope(NATIVE)
    return _collect_schemas(_type_name(_METADATA_TYPE, native_scope), native_scope, _METADATA_TYPE)


def _collect_schemas(root_schema_name: str, root_scope: TypeScope, type_name: str) -> Schemas:
    schemas: Schemas = {}
    has_quantities = root_scope.name == NATIVE
    pending_types = [(root_schema_name, root_scope, type_name)]
    while pending_types:
        name, type_scope, type_name = pending_types.pop()
        if name not in schemas:
            fields = type_scope.fields(type_name)
            schemas[name] = _object_schema(type_name, fields, type_scope)
            quantity_fields = (field for field in fields.values() if "quantity" in field.expression)
            has_quantities = has_quantities or (type_scope.name == NATIVE and any(quantity_fields))
            pending_types += list(_referenced_types(fields, type_scope))
    return {**schemas, _QUANTITY: _QUANTITY_SCHEMA} if has_quantities else schemas


def _object_schema(type_name: str, fields: Mapping[str, Field], type_scope: TypeScope) -> dict[str, Any]:
    field_schemas = {
        name: _with_description(_field_schema(field, type_scope), description(type_name, name))
        for name, field in fields.items()
    }
    type_description = (
        "" if "." in type_name else description(type_name)
    )  # a type below a kind describes only one field
    schema = _with_description({"type": "object", "properties": field_schemas}, type_description)
    required_names = [name for name, field in fields.items() if field.required]
    return {**schema, "required": required_names} if required_names else schema


def _with_description(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """Return a schema with a description; a reference is wrapped, since it cannot have one itself."""
    if not text:
        return schema
    return {"allOf": [schema], "description": text} if "$ref" in schema else {**schema, "description": text}


def _field_schema(field: Field, type_scope: TypeScope) -> dict[str, Any]:
    keywords = {_SCHEMA_KEYWORDS[key]: value for key, value in field.constraints.items() if key in _SCHEMA_KEYWORDS}
    keywords |= _merge_keywords(field)
    if field.is_list:
        return {"type": "array", "items": _field_schema(field.element, type_scope), **keywords}
    if field.is_map:
        return {"type": "object", "additionalProperties": _field_schema(field.element, type_scope), **keywords}
    if field.expression == "quantity" and type_scope.name == NATIVE:
        return {"allOf": [{"$ref": REFERENCE + _QUANTITY}], **keywords} if keywords else {"$ref": REFERENCE + _QUANTITY}
    if not field.is_object:
        return {**_SCALAR_SCHEMAS[field.expression], **keywords}
    reference_schema = {"$ref": REFERENCE + _type_name(field.expression, type_scope)}
    return {"allOf": [reference_schema], **keywords} if keywords else reference_schema


def _merge_keywords(field: Field) -> dict[str, Any]:
    constraints = field.constraints
    ownership = constraints.get("owned", constraints.get("keys", "set" if constraints.get("set") else None))
    extensions: dict[str, Any] = {}
    if ownership == "atomic":
        extensions[f"x-kubernetes-{'list' if field.is_list else 'map'}-type"] = "atomic"
    elif ownership is not None:
        extensions["x-kubernetes-list-type"] = "set" if ownership == "set" else "map"
        extensions |= {"x-kubernetes-list-map-keys": list(ownership)} if ownership != "set" else {}
    if "merge" in constraints:
        extensions["x-kubernetes-patch-strategy"] = "merge,retainKeys" if constraints.get("retain") else "merge"
        extensions |= {"x-kubernetes-patch-merge-key": constraints["merge"]} if constraints["merge"] else {}
    return extensions


def _referenced_types(fields: Mapping[str, Field], type_scope: TypeScope) -> Iterator[tuple[str, TypeScope, str]]:
    for field in fields.values():
        if field.object_type:
            scope, type_name = type_scope.scope_of(field.object_type)
            yield _type_name(field.object_type, type_scope), scope, type_name


def _type_name(expression: str, type_scope: TypeScope) -> str:
    scope, type_name = type_scope.scope_of(expression)
    return f"io.k8s.{type_name}" if scope.name == NATIVE else f"dev.batchyard.{scope.name}.{type_name}"


_OMITTED_KEYS: Final = (
    "x-kubernetes-patch-strategy",
    "x-kubernetes-patch-merge-key",
    "x-kubernetes-group-version-kind",
)
#: Column paths that differ in an older version.
_OLDER_COLUMN_PATHS: Final = {(scheme.CLUSTER_QUEUE, "v1beta1"): {".spec.cohortName": ".spec.cohort"}}
_INTEGER_OR_STRING: Final = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_LIST_TYPE: Final = "x-kubernetes-list-type"
_LIST_KEYS: Final = "x-kubernetes-list-map-keys"


class ConversionService(NamedTuple):
    """The Service that serves a conversion webhook."""

    service: str
    namespace: str
    path: str


def platform_definition(served_kind: ServedKind) -> dict[str, Any]:
    """Return a kind's CustomResourceDefinition for this platform's own API server: with all served versions."""
    definition = definition_of(served_kind)
    metadata = {**definition["metadata"], "annotations": {well_known.PROVIDED: "true"}}
    versions = [_version_definition(served_kind, version) for version in served_kind.versions]
    spec = {**definition["spec"], "versions": versions, "conversion": {"strategy": "None"}}
    return {**definition, "metadata": metadata, "spec": spec}


def definition_of(served_kind: ServedKind, conversion: ConversionService | None = None) -> dict[str, Any]:
    """Return a kind's CustomResourceDefinition for another API server.

    The definition has all served versions if `conversion` is set, else only the storage version.
    """
    versions = served_kind.versions if conversion is not None else (served_kind.storage_version,)
    names = {
        "kind": served_kind.kind,
        "listKind": f"{served_kind.kind}List",
        "plural": served_kind.plural,
        "singular": served_kind.singular,
        "shortNames": list(served_kind.short_names),
    }
    scope = "Namespaced" if served_kind.namespaced else "Cluster"
    version_definitions = [_version_definition(served_kind, version) for version in versions]
    spec: dict[str, Any] = {"group": served_kind.group, "names": names, "scope": scope, "versions": version_definitions}
    if conversion is not None:
        service = {"name": conversion.service, "namespace": conversion.namespace, "path": conversion.path}
        webhook = {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}
        spec["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    type_meta = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
    return {**type_meta, "metadata": {"name": f"{served_kind.plural}.{served_kind.group}"}, "spec": spec}


def _version_definition(served_kind: ServedKind, version: str) -> dict[str, Any]:
    schemas = schemas_of(served_kind, version)
    schema = _inline_references(next(iter(schemas.values())), schemas)
    schema["properties"] = {**schema["properties"], "metadata": {"type": "object"}}
    definition: dict[str, Any] = {"name": version, "served": True, "storage": version == served_kind.storage_version}
    if version in served_kind.deprecated_versions:
        definition |= {"deprecated": True, "deprecationWarning": served_kind.deprecation}
    definition["schema"] = {"openAPIV3Schema": schema}
    columns = _column_definitions(served_kind, version)
    definition |= {"additionalPrinterColumns": columns} if columns else {}
    return definition | ({"subresources": {"status": {}}} if served_kind.has_status else {})


def _column_definitions(served_kind: ServedKind, version: str) -> list[dict[str, Any]]:
    older_paths = _OLDER_COLUMN_PATHS.get((served_kind.constant, version), {})
    columns = ((column, json_path(cell)) for column, cell in TABLES.get(served_kind.constant, ()))
    return [
        {
            "name": column.name,
            "type": column.type,
            "jsonPath": older_paths.get(path, path),
            **({"priority": column.priority} if column.priority else {}),
        }
        for column, path in columns
        if path
    ]


def _inline_references(schema: Mapping[str, Any], schemas: Schemas) -> dict[str, Any]:
    result = {keyword: value for keyword, value in schema.items() if keyword not in (*_OMITTED_KEYS, "$ref", "allOf")}
    for referring_schema in (schema, *schema.get("allOf", ())):
        if "$ref" in referring_schema:
            result = {**schemas[referring_schema["$ref"].removeprefix(REFERENCE)], **result}
            result.pop("x-kubernetes-group-version-kind", None)
    if "properties" in result:
        result["properties"] = {n: _inline_references(each, schemas) for n, each in result["properties"].items()}
    for nested in ("items", "additionalProperties"):
        if nested in result:
            result[nested] = _inline_references(result[nested], schemas)
    if _INT_OR_STRING in result:
        result |= _INTEGER_OR_STRING
    if not _has_valid_map_keys(result):
        result.pop(_LIST_TYPE, None)
        result.pop(_LIST_KEYS, None)
    return result


def _has_valid_map_keys(schema: Mapping[str, Any]) -> bool:
    item_schema = schema.get("items", {})
    keys_with_default = [name for name, each in item_schema.get("properties", {}).items() if "default" in each]
    return set(schema.get(_LIST_KEYS, ())).issubset((*item_schema.get("required", ()), *keys_with_default))
