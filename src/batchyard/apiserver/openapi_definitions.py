"""Schemas of the OpenAPI documents, and CustomResourceDefinitions of built-in kinds for other API servers.

Only the storage version is included unless a conversion webhook is given, because another API server cannot convert
versions itself. The schema comes from the field tables and omits cross-field rules.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.printing.cells import json_path
from batchyard.api.printing.kinds import TABLES
from batchyard.api.scheme import NATIVE, Field, ServedKind, TypeScope, description, scope, scope_for

Schemas: TypeAlias = dict[str, dict[str, Any]]

REFERENCE: Final = "#/components/schemas/"
_SCALARS: Final[Mapping[str, Mapping[str, Any]]] = {
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
_METADATA: Final = "ObjectMeta"
_FACTS: Final[Mapping[str, str]] = {
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


def schema_name(info: ServedKind, version: str) -> str:
    """Return the schema name of a kind: reversed group, version, kind."""
    group = ".".join(reversed(info.group.split("."))) if "." in info.group else f"io.k8s.api.{info.group or 'core'}"
    return f"{group}.{version}.{info.kind}"


def schemas_of(info: ServedKind, version: str) -> Schemas:
    """Return the schema of a kind in a version first, then all referenced schemas."""
    found = _with_all_referred(schema_name(info, version), scope_for(info, version), info.kind)
    kind = {"group": info.group, "version": version, "kind": info.kind}
    found[schema_name(info, version)]["x-kubernetes-group-version-kind"] = [kind]
    return found


def metadata_schemas() -> Schemas:
    """Return the schema of object metadata first, then all referenced schemas."""
    native = scope(NATIVE)
    return _with_all_referred(_type_name(_METADATA, native), native, _METADATA)


def _with_all_referred(first: str, of: TypeScope, type_name: str) -> Schemas:
    found: Schemas = {}
    has_quantities = of.name == NATIVE
    waiting = [(first, of, type_name)]
    while waiting:
        name, within, type_name = waiting.pop()
        if name not in found:
            fields = within.fields(type_name)
            found[name] = _object(type_name, fields, within)
            quantities = (field for field in fields.values() if "quantity" in field.expression)
            has_quantities = has_quantities or (within.name == NATIVE and any(quantities))
            waiting += list(_referred(fields, within))
    return {**found, _QUANTITY: _QUANTITY_SCHEMA} if has_quantities else found


def _object(type_name: str, fields: Mapping[str, Field], within: TypeScope) -> dict[str, Any]:
    properties = {
        name: _described(_schema(field, within), description(type_name, name)) for name, field in fields.items()
    }
    about = "" if "." in type_name else description(type_name)  # a type below a kind describes only one field
    schema = _described({"type": "object", "properties": properties}, about)
    required = [name for name, field in fields.items() if field.required]
    return {**schema, "required": required} if required else schema


def _described(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """Add a description to a schema; a reference is wrapped, since it cannot carry one."""
    if not text:
        return schema
    return {"allOf": [schema], "description": text} if "$ref" in schema else {**schema, "description": text}


def _schema(field: Field, within: TypeScope) -> dict[str, Any]:
    facts = {_FACTS[fact]: value for fact, value in field.facts.items() if fact in _FACTS}
    facts |= _merging(field)
    if field.is_list:
        return {"type": "array", "items": _schema(field.element, within), **facts}
    if field.is_map:
        return {"type": "object", "additionalProperties": _schema(field.element, within), **facts}
    if field.expression == "quantity" and within.name == NATIVE:
        return {"allOf": [{"$ref": REFERENCE + _QUANTITY}], **facts} if facts else {"$ref": REFERENCE + _QUANTITY}
    if not field.is_object:
        return {**_SCALARS[field.expression], **facts}
    reference = {"$ref": REFERENCE + _type_name(field.expression, within)}
    return {"allOf": [reference], **facts} if facts else reference


def _merging(field: Field) -> dict[str, Any]:
    """Return the Kubernetes extensions for the merge strategy of a field."""
    facts = field.facts
    owned = facts.get("owned", facts.get("keys", "set" if facts.get("set") else None))
    found: dict[str, Any] = {}
    if owned == "atomic":
        found["x-kubernetes-map-type"] = "atomic"
    elif owned is not None:
        found["x-kubernetes-list-type"] = "set" if owned == "set" else "map"
        found |= {"x-kubernetes-list-map-keys": list(owned)} if owned != "set" else {}
    if "merge" in facts:
        found["x-kubernetes-patch-strategy"] = "merge,retainKeys" if facts.get("retain") else "merge"
        found |= {"x-kubernetes-patch-merge-key": facts["merge"]} if facts["merge"] else {}
    return found


def _referred(fields: Mapping[str, Field], within: TypeScope) -> Iterator[tuple[str, TypeScope, str]]:
    for field in fields.values():
        if field.object_type:
            scope, type_name = within.scope_of(field.object_type)
            yield _type_name(field.object_type, within), scope, type_name


def _type_name(expression: str, within: TypeScope) -> str:
    """Return the schema name of a type; native types have the same name in all groups."""
    scope, type_name = within.scope_of(expression)
    return f"io.k8s.{type_name}" if scope.name == NATIVE else f"dev.batchyard.{scope.name}.{type_name}"


_OF_PATCHES: Final = ("x-kubernetes-patch-strategy", "x-kubernetes-patch-merge-key", "x-kubernetes-group-version-kind")
#: Column paths that differ in an older version.
_OLDER_PATHS: Final = {(scheme.CLUSTER_QUEUE, "v1beta1"): {".spec.cohortName": ".spec.cohort"}}
_EITHER: Final = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
_INT_OR_STRING: Final = "x-kubernetes-int-or-string"
_LIST_TYPE: Final = "x-kubernetes-list-type"
_LIST_KEYS: Final = "x-kubernetes-list-map-keys"


class Conversion(NamedTuple):
    """The Service of a conversion webhook."""

    service: str
    namespace: str
    path: str


def provided_definition(info: ServedKind) -> dict[str, Any]:
    """Return the definition of a kind that the platform provides, with all served versions."""
    definition = definition_of(info)
    metadata = {**definition["metadata"], "annotations": {well_known.PROVIDED: "true"}}
    versions = [_version(info, version) for version in info.versions]
    spec = {**definition["spec"], "versions": versions, "conversion": {"strategy": "None"}}
    return {**definition, "metadata": metadata, "spec": spec}


def definition_of(info: ServedKind, conversion: Conversion | None = None) -> dict[str, Any]:
    """Return the definition of a kind; with a conversion webhook it includes all versions."""
    versions = info.versions if conversion is not None else (info.storage_version,)
    names = {
        "kind": info.kind,
        "listKind": f"{info.kind}List",
        "plural": info.plural,
        "singular": info.singular,
        "shortNames": list(info.short_names),
    }
    scope = "Namespaced" if info.namespaced else "Cluster"
    served = [_version(info, version) for version in versions]
    spec: dict[str, Any] = {"group": info.group, "names": names, "scope": scope, "versions": served}
    if conversion is not None:
        service = {"name": conversion.service, "namespace": conversion.namespace, "path": conversion.path}
        webhook = {"clientConfig": {"service": service}, "conversionReviewVersions": ["v1"]}
        spec["conversion"] = {"strategy": "Webhook", "webhook": webhook}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{info.plural}.{info.group}"},
        "spec": spec,
    }


def _version(info: ServedKind, version: str) -> dict[str, Any]:
    schemas = schemas_of(info, version)
    schema = _structural(next(iter(schemas.values())), schemas)
    schema["properties"] = {**schema["properties"], "metadata": {"type": "object"}}
    reported: dict[str, Any] = {"name": version, "served": True, "storage": version == info.storage_version}
    if version in info.deprecated_versions:
        reported |= {"deprecated": True, "deprecationWarning": info.deprecation}
    reported["schema"] = {"openAPIV3Schema": schema}
    columns = _columns(info, version)
    reported |= {"additionalPrinterColumns": columns} if columns else {}
    return reported | ({"subresources": {"status": {}}} if info.has_status else {})


def _columns(info: ServedKind, version: str) -> list[dict[str, Any]]:
    """Return the printer columns whose cells are fields of the object; kubectl shows the age without any."""
    older = _OLDER_PATHS.get((info.constant, version), {})
    found = ((column, json_path(cell)) for column, cell in TABLES.get(info.constant, ()))
    return [
        {
            "name": column.name,
            "type": column.type,
            "jsonPath": older.get(path, path),
            **({"priority": column.priority} if column.priority else {}),
        }
        for column, path in found
        if path
    ]


def _structural(schema: Mapping[str, Any], schemas: Schemas) -> dict[str, Any]:
    """Inline all references of a schema."""
    whole = {word: value for word, value in schema.items() if word not in (*_OF_PATCHES, "$ref", "allOf")}
    for referred in (schema, *schema.get("allOf", ())):
        if "$ref" in referred:
            whole = {**schemas[referred["$ref"].removeprefix(REFERENCE)], **whole}
            whole.pop("x-kubernetes-group-version-kind", None)
    if "properties" in whole:
        whole["properties"] = {name: _structural(each, schemas) for name, each in whole["properties"].items()}
    for inner in ("items", "additionalProperties"):
        if inner in whole:
            whole[inner] = _structural(whole[inner], schemas)
    if _INT_OR_STRING in whole:
        whole |= _EITHER
    if not _has_keys(whole):
        whole.pop(_LIST_TYPE, None)
        whole.pop(_LIST_KEYS, None)
    return whole


def _has_keys(schema: Mapping[str, Any]) -> bool:
    """Report whether the keys of list items are required or have defaults."""
    items = schema.get("items", {})
    given = [name for name, each in items.get("properties", {}).items() if "default" in each]
    return set(schema.get(_LIST_KEYS, ())).issubset((*items.get("required", ()), *given))
