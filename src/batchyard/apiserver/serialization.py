"""Decoding of request bodies into objects, and encoding of objects in the form that the client accepts.

Source of the messages: k8s.io/apiserver, pkg/endpoints/handlers/{create,update,patch,rest}.go.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api import yaml_documents
from batchyard.api.conversion import cut_metadata_times_to_seconds
from batchyard.api.errors import InvalidObject
from batchyard.api.manifests import DecodedObject
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.printing import Column
from batchyard.apiserver.patch import MergeSchema
from batchyard.apiserver.protobuf import PROTOBUF, BadMessage, decode_protobuf_object
from batchyard.apiserver.request import (
    IGNORE,
    JSON,
    STRICT,
    ApiRequest,
    Response,
    StatusError,
    WriteOptions,
    bad_request,
)
from batchyard.apiserver.resources import ResourcePath, invalid_object_error
from batchyard.base.instant import Instant

# Request bodies: decoding of JSON, YAML and protobuf, and detection of duplicate fields.
#
# Source of the messages: sigs.k8s.io/json and k8s.io/apimachinery's pkg/runtime/serializer/json.


YAML: Final = "application/yaml"
#: Maximum number of documents read: one is valid, and a second one is an error.
_DOCUMENTS_MAX: Final = 2
_decode_json_body = msgspec.json.Decoder(strict=True).decode
#: The key that holds the duplicate field names of a mapping; no field has this name.
_DUPLICATES_KEY: Final = "\0twice"


class RequestBody(NamedTuple):
    """A decoded request body, and the errors that strict decoding found in it."""

    value: Any
    faults: Sequence[str] = ()


def content_type_of(request: ApiRequest) -> str:
    """Return the media type of a request body without parameters; JSON by default."""
    return request.headers.get("content-type", JSON).partition(";")[0].strip().lower()


def read_body(request: ApiRequest) -> RequestBody:
    """Decode the object in a request body; an empty body is `{}`.

    Raises StatusError if the body is malformed or of an unknown media type.
    """
    content_type = content_type_of(request)
    if not request.body:
        return RequestBody({})
    if content_type not in _BODY_READERS:
        hint = f"accepted media types include: {', '.join(_BODY_READERS)}"
        raise StatusError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {hint}")
    return _BODY_READERS[content_type](request.body)


def read_json(body: bytes) -> RequestBody:
    """Decode a JSON request body. Raises StatusError if the body is invalid, or has too many values or levels."""
    try:
        text = body.decode()
        check_json_limits(body)
        value = _decode_json_body(body)
    except UnicodeDecodeError as error:
        raise bad_request(f"the request body is not valid JSON: byte {error.start} is not UTF-8") from error
    except RecursionError as error:
        raise bad_request("the request body is not valid JSON: it is nested too deeply") from error
    except msgspec.DecodeError as error:
        raise bad_request(f"the request body is not valid JSON: {error}") from error
    # Re-encoding differs if a field is duplicated, or numbers or escapes have another form. Only then is the slow check
    # for duplicates necessary.
    if msgspec.json.encode(value) == msgspec.json.format(body, indent=-1):
        return RequestBody(value)
    errors = _duplicate_errors(json.loads(text, object_pairs_hook=_mark_duplicates), "")
    return RequestBody(value, tuple(islice(errors, yaml_documents.FAULTS_MAX)))


def read_yaml(body: bytes) -> RequestBody:
    """Decode a YAML or JSON request body. Raises StatusError if it is invalid or not a single document."""
    if body.lstrip()[:1] == b"{":
        return read_json(body)
    try:
        values = list(islice(yaml_documents.read_documents(body.decode(), yaml_documents.VALUES_MAX), _DOCUMENTS_MAX))
    except UnicodeDecodeError as error:
        raise bad_request(f"error decoding YAML: byte {error.start} is not UTF-8") from error
    if len(values) != 1:
        count_text = "none" if not values else "several"
        raise bad_request(f"error decoding YAML: expected one document, found {count_text}")
    document = values[0]
    if document.value is None:
        raise bad_request(f"error decoding YAML: {'; '.join(map(str, document.faults))}")
    return RequestBody(document.value, tuple(f"yaml: {fault._replace(remedy='')}" for fault in document.faults))


def _read_protobuf(body: bytes) -> RequestBody:
    try:
        return RequestBody(decode_protobuf_object(body))
    except BadMessage as error:
        raise bad_request(f"the request body cannot be decoded: {error}") from error


_BODY_READERS: Final = {JSON: read_json, YAML: read_yaml, PROTOBUF: _read_protobuf}


def check_json_limits(body: bytes) -> None:
    """Raise StatusError if a JSON body has too many values or levels of nesting, before it is parsed.

    The number of opening brackets and commas is the estimate of the number of values. It is first counted with those
    inside strings, because this is fast. If that number is too high, the strings are removed and it is counted again.
    """
    bracket_count = body.count(b"[") + body.count(b"{")
    if bracket_count <= yaml_documents.NESTING_MAX and bracket_count + body.count(b",") <= yaml_documents.VALUES_MAX:
        return
    if body.count(b'"') - body.count(b'\\"') > 4 * yaml_documents.VALUES_MAX:
        raise _too_many_values_error()
    unquoted_text = yaml_documents.remove_json_strings(body)
    if unquoted_text.count(b"[") + unquoted_text.count(b"{") + unquoted_text.count(b",") > yaml_documents.VALUES_MAX:
        raise _too_many_values_error()
    if yaml_documents.nesting_depth(unquoted_text) > yaml_documents.NESTING_MAX:
        raise bad_request(f"the request body is nested more than {yaml_documents.NESTING_MAX} levels deep")


def _too_many_values_error() -> StatusError:
    message = f"Request entity too large: limit is {yaml_documents.VALUES_MAX} values"
    return StatusError(413, "RequestEntityTooLarge", message)


def _mark_duplicates(names_and_values: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(names_and_values)
    if len(fields) < len(names_and_values):
        name_counts = Counter(name for name, _ in names_and_values)
        fields[_DUPLICATES_KEY] = [name for name in fields if name_counts[name] > 1]
    elif _DUPLICATES_KEY in fields:
        del fields[_DUPLICATES_KEY]
    return fields


def _duplicate_errors(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name in value.get(_DUPLICATES_KEY, ()):
            yield f'duplicate field "{path}{name}"'
        for name, child in value.items():
            if name != _DUPLICATES_KEY:
                yield from _duplicate_errors(child, f"{path}{name}.")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _duplicate_errors(item, f"{path.removesuffix('.')}[{index}].")


# Unknown fields: pruned, and reported according to `fieldValidation`.
#
# Source: k8s.io/apiserver, pkg/endpoints/handlers/{create,update,patch,rest}.go.


class PrunedValue(NamedTuple):
    """A value without its unknown fields, and the strict decoding errors about those fields."""

    value: Any
    faults: Sequence[str]


def prune_to_merge_schema(value: Any, merge_schema: MergeSchema) -> PrunedValue:
    """Return a value without the fields that its merge schema does not allow, and the errors about those fields.

    If all fields are allowed, the value itself is returned. At most `FAULTS_MAX` errors are returned.
    """
    errors: list[str] = []
    return PrunedValue(_prune_value(value, merge_schema, "", errors), errors)


def _prune_value(value: Any, merge_schema: MergeSchema, path: str, errors: list[str]) -> Any:
    if isinstance(value, Mapping):
        return _prune_mapping(value, merge_schema, path, errors)
    if not isinstance(value, list):
        return value
    items = [
        _prune_value(item, merge_schema.item_schema, f"{path.removesuffix('.')}[{i}].", errors)
        for i, item in enumerate(value)
    ]
    return value if all(new is old for new, old in zip(items, value, strict=True)) else items


def _prune_mapping(value: Obj, merge_schema: MergeSchema, path: str, errors: list[str]) -> Obj:
    pruned_fields, is_unchanged = {}, True
    for name, child in value.items():
        if not merge_schema.allows_field(name):
            is_unchanged = False
            if len(errors) < yaml_documents.FAULTS_MAX:
                errors.append(f'unknown field "{path}{name}"')
            continue
        pruned_fields[name] = _prune_value(child, merge_schema.field_schema(name), f"{path}{name}.", errors)
        is_unchanged = is_unchanged and pruned_fields[name] is child
    return value if is_unchanged else pruned_fields


#: Metadata fields that are dropped if empty, as in Kubernetes.
_OMITTED_IF_EMPTY: Final = ("annotations", "finalizers", "labels", "ownerReferences")


class SentObject(NamedTuple):
    """An object that a client sent, decoded into the storage version, and the warnings for the client."""

    obj: dict[str, Any]
    warnings: tuple[str, ...]


def decode_body_object(
    body: RequestBody, path: ResourcePath, options: WriteOptions, unpatched_object: Obj | None = None
) -> SentObject:
    """Decode the object of a request body or the result of a patch.

    `unpatched_object` is the served object before a patch; None without a patch. Raises StatusError if the object is
    invalid, or does not fit the path.
    """
    sent_object, is_patched = with_kind(body.value, path), unpatched_object is not None
    # In another version, fields that conversion requires may be absent, so the whole object is checked again.
    is_storage_version = path.version == path.served_kind.storage_version
    result, unknown_faults = _decode_known_fields(sent_object, path, unpatched_object if is_storage_version else None)
    type_error = None if result.obj is not None else path.resource.find_decoding_error(sent_object)
    if type_error is not None:
        raise _decoding_error(sent_object, type_error, is_patched=is_patched)
    errors = [] if options.field_validation == IGNORE else [*body.faults, *unknown_faults]
    if errors and options.field_validation == STRICT:
        raise _decoding_error(sent_object, f"strict decoding error: {', '.join(errors)}", is_patched=is_patched)
    if result.obj is None:
        raise invalid_object_error(InvalidObject(result.faults), path.served_kind, name_of(sent_object))
    _check_name_and_namespace(result.obj["metadata"], path)
    return SentObject(_without_empty_metadata(result.obj), (*result.warnings, *errors))


def with_kind(sent_object: Any, path: ResourcePath) -> dict[str, Any]:
    """Return a sent object with the path's kind and version.

    Raises StatusError if the sent value is not an object, or has another kind or version.
    """
    if not isinstance(sent_object, Mapping):
        raise bad_request("the request body is not an object")
    kind, api_version = (
        sent_object.get("kind") or path.served_kind.kind,
        sent_object.get("apiVersion") or path.api_version,
    )
    if kind != path.served_kind.kind:
        raise bad_request(f'{kind} in version "{api_version}" cannot be handled as a {path.served_kind.kind}')
    if api_version != path.api_version:
        expected_version = f"the expected API version ({path.api_version})"
        raise bad_request(f"the API version in the data ({api_version}) does not match {expected_version}")
    return {**sent_object, "kind": kind, "apiVersion": api_version}


def name_of(sent_object: Mapping[str, Any]) -> str:
    """Return the name in a sent object that is not validated yet; '' if it has none, or null."""
    metadata = sent_object.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return "" if name is None else str(name)


def _decode_known_fields(
    sent_object: Obj, path: ResourcePath, valid_obj: Obj | None
) -> tuple[DecodedObject, Sequence[str]]:
    resource, namespace = path.resource, path.namespace or "default"
    if resource.prunes_unknown:
        pruned_value = prune_to_merge_schema(sent_object, resource.merge_schema(path.version))
        return resource.strategy.decode(pruned_value.value, namespace), pruned_value.faults
    result = resource.strategy.decode(sent_object, namespace, valid_obj)
    if result.obj is not None or not any(fault.problem == "unknown field" for fault in result.faults):
        return result, ()
    pruned_value = prune_to_merge_schema(sent_object, resource.merge_schema(path.version))
    return resource.strategy.decode(pruned_value.value, namespace), pruned_value.faults


def _without_empty_metadata(obj: dict[str, Any]) -> dict[str, Any]:
    metadata = obj["metadata"]
    empty_fields = [name for name in _OMITTED_IF_EMPTY if name in metadata and not metadata[name]]
    return with_metadata(obj, **dict.fromkeys(empty_fields)) if empty_fields else obj


def _decoding_error(sent_object: Mapping[str, Any], reason: str, *, is_patched: bool) -> StatusError:
    if not is_patched:
        kind, version = sent_object["kind"], sent_object["apiVersion"].rpartition("/")[2]
        return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {reason}')
    problem = f"Invalid value: {msgspec.json.encode(msgspec.json.encode(sent_object).decode()).decode()}: {reason}"
    causes = [{"reason": "FieldValueInvalid", "message": problem, "field": "patch"}]
    return StatusError(422, "Invalid", f' "" is invalid: patch: {problem}', {"causes": causes})


def _check_name_and_namespace(metadata: Mapping[str, Any], path: ResourcePath) -> None:
    if path.namespace and metadata.get("namespace") != path.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if path.name and metadata.get("name") != path.name:
        message = f"the name of the object ({metadata.get('name', '')}) does not match"
        raise bad_request(f"{message} the name on the URL ({path.name})")


# Representations of objects: whole, metadata only, or as a Table.
#
# Sources: k8s.io/apiserver, pkg/endpoints/handlers/{response,negotiation}.go; k8s.io/apimachinery, pkg/apis/meta/v1.


_META: Final = "meta.k8s.io/v1"
_TYPE_FIELDS: Final = frozenset({"apiVersion", "kind"})
_INCLUDE_OBJECT_VALUES: Final = ("Metadata", "Object", "None")


class ResponseForm(Enum):
    """The form of objects in a response: whole objects, a table, or metadata only."""

    WHOLE = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


class ConvertedItems(Sequence[Any]):
    """The items of a list, each converted whenever it is accessed."""

    def __init__(self, stored_items: Sequence[Any], convert_item: Callable[[Any], Any]) -> None:
        self._stored_items = stored_items
        self._convert_item = convert_item

    def __len__(self) -> int:
        return len(self._stored_items)

    def __iter__(self) -> Iterator[Any]:
        return map(self._convert_item, self._stored_items)

    def __getitem__(self, index: Any) -> Any:
        items = self._stored_items[index]
        return ConvertedItems(items, self._convert_item) if isinstance(index, slice) else self._convert_item(items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Representation:
    """Renders the objects of a resource in the form that a request accepts: whole, as a table, or as metadata."""

    def __init__(self, request: ApiRequest, path: ResourcePath, now: Instant) -> None:
        self._form = accepted_form(request)
        self._path = path
        self._now = now
        self._include_object = request.query.get("includeObject") or _INCLUDE_OBJECT_VALUES[0]
        if self._include_object not in _INCLUDE_OBJECT_VALUES:
            raise bad_request(f'unrecognized includeObject value: "{self._include_object}"')

    def render_object(self, stored_object: Obj) -> Mapping[str, Any]:
        """Render one object. Raises StatusError if the client accepts only lists."""
        match self._form:
            case ResponseForm.TABLE:
                revision = stored_object["metadata"].get("resourceVersion")  # absent on virtual objects
                return self._render_table([stored_object], {} if revision is None else {"resourceVersion": revision})
            case ResponseForm.WHOLE:
                return self._path.resource.strategy.render(stored_object, self._path.api_version)
        self.check_accepts_single_object()
        return _metadata_only(stored_object)

    def check_accepts_single_object(self) -> None:
        """Raise StatusError if the client accepts only PartialObjectMetadataList, which is not for single objects."""
        if self._form is ResponseForm.METADATA_LIST:
            raise _not_acceptable_error(f"you requested {self._form.value}, but the requested object is not a list")

    def render_bookmark(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Render a bookmark: an object with metadata only, or a table without rows."""
        match self._form:
            case ResponseForm.TABLE:
                return self._render_table([], metadata)
            case ResponseForm.WHOLE:
                return {"kind": self._path.served_kind.kind, "apiVersion": self._path.api_version, "metadata": metadata}
        return _metadata_only({"metadata": metadata})

    def render_list(self, stored_objects: Sequence[Obj], metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Render a list of objects. Raises StatusError if the client accepts only single objects."""
        match self._form:
            case ResponseForm.TABLE:
                return self._render_table(stored_objects, metadata)
            case ResponseForm.WHOLE:
                return full_object_list(stored_objects, self._path, metadata)
        if self._form is ResponseForm.METADATA:
            raise _not_acceptable_error(f"you requested {self._form.value}, but the requested object is a list")
        kind, items = ResponseForm.METADATA_LIST.value, ConvertedItems(stored_objects, _metadata_only)
        return {"kind": kind, "apiVersion": _META, "metadata": metadata, "items": items}

    def _render_table(self, stored_objects: Sequence[Obj], metadata: Mapping[str, Any]) -> dict[str, Any]:
        strategy, api_version = self._path.resource.strategy, self._path.api_version
        columns = strategy.columns(api_version)
        column_parsers = [_parse_integer_cell if each.counts else _CELL_PARSERS.get(each.type) for each in columns]
        parsers = [(i, read) for i, read in enumerate(column_parsers) if read is not None]

        def render_row(obj: Obj) -> dict[str, Any]:
            cells = _convert_cells(strategy.cells(obj, self._now, api_version), parsers)
            return {"cells": cells, **self._embedded_object(obj)}

        rows = (
            [render_row(stored_objects[0])] if len(stored_objects) == 1 else ConvertedItems(stored_objects, render_row)
        )
        table_fields = {"kind": "Table", "apiVersion": _META, "metadata": metadata}
        return {**table_fields, "columnDefinitions": _column_definitions(columns), "rows": rows}

    def _embedded_object(self, obj: Obj) -> dict[str, Any]:
        match self._include_object:
            case "None":
                return {}
            case "Object":
                return {"object": self._path.resource.strategy.render(obj, self._path.api_version)}
        # managedFields are more than half of the metadata and unused in tables; kubectl is twice as fast without them.
        metadata = dict(obj["metadata"])
        metadata.pop("managedFields", None)
        return {"object": {**_METADATA_ONLY_TYPE, "metadata": cut_metadata_times_to_seconds(metadata)}}


def full_object_list(stored_objects: Sequence[Obj], path: ResourcePath, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a list of whole objects; only items of custom resources have `apiVersion` and `kind`, as in Kubernetes."""
    api_version, render_object = path.api_version, path.resource.strategy.render
    has_types = path.resource.has_typed_items

    def render_item(obj: Obj) -> dict[str, Any]:
        fields = render_object(obj, api_version)
        return fields if has_types else {field: value for field, value in fields.items() if field not in _TYPE_FIELDS}

    items = ConvertedItems(stored_objects, render_item)
    return {"kind": f"{path.served_kind.kind}List", "apiVersion": api_version, "metadata": metadata, "items": items}


def convert_to_form(response: Response, form: ResponseForm) -> Response:
    """Return the response of a write in the form that the client accepts.

    The response is unchanged if the client accepts whole objects or a Table, or if the body is a Status.
    """
    kind = response.body.get("kind")
    if form in {ResponseForm.WHOLE, ResponseForm.TABLE} or kind == "Status":
        return response
    if "items" in response.body:
        items = ConvertedItems(response.body["items"], _metadata_only)
        body = {"kind": ResponseForm.METADATA_LIST.value, "apiVersion": _META, "metadata": {}, "items": items}
        return response._replace(body=body)
    return response._replace(body=_metadata_only(response.body))


def accepted_form(request: ApiRequest) -> ResponseForm:
    """Return the first supported form in a request's Accept header. Raises StatusError if none is supported."""
    return _parse_accept_header(request.headers.get("accept", "*/*"))


@lru_cache(maxsize=256)
def _parse_accept_header(accept_header: str) -> ResponseForm:
    for accepted in accept_header.split(","):
        media_type, *parameter_texts = (part.strip() for part in accepted.split(";"))
        if media_type not in {JSON, "application/*", "*/*", ""}:
            continue
        parameters = dict(_split_parameters(parameter_texts))
        if "as" not in parameters:
            return ResponseForm.WHOLE
        if parameters.get("g") == "meta.k8s.io" and parameters.get("v") == "v1" and parameters["as"] in _FORM_NAMES:
            return ResponseForm(parameters["as"])
    raise _not_acceptable_error(f"only the following media types are accepted: {JSON}")


def _not_acceptable_error(message: str) -> StatusError:
    return StatusError(406, "NotAcceptable", message)


_METADATA_ONLY_TYPE: Final = {"kind": ResponseForm.METADATA.value, "apiVersion": _META}
_FORM_NAMES: Final = frozenset(form.value for form in ResponseForm)


def _split_parameters(parameters: Sequence[str]) -> Iterator[tuple[str, str]]:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        yield name, value


def _column_definitions(columns: Sequence[Column]) -> list[dict[str, Any]]:
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": "name" if column.name == "Name" else column.format,
            "description": column.description or column.name,
            "priority": column.priority,
        }
        for column in columns
    ]


def _convert_cells(cells: list[Any], parsers: Sequence[tuple[int, Callable[[str], Any]]]) -> list[Any]:
    for i, parse in parsers:
        cells[i] = parse(cells[i])
    return cells


def _parse_integer_cell(text: str) -> Any:
    return int(text) if text.removeprefix("-").isdecimal() else text


def _parse_number_cell(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _parse_boolean_cell(text: str) -> Any:
    return {"true": True, "false": False}.get(text, text)


_CELL_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "integer": _parse_integer_cell,
    "number": _parse_number_cell,
    "boolean": _parse_boolean_cell,
}


def _metadata_only(obj: Obj) -> dict[str, Any]:
    return {**_METADATA_ONLY_TYPE, "metadata": cut_metadata_times_to_seconds(obj["metadata"])}
