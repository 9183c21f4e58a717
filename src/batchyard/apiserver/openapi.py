"""OpenAPI documents: v3 for each group and version, and v2 for all."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from batchyard.api import scheme, well_known
from batchyard.api.printing.cells import json_path
from batchyard.api.printing.kinds import TABLES
from batchyard.api.schema.tables import NATIVE, Field, TypeScope, description, scope, scope_for
from batchyard.api.scheme import ServedKind
from batchyard.apiserver.patch import media_types
from batchyard.apiserver.resources import Resource, Resources

# --- schemas ---
#
# Field tables as OpenAPI schemas. Source: OpenAPI 3.0 and Kubernetes's extensions (`x-kubernetes-`).


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


# --- documents ---
#
# OpenAPI documents of the served resources. Source: k8s.io/kube-openapi, and what kubectl reads of them.


# --- message ---
#
# OpenAPI v2 definitions as protobuf, which client-go reads.
#
# client-go looks up the merge strategy of untyped kinds in it (`UnstructuredExtractor`). Paths are left out: kubectl
# reads them only for kinds without patches such as List, and without them leaves validation to the server.
# Source: github.com/google/gnostic-models, openapiv2/OpenAPIv2.proto; k8s.io/kube-openapi, pkg/util/proto.


#: Field numbers of the string fields of Schema.
_TEXTS: Final = {"$ref": 1, "format": 2, "title": 3, "description": 4}
#: Field numbers by message.
_SWAGGER, _INFO, _DEFINITIONS = 1, 2, 9
_DEFAULT, _REQUIRED, _ENUM, _ADDITIONAL, _TYPE, _ITEMS, _ALL_OF, _PROPERTIES, _EXTENSION = (
    5,
    19,
    20,
    21,
    22,
    23,
    24,
    25,
    31,
)
_NAME, _VALUE = 1, 2
_YAML: Final = 2
_BOOLEAN: Final = b"\x10"


def message_of(document: Mapping[str, Any]) -> bytes:
    """Encode an OpenAPI v2 document, without paths and without validation limits."""
    about = document["info"]
    return b"".join(
        (
            _text(_SWAGGER, document["swagger"]),
            _part(_INFO, _text(1, about["title"]) + _text(2, about["version"])),
            _part(_DEFINITIONS, _named(1, document["definitions"].items())),
        )
    )


def _named(number: int, schemas: Iterable[tuple[str, Any]]) -> bytes:
    return b"".join(
        _part(number, _text(_NAME, name) + _part(_VALUE, _schema_message(schema))) for name, schema in schemas
    )


def _schema_message(schema: Mapping[str, Any]) -> bytes:
    return b"".join(part for word, value in schema.items() for part in _parts_of(word, value))


def _parts_of(word: str, value: Any) -> Iterator[bytes]:
    if word in _TEXTS:
        yield _text(_TEXTS[word], value)
    elif word.startswith("x-"):
        yield _part(_EXTENSION, _text(_NAME, word) + _part(_VALUE, _any(value)))
    elif word == "default":
        yield _part(_DEFAULT, _any(value))
    elif word == "required":
        yield from (_text(_REQUIRED, name) for name in value)
    elif word == "enum":
        yield from (_part(_ENUM, _any(each)) for each in value)
    elif word == "additionalProperties":
        is_schema = isinstance(value, Mapping)
        yield _part(_ADDITIONAL, _part(1, _schema_message(value)) if is_schema else _BOOLEAN + bytes([value]))
    elif word == "type":
        yield _part(_TYPE, _text(1, value))
    elif word == "items":
        yield _part(_ITEMS, _part(1, _schema_message(value)))
    elif word == "allOf":
        yield from (_part(_ALL_OF, _schema_message(each)) for each in value)
    elif word == "properties":
        yield _part(_PROPERTIES, _named(1, value.items()))


def _any(value: Any) -> bytes:
    """Encode a value as YAML, of which JSON is a subset."""
    return _text(_YAML, json.dumps(value, separators=(",", ":")))


def _text(number: int, text: str) -> bytes:
    return _part(number, text.encode())


def _part(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


_ABOUT: Final = {"title": "Kubernetes", "version": "v1.32.0"}
_READS: Final = ("labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch")
_ACTIONS: Final = {"GET": "get", "POST": "post", "PUT": "put", "PATCH": "patch", "DELETE": "delete"}
_WRITES: Final = ("dryRun", "fieldManager", "fieldValidation")
_PHRASES: Final = {"200": "OK", "201": "Created", "202": "Accepted"}
_JSON: Final = "application/json"
_META: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
_STATUS: Final = f"{_META}.Status"
_LIST_META: Final = f"{_META}.ListMeta"
_TEXT: Final = {"type": "string"}
_OBJECT: Final = {"type": "object"}
#: Schemas included in every document.
_COMMON: Final[Mapping[str, Any]] = {
    _LIST_META: {
        "description": "The metadata of a list.",
        "type": "object",
        "properties": {
            "continue": _TEXT,
            "remainingItemCount": {"type": "integer", "format": "int64"},
            "resourceVersion": _TEXT,
            "selfLink": _TEXT,
        },
    },
    _STATUS: {
        "description": "The result of a call that returns no other object.",
        "type": "object",
        "properties": {
            "apiVersion": _TEXT,
            "kind": _TEXT,
            "metadata": {"$ref": REFERENCE + _LIST_META},
            "status": _TEXT,
            "message": _TEXT,
            "reason": _TEXT,
            "details": _OBJECT,
            "code": {"type": "integer", "format": "int32"},
        },
        "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Status"}],
    },
}


class OpenApi:
    """The OpenAPI documents, rebuilt when the served resources change."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._edition = -1
        self._documents: dict[str, Any] = {}
        #: The v2 document and its protobuf encoding.
        self._message: tuple[Any, bytes] = (None, b"")

    def document(self, path: str) -> Any:
        """Return the document at a path below `/openapi`; None if there is none."""
        if self._edition != self._resources.edition:
            self._edition = self._resources.edition
            self._documents = {}
        if path not in self._documents:
            made = self._made(path)
            if made is None:
                return None
            self._documents[path] = made
        return self._documents[path]

    def message(self) -> bytes:
        """Return the v2 definitions as protobuf."""
        document = self.document("v2")
        if self._message[0] is not document:
            self._message = (document, message_of(document))
        return self._message[1]

    def _made(self, path: str) -> Any:
        by_place = _by_place(self._resources.all())
        if path == "v2":
            return _v2(by_place)
        if path == "v3":
            edition = self._resources.edition
            return {"paths": {of: {"serverRelativeURL": f"/openapi/v3/{of}?hash={edition}"} for of in by_place}}
        of = path.removeprefix("v3/")
        return _v3(of, by_place[of]) if of != path and of in by_place else None


