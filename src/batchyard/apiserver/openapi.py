"""OpenAPI documents: v3 for each group and version, and v2 for all."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from batchyard.api import scheme
from batchyard.apiserver.openapi_definitions import REFERENCE, schema_name
from batchyard.apiserver.patch import patch_media_types
from batchyard.apiserver.resources import Resource, Resources

# OpenAPI v2 definitions as protobuf, which client-go reads.
#
# client-go reads the merge strategy of untyped kinds from them (`UnstructuredExtractor`). Paths are left out: kubectl
# reads them only for kinds without patches, such as List, and without them leaves validation to the server.
# Source: github.com/google/gnostic-models, openapiv2/OpenAPIv2.proto; k8s.io/kube-openapi, pkg/util/proto.


#: Field numbers of the string fields of Schema.
_STRING_FIELD_NUMBERS: Final = {"$ref": 1, "format": 2, "title": 3, "description": 4}
#: Field numbers by message.
_SWAGGER_FIELD, _INFO_FIELD, _DEFINITIONS_FIELD = 1, 2, 9
(
    _DEFAULT_FIELD,
    _REQUIRED_FIELD,
    _ENUM_FIELD,
    _ADDITIONAL_PROPERTIES_FIELD,
    _TYPE_FIELD,
    _ITEMS_FIELD,
    _ALL_OF_FIELD,
    _PROPERTIES_FIELD,
    _EXTENSION_FIELD,
) = (5, 19, 20, 21, 22, 23, 24, 25, 31)
_NAME_FIELD, _VALUE_FIELD = 1, 2
_YAML_FIELD: Final = 2
_BOOLEAN_TAG: Final = b"\x10"


def encode_openapi_v2(document: Mapping[str, Any]) -> bytes:
    """Encode an OpenAPI v2 document as protobuf, without paths and validation limits."""
    info = document["info"]
    return b"".join(
        (
            _encode_text(_SWAGGER_FIELD, document["swagger"]),
            _encode_field(_INFO_FIELD, _encode_text(1, info["title"]) + _encode_text(2, info["version"])),
            _encode_field(_DEFINITIONS_FIELD, _encode_named_schemas(1, document["definitions"].items())),
        )
    )


def _encode_named_schemas(number: int, schemas: Iterable[tuple[str, Any]]) -> bytes:
    return b"".join(
        _encode_field(number, _encode_text(_NAME_FIELD, name) + _encode_field(_VALUE_FIELD, _encode_schema(schema)))
        for name, schema in schemas
    )


def _encode_schema(schema: Mapping[str, Any]) -> bytes:
    return b"".join(field for keyword, value in schema.items() for field in _encode_keyword(keyword, value))


def _encode_keyword(keyword: str, value: Any) -> Iterator[bytes]:
    if keyword in _STRING_FIELD_NUMBERS:
        yield _encode_text(_STRING_FIELD_NUMBERS[keyword], value)
    elif keyword.startswith("x-"):
        encoded_value = _encode_field(_VALUE_FIELD, _encode_any(value))
        yield _encode_field(_EXTENSION_FIELD, _encode_text(_NAME_FIELD, keyword) + encoded_value)
    elif keyword == "default":
        yield _encode_field(_DEFAULT_FIELD, _encode_any(value))
    elif keyword == "required":
        yield from (_encode_text(_REQUIRED_FIELD, name) for name in value)
    elif keyword == "enum":
        yield from (_encode_field(_ENUM_FIELD, _encode_any(each)) for each in value)
    elif keyword == "additionalProperties":
        is_schema = isinstance(value, Mapping)
        content = _encode_field(1, _encode_schema(value)) if is_schema else _BOOLEAN_TAG + bytes([value])
        yield _encode_field(_ADDITIONAL_PROPERTIES_FIELD, content)
    elif keyword == "type":
        yield _encode_field(_TYPE_FIELD, _encode_text(1, value))
    elif keyword == "items":
        yield _encode_field(_ITEMS_FIELD, _encode_field(1, _encode_schema(value)))
    elif keyword == "allOf":
        yield from (_encode_field(_ALL_OF_FIELD, _encode_schema(each)) for each in value)
    elif keyword == "properties":
        yield _encode_field(_PROPERTIES_FIELD, _encode_named_schemas(1, value.items()))


def _encode_any(value: Any) -> bytes:
    """Encode a JSON value as the protobuf message Any of OpenAPI v2, which has YAML text (JSON is YAML)."""
    return _encode_text(_YAML_FIELD, json.dumps(value, separators=(",", ":")))


def _encode_text(field_number: int, text: str) -> bytes:
    return _encode_field(field_number, text.encode())


def _encode_field(field_number: int, content: bytes) -> bytes:
    return _encode_varint(field_number << 3 | 2) + _encode_varint(len(content)) + content


def _encode_varint(value: int) -> bytes:
    encoded_bytes = bytearray()
    while value > 127:
        encoded_bytes.append(value & 127 | 128)
        value >>= 7
    encoded_bytes.append(value)
    return bytes(encoded_bytes)


# OpenAPI documents of the served resources, with the fields that kubectl reads. Source: k8s.io/kube-openapi.


_DOCUMENT_INFO: Final = {"title": "Kubernetes", "version": "v1.36.0"}
_LIST_OPTIONS: Final = (
    "labelSelector",
    "fieldSelector",
    "limit",
    "continue",
    "resourceVersion",
    "resourceVersionMatch",
)
_ACTIONS_BY_METHOD: Final = {"GET": "get", "POST": "post", "PUT": "put", "PATCH": "patch", "DELETE": "delete"}
_WRITE_PARAMETERS: Final = ("dryRun", "fieldManager", "fieldValidation")
_KINDS_KEYWORD: Final = "x-kubernetes-group-version-kind"
_STATUS_PHRASES: Final = {"200": "OK", "201": "Created", "202": "Accepted"}
_JSON_MEDIA_TYPE: Final = "application/json"
_META_PACKAGE: Final = "io.k8s.apimachinery.pkg.apis.meta.v1"
_STATUS_TYPE: Final = f"{_META_PACKAGE}.Status"
_LIST_META: Final = f"{_META_PACKAGE}.ListMeta"
_STRING_SCHEMA: Final = {"type": "string"}
_OBJECT_SCHEMA: Final = {"type": "object"}
#: Schemas included in every document.
_COMMON_SCHEMAS: Final[Mapping[str, Any]] = {
    _LIST_META: {
        "description": "The metadata of a list.",
        "type": "object",
        "properties": {
            "continue": _STRING_SCHEMA,
            "remainingItemCount": {"type": "integer", "format": "int64"},
            "resourceVersion": _STRING_SCHEMA,
            "selfLink": _STRING_SCHEMA,
        },
    },
    _STATUS_TYPE: {
        "description": "The result of a call that returns no other object.",
        "type": "object",
        "properties": {
            "apiVersion": _STRING_SCHEMA,
            "kind": _STRING_SCHEMA,
            "metadata": {"$ref": REFERENCE + _LIST_META},
            "status": _STRING_SCHEMA,
            "message": _STRING_SCHEMA,
            "reason": _STRING_SCHEMA,
            "details": _OBJECT_SCHEMA,
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
        self._v2_protobuf: tuple[Any, bytes] = (None, b"")

    def document(self, path: str) -> Any:
        """Return the OpenAPI document at a path below `/openapi`; None if there is none."""
        if self._edition != self._resources.edition:
            self._edition = self._resources.edition
            self._documents = {}
        if path not in self._documents:
            built_document = self._build_document(path)
            if built_document is None:
                return None
            self._documents[path] = built_document
        return self._documents[path]

    def encode_v2_document(self) -> bytes:
        """Return the OpenAPI v2 document, without its paths, as protobuf."""
        document = self.document("v2")
        if self._v2_protobuf[0] is not document:
            self._v2_protobuf = (document, encode_openapi_v2(document))
        return self._v2_protobuf[1]

    def _build_document(self, path: str) -> Any:
        path_resources = _resources_by_path(self._resources.all())
        if path == "v2":
            return _v2_document(path_resources)
        if path == "v3":
            edition = self._resources.edition
            return {
                "paths": {
                    version_path: {"serverRelativeURL": f"/openapi/v3/{version_path}?hash={edition}"}
                    for version_path in path_resources
                }
            }
        version_path = path.removeprefix("v3/")
        if version_path == path or version_path not in path_resources:
            return None
        return _v3_document(version_path, path_resources[version_path])


def _resources_by_path(resources: Sequence[Resource]) -> dict[str, list[Resource]]:
    path_resources: dict[str, list[Resource]] = {}
    for resource in resources:
        served_kind = resource.served_kind
        for version in served_kind.versions:
            version_path = f"apis/{served_kind.group}/{version}" if served_kind.group else f"api/{version}"
            path_resources.setdefault(version_path, []).append(resource)
    return path_resources


def _v3_document(version_path: str, resources: Sequence[Resource]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = dict(_COMMON_SCHEMAS)
    for resource in resources:
        paths |= _paths(version_path, resource)
        schemas |= _resource_schemas(version_path, resource)
    return {"openapi": "3.0.0", "info": _DOCUMENT_INFO, "paths": paths, "components": {"schemas": schemas}}


def _resource_schemas(version_path: str, resource: Resource) -> dict[str, Any]:
    served_kind, version = resource.served_kind, version_path.rpartition("/")[2]
    schemas = dict(resource.strategy.schemas(version))
    name = schema_name(served_kind, version)
    if name in schemas:
        schemas[f"{name}List"] = {
            "description": f"A list of objects of the kind {served_kind.kind}.",
            "type": "object",
            "required": ["items"],
            "properties": {
                "apiVersion": _STRING_SCHEMA,
                "kind": _STRING_SCHEMA,
                "metadata": {"$ref": REFERENCE + _LIST_META},
                "items": {"type": "array", "items": {"$ref": REFERENCE + name}},
            },
            "x-kubernetes-group-version-kind": [
                {"group": served_kind.group, "version": version, "kind": f"{served_kind.kind}List"}
            ],
        }
    return schemas


def _paths(version_path: str, resource: Resource) -> dict[str, Any]:
    served_kind, version = resource.served_kind, version_path.rpartition("/")[2]
    kind = {"group": served_kind.group, "version": version, "kind": served_kind.kind}
    name = schema_name(served_kind, version)
    schema, objects_schema, status_ref = (_schema_reference(each) for each in (name, f"{name}List", _STATUS_TYPE))
    request_content = {_JSON_MEDIA_TYPE: {"schema": schema}}
    namespace_path = "namespaces/{namespace}/" if served_kind.namespaced else ""
    collection_path = f"/{version_path}/{namespace_path}{served_kind.plural}"
    handler_paths = _handler_paths(collection_path, resource)
    if "" in resource.handlers:
        return handler_paths
    created_responses, changed_responses = {"200": schema, "201": schema, "202": schema}, {"200": schema, "201": schema}
    result = schema if resource.returns_deleted_object and served_kind.constant != scheme.NAMESPACE else status_ref
    list_operation = _operation("list", kind, _LIST_OPTIONS, {"200": objects_schema})
    all_namespaces_path = (
        {f"/{version_path}/{served_kind.plural}": {"get": list_operation}} if served_kind.namespaced else {}
    )
    namespace_parameters = [_path_parameter("namespace")] if served_kind.namespaced else []
    create_operation = _operation("post", kind, _WRITE_PARAMETERS, created_responses, request_content)
    collection_operations = {"parameters": namespace_parameters, "get": list_operation, "post": create_operation}
    if resource.supports_deletecollection:
        collection_operations["delete"] = _operation("deletecollection", kind, _LIST_OPTIONS, {"200": status_ref})
    patch_bodies = {
        patch: {"schema": _OBJECT_SCHEMA} for patch in patch_media_types(allows_strategic=resource.is_native)
    }
    change_operations = {
        "parameters": [_path_parameter("name"), *namespace_parameters],
        "get": _operation("get", kind, (), {"200": schema}),
        "put": _operation("put", kind, _WRITE_PARAMETERS, changed_responses, request_content),
        "patch": _operation("patch", kind, _WRITE_PARAMETERS, changed_responses, patch_bodies),
    }
    options = ("gracePeriodSeconds", "propagationPolicy")
    operations = {**change_operations, "delete": _operation("delete", kind, options, {"200": result, "202": result})}
    subresource_paths = {f"{collection_path}/{{name}}/{each}": change_operations for each in resource.subresources}
    resource_paths = {collection_path: collection_operations, f"{collection_path}/{{name}}": operations}
    return {**all_namespaces_path, **resource_paths, **subresource_paths, **handler_paths}


def _schema_reference(name: str) -> dict[str, Any]:
    return {"$ref": REFERENCE + name}


def _handler_paths(collection_path: str, resource: Resource) -> dict[str, Any]:
    namespace_parameters = [_path_parameter("namespace")] if resource.served_kind.namespaced else []
    object_path, parameters = f"{collection_path}/{{name}}", [_path_parameter("name"), *namespace_parameters]
    paths: dict[str, Any] = {}
    for subresource, handlers in resource.handlers.items():
        kind = {"group": handlers.group, "version": handlers.version, "kind": handlers.kind}
        responses = {"200": _STRING_SCHEMA if subresource == "log" else _OBJECT_SCHEMA}
        # kubectl searches any PATCH operation of a kind for `fieldValidation`.
        changing_methods = () if handlers.takes_subpath else ("PUT", "PATCH")
        operations = {
            method.lower(): _operation(
                _ACTIONS_BY_METHOD[method], kind, _WRITE_PARAMETERS if method in changing_methods else (), responses
            )
            for method in handlers.by_method
        }
        if subresource:
            paths[f"{object_path}/{subresource}"] = {"parameters": parameters, **operations}
            continue
        if "get" in operations:
            paths[object_path] = {"parameters": parameters, "get": operations["get"]}
            operations["get"] = _operation("list", kind, _LIST_OPTIONS, responses)
        if operations:
            paths[collection_path] = {"parameters": namespace_parameters, **operations}
    return paths


def _operation(
    action: str,
    kind: Mapping[str, str],
    query_parameters: Sequence[str],
    response_schemas: Mapping[str, Any],
    content: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    responses: dict[str, Any] = {
        code: {"description": _STATUS_PHRASES[code], "content": {_JSON_MEDIA_TYPE: {"schema": schema}}}
        for code, schema in response_schemas.items()
    }
    operation: dict[str, Any] = {
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": kind,
        "parameters": [{"name": name, "in": "query", "schema": _STRING_SCHEMA} for name in query_parameters],
        "responses": {**responses, "401": {"description": "Unauthorized"}},
    }
    return operation if content is None else {**operation, "requestBody": {"required": True, "content": content}}


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _v2_document(path_resources: Mapping[str, Sequence[Resource]]) -> dict[str, Any]:
    definitions: dict[str, Any] = dict(_COMMON_SCHEMAS)
    paths: dict[str, Any] = {}
    for version_path, resources in path_resources.items():
        for resource in resources:
            schemas = _resource_schemas(version_path, resource)
            definitions |= {name: _without_unknown_fields(schema) for name, schema in schemas.items()}
            paths |= {path: _convert_operations_to_v2(each) for path, each in _paths(version_path, resource).items()}
    document = {"swagger": "2.0", "info": _DOCUMENT_INFO, "paths": paths, "definitions": definitions}
    converted_document: dict[str, Any] = _convert_references_to_v2(document)
    return converted_document


def _without_unknown_fields(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a kind for v2, without fields if it preserves unknown ones, which kubectl would reject."""
    kinds = schema.get(_KINDS_KEYWORD)
    if not kinds or not schema.get("x-kubernetes-preserve-unknown-fields"):
        return schema
    return {"type": "object", _KINDS_KEYWORD: kinds}


