"""Field tables as OpenAPI schemas. Source: OpenAPI 3.0 and Kubernetes's extensions (`x-kubernetes-`)."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from batchyard.api.schema.tables import NATIVE, Field, TypeScope, description, scope, scope_for
from batchyard.api.scheme import ServedKind

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