def _by_place(resources: Sequence[Resource]) -> dict[str, list[Resource]]:
    """Group resources by the path of their group and version."""
    found: dict[str, list[Resource]] = {}
    for resource in resources:
        info = resource.info
        for version in info.versions:
            place = f"apis/{info.group}/{version}" if info.group else f"api/{version}"
            found.setdefault(place, []).append(resource)
    return found


def _v3(place: str, resources: Sequence[Resource]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = dict(_COMMON)
    for resource in resources:
        paths |= _paths(place, resource)
        schemas |= _schemas(place, resource)
    return {"openapi": "3.0.0", "info": _ABOUT, "paths": paths, "components": {"schemas": schemas}}


def _schemas(place: str, resource: Resource) -> dict[str, Any]:
    """Return the schemas of a resource in a version, and of its list."""
    info, version = resource.info, place.rpartition("/")[2]
    schemas = dict(resource.strategy.schemas(version))
    name = schema_name(info, version)
    if name in schemas:
        schemas[f"{name}List"] = {
            "description": f"A list of objects of the kind {info.kind}.",
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": _TEXT,
                "kind": _TEXT,
                "metadata": {"$ref": REFERENCE + _LIST_META},
                "items": {"type": "array", "items": {"$ref": REFERENCE + name}},
            },
            "x-kubernetes-group-version-kind": [{"group": info.group, "version": version, "kind": f"{info.kind}List"}],
        }
    return schemas


def _paths(place: str, resource: Resource) -> dict[str, Any]:
    """Return the paths of a resource and their operations."""
    info, version = resource.info, place.rpartition("/")[2]
    kind = {"group": info.group, "version": version, "kind": info.kind}
    name = schema_name(info, version)
    obj, objs, status = (_reference(each) for each in (name, f"{name}List", _STATUS))
    body = {_JSON: {"schema": obj}}
    where = f"/{place}/namespaces/{{namespace}}/{info.plural}" if info.namespaced else f"/{place}/{info.plural}"
    parts = _answered(where, resource)
    if "" in resource.answers:
        return parts
    made, changed = {"200": obj, "201": obj, "202": obj}, {"200": obj, "201": obj}
    gone = obj if resource.returns_deleted and info.constant != scheme.NAMESPACE else status
    listed = _operation("list", kind, _READS, {"200": objs})
    in_all = {f"/{place}/{info.plural}": {"get": listed}} if info.namespaced else {}
    within = [_in_path("namespace")] if info.namespaced else []
    many = {
        "parameters": within,
        "get": listed,
        "post": _operation("post", kind, _WRITES, made, body),
    }
    if resource.deletes_together:
        many["delete"] = _operation("deletecollection", kind, _READS, {"200": status})
    patches = {patch: {"schema": _OBJECT} for patch in media_types(strategic=resource.is_native)}
    changes = {
        "parameters": [_in_path("name"), *within],
        "get": _operation("get", kind, (), {"200": obj}),
        "put": _operation("put", kind, _WRITES, changed, body),
        "patch": _operation("patch", kind, _WRITES, changed, patches),
    }
    options = ("gracePeriodSeconds", "propagationPolicy")
    one = {**changes, "delete": _operation("delete", kind, options, {"200": gone, "202": gone})}
    further = {f"{where}/{{name}}/{part}": changes for part in resource.subresources}
    return {**in_all, where: many, f"{where}/{{name}}": one, **further, **parts}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": REFERENCE + name}