def _convert_operations_to_v2(operations: Mapping[str, Any]) -> dict[str, Any]:
    shared_parameters = [_convert_parameter_to_v2(parameter) for parameter in operations.get("parameters", ())]
    v2_operations = {name: _convert_operation_to_v2(each) for name, each in operations.items() if name != "parameters"}
    return {"parameters": shared_parameters, **v2_operations} if shared_parameters else v2_operations


def _convert_operation_to_v2(operation: Mapping[str, Any]) -> dict[str, Any]:
    parameters = [_convert_parameter_to_v2(parameter) for parameter in operation["parameters"]]
    v2_operation = {keyword: value for keyword, value in operation.items() if keyword.startswith("x-")}
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        v2_operation["consumes"] = [*content]
        schema = next(iter(content.values()))["schema"]
        parameters.insert(0, {"name": "body", "in": "body", "required": True, "schema": schema})
    responses = {
        code: {"description": response["description"], **response.get("content", {}).get(_JSON_MEDIA_TYPE, {})}
        for code, response in operation["responses"].items()
    }
    return {**v2_operation, "produces": [_JSON_MEDIA_TYPE], "parameters": parameters, "responses": responses}


def _convert_parameter_to_v2(parameter: Mapping[str, Any]) -> dict[str, Any]:
    return {**{keyword: value for keyword, value in parameter.items() if keyword != "schema"}, **parameter["schema"]}


def _convert_references_to_v2(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            keyword: "#/definitions/" + each.removeprefix(REFERENCE)
            if keyword == "$ref"
            else _convert_references_to_v2(each)
            for keyword, each in value.items()
            if keyword != "nullable"
        }
    return [_convert_references_to_v2(each) for each in value] if isinstance(value, list) else value
