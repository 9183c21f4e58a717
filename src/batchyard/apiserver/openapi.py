"""OpenAPI documents: v3 for each group and version, and v2 for all."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.apiserver.openapi_definitions import REFERENCE, schema_name
from batchyard.apiserver.patch import media_types
from batchyard.apiserver.resources import Resource, Resources

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
# --- documents ---
#
# OpenAPI documents of the served resources. Source: k8s.io/kube-openapi, and what kubectl reads of them.


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