def _answered(where: str, resource: Resource) -> dict[str, Any]:
    """Return the paths of subresources and virtual resources that functions answer."""
    within = [_in_path("namespace")] if resource.info.namespaced else []
    paths: dict[str, Any] = {}
    for part, answer in resource.answers.items():
        kind = {"group": answer.group, "version": answer.version, "kind": answer.kind}
        returned = {"200": _TEXT if part == "log" else _OBJECT}
        operations = {method.lower(): _operation(_ACTIONS[method], kind, (), returned) for method in answer.methods}
        if part:
            paths[f"{where}/{{name}}/{part}"] = {"parameters": [_in_path("name"), *within], **operations}
            continue
        if "get" in operations:
            paths[f"{where}/{{name}}"] = {"parameters": [_in_path("name"), *within], "get": operations["get"]}
            operations["get"] = _operation("list", kind, _READS, returned)
        if operations:
            paths[where] = {"parameters": within, **operations}
    return paths


def _operation(
    action: str,
    kind: Mapping[str, str],
    query: Sequence[str],
    returned: Mapping[str, Any],
    content: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    responses: dict[str, Any] = {
        code: {"description": _PHRASES[code], "content": {_JSON: {"schema": schema}}}
        for code, schema in returned.items()
    }
    operation: dict[str, Any] = {
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind,
        "parameters": [{"name": name, "in": "query", "schema": _TEXT} for name in query],
        "responses": {**responses, "401": {"description": "Unauthorized"}},
    }
    return operation if content is None else {**operation, "requestBody": {"required": True, "content": content}}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _v2(by_place: Mapping[str, Sequence[Resource]]) -> dict[str, Any]:
    """Return the OpenAPI v2 document of all resources."""
    definitions: dict[str, Any] = dict(_COMMON)
    paths: dict[str, Any] = {}
    for place, resources in by_place.items():
        for resource in resources:
            definitions |= _schemas(place, resource)
            paths |= {path: _operations_of_v2(operations) for path, operations in _paths(place, resource).items()}
    document = {"swagger": "2.0", "info": _ABOUT, "paths": paths, "definitions": definitions}
    referring: dict[str, Any] = _referring_to_definitions(document)
    return referring


def _operations_of_v2(operations: Mapping[str, Any]) -> dict[str, Any]:
    shared = [_parameter_of_v2(parameter) for parameter in operations.get("parameters", ())]
    found = {method: _operation_of_v2(each) for method, each in operations.items() if method != "parameters"}
    return {"parameters": shared, **found} if shared else found


def _operation_of_v2(operation: Mapping[str, Any]) -> dict[str, Any]:
    parameters = [_parameter_of_v2(parameter) for parameter in operation["parameters"]]
    about = {word: value for word, value in operation.items() if word.startswith("x-")}
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        about["consumes"] = [*content]
        schema = next(iter(content.values()))["schema"]
        parameters.insert(0, {"name": "body", "in": "body", "required": True, "schema": schema})
    responses = {
        code: {"description": response["description"], **response.get("content", {}).get(_JSON, {})}
        for code, response in operation["responses"].items()
    }
    return {**about, "produces": [_JSON], "parameters": parameters, "responses": responses}


def _parameter_of_v2(parameter: Mapping[str, Any]) -> dict[str, Any]:
    return {**{word: value for word, value in parameter.items() if word != "schema"}, **parameter["schema"]}


def _referring_to_definitions(value: Any) -> Any:
    """Convert a schema to v2: references point to `definitions`, and `nullable` is dropped."""
    if isinstance(value, Mapping):
        return {
            word: "#/definitions/" + each.removeprefix(REFERENCE) if word == "$ref" else _referring_to_definitions(each)
            for word, each in value.items()
            if word != "nullable"
        }
    return [_referring_to_definitions(each) for each in value] if isinstance(value, list) else value


# --- definitions ---
#
# CustomResourceDefinitions of built-in kinds, for installation in other API servers.
#
# Only the storage version is included unless a conversion webhook is given, because another API server cannot convert
# versions itself. The schema comes from the field tables and omits cross-field rules.


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
