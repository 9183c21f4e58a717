"""Request bodies to objects, and objects to the media type that the client accepts.

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

from batchyard.api.conversion import metadata_in_whole_seconds
from batchyard.api.errors import InvalidObject
from batchyard.api.manifests import DecodedObject
from batchyard.api.meta import Obj, with_metadata
from batchyard.api.printing import Column
from batchyard.api.yaml_documents import (
    FAULTS_MAX,
    NESTING_MAX,
    VALUES_MAX,
    nesting,
    outside_strings,
    read_documents,
)
from batchyard.apiserver.patch import MergeSchema
from batchyard.apiserver.protobuf import PROTOBUF, BadMessage, decoded
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
from batchyard.apiserver.resources import ResourcePath, invalid
from batchyard.base.instant import Instant

# --- bodies ---
#
# Request bodies: decoding of JSON, YAML and protobuf, and detection of duplicate fields.
#
# Source of the messages: sigs.k8s.io/json and k8s.io/apimachinery's pkg/runtime/serializer/json.


YAML: Final = "application/yaml"
#: Maximum number of documents read: one is valid, and a second one is an error.
_DOCUMENTS_MAX: Final = 2
_decode_json_body = msgspec.json.Decoder(strict=True).decode
#: The key that holds the duplicate field names of a mapping; no field has this name.
_TWICE: Final = "\0twice"


class Body(NamedTuple):
    """A decoded body, and the errors of strict decoding."""

    value: Any
    faults: Sequence[str] = ()


def content_type_of(request: ApiRequest) -> str:
    """Return the media type of a body without parameters; JSON by default."""
    return request.headers.get("content-type", JSON).partition(";")[0].strip().lower()


def read_body(request: ApiRequest) -> Body:
    """Decode the object in a body. Raises Refused if it is malformed."""
    content_type = content_type_of(request)
    if not request.body:
        return Body({})
    if content_type not in _BODY_READERS:
        accepted = f"accepted media types include: {', '.join(_BODY_READERS)}"
        raise StatusError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {accepted}")
    return _BODY_READERS[content_type](request.body)


def read_json(body: bytes) -> Body:
    """Decode JSON. Raises Refused if it is invalid."""
    try:
        text = body.decode()
        check_size(body)
        value = _decode_json_body(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise bad_request(f"the request body is not valid JSON: {error}") from error
    # Re-encoding differs if a field is duplicated, or numbers or escapes have another form. Only then is the slow check
    # for duplicates necessary.
    if msgspec.json.encode(value) == msgspec.json.format(body, indent=-1):
        return Body(value)
    return Body(value, tuple(islice(_duplicates(json.loads(text, object_pairs_hook=_marked), ""), FAULTS_MAX)))


def read_yaml(body: bytes) -> Body:
    """Decode YAML, including JSON. Raises Refused if it is invalid or not a single document."""
    if body.lstrip()[:1] == b"{":
        return read_json(body)
    try:
        documents = list(islice(read_documents(body.decode(), VALUES_MAX), _DOCUMENTS_MAX))
    except UnicodeDecodeError as error:
        raise bad_request(f"error decoding YAML: {error}") from error
    if len(documents) != 1:
        found = "none" if not documents else "several"
        raise bad_request(f"error decoding YAML: expected one document, found {found}")
    document = documents[0]
    if document.value is None:
        raise bad_request(f"error decoding YAML: {'; '.join(map(str, document.faults))}")
    return Body(document.value, tuple(f"yaml: {fault.path}: {fault.problem}" for fault in document.faults))


def _read_protobuf(body: bytes) -> Body:
    try:
        return Body(decoded(body))
    except BadMessage as error:
        raise bad_request(f"the request body cannot be decoded: {error}") from error


_BODY_READERS: Final[Mapping[str, Callable[[bytes], Body]]] = {
    JSON: read_json,
    YAML: read_yaml,
    PROTOBUF: _read_protobuf,
}


def check_size(body: bytes) -> None:
    """Reject JSON with too many values or levels of nesting, before parsing.

    Each value and each field name follows a bracket or a comma, so their count is an upper bound on the values. Only if
    the bound is too high, characters inside strings are excluded.
    """
    openings = body.count(b"[") + body.count(b"{")
    if openings <= NESTING_MAX and openings + body.count(b",") <= VALUES_MAX:
        return
    if body.count(b'"') - body.count(b'\\"') > 4 * VALUES_MAX:
        raise _too_many_values()
    outside = outside_strings(body)
    if outside.count(b"[") + outside.count(b"{") + outside.count(b",") > VALUES_MAX:
        raise _too_many_values()
    if nesting(outside) > NESTING_MAX:
        raise bad_request(f"the request body is nested more than {NESTING_MAX} levels deep")


def _too_many_values() -> StatusError:
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {VALUES_MAX} values")


def _marked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        fields[_TWICE] = [name for name in fields if counts[name] > 1]
    elif _TWICE in fields:
        del fields[_TWICE]
    return fields


def _duplicates(value: Any, path: str) -> Iterator[str]:
    """Yield an error for each duplicate field."""
    if isinstance(value, Mapping):
        for name in value.get(_TWICE, ()):
            yield f'duplicate field "{path}{name}"'
        for name, child in value.items():
            if name != _TWICE:
                yield from _duplicates(child, f"{path}{name}.")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _duplicates(item, f"{path.removesuffix('.')}[{index}].")


# --- strict ---
#
# Unknown fields: pruned, and reported according to `fieldValidation`.
#
# Source: k8s.io/apiserver, pkg/endpoints/handlers/{create,update,patch,rest}.go.


class Pruned(NamedTuple):
    """A value without unknown fields, and the errors of strict decoding about them."""

    value: Any
    faults: Sequence[str]


def pruned(value: Any, shape: MergeSchema) -> Pruned:
    """Return a value without the fields that its shape lacks; the value itself if it has none."""
    faults: list[str] = []
    return Pruned(_pruned(value, shape, "", faults), faults)


def _pruned(value: Any, shape: MergeSchema, path: str, faults: list[str]) -> Any:
    if isinstance(value, Mapping):
        return _mapping_pruned(value, shape, path, faults)
    if not isinstance(value, list):
        return value
    items = [_pruned(item, shape.item, f"{path.removesuffix('.')}[{i}].", faults) for i, item in enumerate(value)]
    return value if all(new is old for new, old in zip(items, value, strict=True)) else items


def _mapping_pruned(value: Mapping[str, Any], shape: MergeSchema, path: str, faults: list[str]) -> Mapping[str, Any]:
    kept, is_same = {}, True
    for name, child in value.items():
        if not shape.knows(name):
            is_same = False
            if len(faults) < FAULTS_MAX:
                faults.append(f'unknown field "{path}{name}"')
            continue
        kept[name] = _pruned(child, shape.below(name), f"{path}{name}.", faults)
        is_same = is_same and kept[name] is child
    return value if is_same else kept


#: Metadata fields that are dropped if empty, as in Kubernetes.
_OMITTED_EMPTY: Final = ("annotations", "finalizers", "labels", "ownerReferences")


class Sent(NamedTuple):
    """A decoded object in the storage version, and the warnings for its sender."""

    obj: dict[str, Any]
    warnings: tuple[str, ...]


def object_of_body(body: Body, path: ResourcePath, options: WriteOptions, patched_from: Obj | None = None) -> Sent:
    """Decode the object of a body or of a patched object. Raises Refused if it does not fit the path."""
    sent, is_patched = with_kind(body.value, path), patched_from is not None
    # In another version, fields that conversion requires may be absent, so the whole object is checked again.
    is_as_stored = path.version == path.info.storage_version
    found, unknown = _decoded(sent, path, patched_from if is_as_stored else None)
    reported = None if found.obj is not None else path.resource.misfit(sent)
    if reported is not None:
        raise _unreadable(sent, reported, is_patched=is_patched)
    faults = [] if options.validation == IGNORE else [*body.faults, *unknown]
    if faults and options.validation == STRICT:
        raise _unreadable(sent, f"strict decoding error: {', '.join(faults)}", is_patched=is_patched)
    if found.obj is None:
        raise invalid(InvalidObject(found.faults), path, name_of(sent))
    _check_place(found.obj["metadata"], path)
    return Sent(_without_empty(found.obj), (*found.warnings, *faults))


def with_kind(sent: Any, path: ResourcePath) -> dict[str, Any]:
    """Return the object with kind and version of the path. Raises Refused if it has others."""
    if not isinstance(sent, Mapping):
        raise bad_request("the request body is not an object")
    kind, version = sent.get("kind") or path.info.kind, sent.get("apiVersion") or path.api_version
    if kind != path.info.kind:
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {path.info.kind}')
    if version != path.api_version:
        expected = f"the expected API version ({path.api_version})"
        raise bad_request(f"the API version in the data ({version}) does not match {expected}")
    return {**sent, "kind": kind, "apiVersion": version}


def name_of(sent: Mapping[str, Any]) -> str:
    """Return the name in an object that is not yet validated."""
    metadata = sent.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""


def _decoded(sent: Mapping[str, Any], path: ResourcePath, sound: Obj | None) -> tuple[DecodedObject, Sequence[str]]:
    """Decode an object without its unknown fields; return also the strict decoding errors about them."""
    resource, namespace = path.resource, path.namespace or "default"
    if resource.drops_unknown:
        known = pruned(sent, resource.shape(path.version))
        return resource.strategy.decode(known.value, namespace), known.faults
    found = resource.strategy.decode(sent, namespace, sound)
    if found.obj is not None or not any(fault.problem == "unknown field" for fault in found.faults):
        return found, ()
    known = pruned(sent, resource.shape(path.version))
    return resource.strategy.decode(known.value, namespace), known.faults


def _without_empty(obj: dict[str, Any]) -> dict[str, Any]:
    metadata = obj["metadata"]
    empty = [name for name in _OMITTED_EMPTY if name in metadata and not metadata[name]]
    return with_metadata(obj, **dict.fromkeys(empty)) if empty else obj


def _unreadable(sent: Mapping[str, Any], reported: str, *, is_patched: bool) -> StatusError:
    """Return the error for a value of a wrong type, or for a strict decoding error."""
    if not is_patched:
        kind, version = sent["kind"], sent["apiVersion"].rpartition("/")[2]
        return bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {reported}')
    problem = f"Invalid value: {msgspec.json.encode(msgspec.json.encode(sent).decode()).decode()}: {reported}"
    causes = [{"reason": "FieldValueInvalid", "message": problem, "field": "patch"}]
    return StatusError(422, "Invalid", f' "" is invalid: patch: {problem}', {"causes": causes})


def _check_place(metadata: Mapping[str, Any], path: ResourcePath) -> None:
    if path.namespace and metadata.get("namespace") != path.namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if path.name and metadata.get("name") != path.name:
        message = f"the name of the object ({metadata.get('name', '')}) does not match"
        raise bad_request(f"{message} the name on the URL ({path.name})")


# --- content negotiation ---
#
# Representations of objects: whole, metadata only, or as a Table.
#
# Sources: k8s.io/apiserver, pkg/endpoints/handlers/{response,negotiation}.go; k8s.io/apimachinery, pkg/apis/meta/v1.


_META: Final = "meta.k8s.io/v1"
_TYPE: Final = frozenset({"apiVersion", "kind"})
_INCLUDED: Final = ("Metadata", "Object", "None")


class ResponseForm(Enum):
    """The representation of objects in a response."""

    WHOLE = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"
    METADATA_LIST = "PartialObjectMetadataList"


class ShownItems(Sequence[Any]):
    """The converted items of a list, as a lazy sequence: each access converts again."""

    def __init__(self, stored: Sequence[Any], show: Callable[[Any], Any]) -> None:
        self._stored = stored
        self._show = show

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[Any]:
        return map(self._show, self._stored)

    def __getitem__(self, index: Any) -> Any:
        found = self._stored[index]
        return ShownItems(found, self._show) if isinstance(index, slice) else self._show(found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class Representation:
    """Renders the objects of a resource as one request accepts them."""

    def __init__(self, request: ApiRequest, path: ResourcePath, now: Instant) -> None:
        self._form = form_of(request)
        self._path = path
        self._now = now
        self._included = request.query.get("includeObject") or _INCLUDED[0]
        if self._included not in _INCLUDED:
            raise bad_request(f'unrecognized includeObject value: "{self._included}"')

    def one(self, stored: Obj) -> Mapping[str, Any]:
        """Render one object."""
        match self._form:
            case ResponseForm.TABLE:
                revision = stored["metadata"].get("resourceVersion")  # absent on virtual objects
                return self._table([stored], {} if revision is None else {"resourceVersion": revision})
            case ResponseForm.WHOLE:
                return self._path.resource.strategy.show(stored, self._path.api_version)
        self.check_is_of_one()
        return _metadata_of(stored)

    def check_is_of_one(self) -> None:
        """Raise Refused if the form is only for lists."""
        if self._form is ResponseForm.METADATA_LIST:
            raise _not_acceptable(f"you requested {self._form.value}, but the requested object is not a list")

    def bookmark(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Render a bookmark: an object with metadata only, or a table without rows."""
        match self._form:
            case ResponseForm.TABLE:
                return self._table([], metadata)
            case ResponseForm.WHOLE:
                return {"kind": self._path.info.kind, "apiVersion": self._path.api_version, "metadata": metadata}
        return _metadata_of({"metadata": metadata})

    def many(self, stored: Sequence[Obj], metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Render a list of objects."""
        match self._form:
            case ResponseForm.TABLE:
                return self._table(stored, metadata)
            case ResponseForm.WHOLE:
                return whole_list(stored, self._path, metadata)
        if self._form is ResponseForm.METADATA:
            raise _not_acceptable(f"you requested {self._form.value}, but the requested object is a list")
        kind, items = ResponseForm.METADATA_LIST.value, ShownItems(stored, _metadata_of)
        return {"kind": kind, "apiVersion": _META, "metadata": metadata, "items": items}

    def _table(self, stored: Sequence[Obj], metadata: Mapping[str, Any]) -> dict[str, Any]:
        strategy, version = self._path.resource.strategy, self._path.api_version
        columns = strategy.columns(version)
        found = [_whole if column.counts else _READ.get(column.type) for column in columns]
        readers = [(i, read) for i, read in enumerate(found) if read is not None]

        def row(obj: Obj) -> dict[str, Any]:
            return {"cells": _typed(strategy.cells(obj, self._now, version), readers), **self._with(obj)}

        rows = [row(stored[0])] if len(stored) == 1 else ShownItems(stored, row)
        about = {"kind": "Table", "apiVersion": _META, "metadata": metadata}
        return {**about, "columnDefinitions": _definitions(columns), "rows": rows}

    def _with(self, obj: Obj) -> dict[str, Any]:
        match self._included:
            case "None":
                return {}
            case "Object":
                return {"object": self._path.resource.strategy.show(obj, self._path.api_version)}
        # managedFields are more than half of the metadata and unused in tables; kubectl is twice as fast without them.
        metadata = dict(obj["metadata"])
        metadata.pop("managedFields", None)
        return {"object": {**_PARTIAL, "metadata": metadata_in_whole_seconds(metadata)}}


def whole_list(stored: Sequence[Obj], path: ResourcePath, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a list of whole objects; items of built-in kinds lack `apiVersion` and `kind`, as Go's typed lists do."""
    version, show = path.api_version, path.resource.strategy.show
    has_type = path.resource.has_typed_items

    def item(obj: Obj) -> dict[str, Any]:
        shown = show(obj, version)
        return shown if has_type else {field: value for field, value in shown.items() if field not in _TYPE}

    items = ShownItems(stored, item)
    return {"kind": f"{path.info.kind}List", "apiVersion": version, "metadata": metadata, "items": items}


def in_form(answer: Response, form: ResponseForm) -> Response:
    """Convert the response of a write to the accepted metadata form, if any; a Status is unchanged."""
    kind = answer.body.get("kind")
    if form in {ResponseForm.WHOLE, ResponseForm.TABLE} or kind == "Status":
        return answer
    if "items" in answer.body:
        items = ShownItems(answer.body["items"], _metadata_of)
        body = {"kind": ResponseForm.METADATA_LIST.value, "apiVersion": _META, "metadata": {}, "items": items}
        return answer._replace(body=body)
    return answer._replace(body=_metadata_of(answer.body))


def form_of(request: ApiRequest) -> ResponseForm:
    """Return the first acceptable form of a request. Raises Refused if none is supported."""
    return _form_of(request.headers.get("accept", "*/*"))


@lru_cache(maxsize=256)
def _form_of(accept: str) -> ResponseForm:
    for accepted in accept.split(","):
        media_type, *parameters = (part.strip() for part in accepted.split(";"))
        if media_type not in {JSON, "application/*", "*/*", ""}:
            continue
        given = dict(_parameters(parameters))
        if "as" not in given:
            return ResponseForm.WHOLE
        if given.get("g") == "meta.k8s.io" and given.get("v") == "v1" and given["as"] in _FORMS:
            return ResponseForm(given["as"])
    raise _not_acceptable(f"only the following media types are accepted: {JSON}")


def _not_acceptable(reported: str) -> StatusError:
    return StatusError(406, "NotAcceptable", reported)


_PARTIAL: Final = {"kind": ResponseForm.METADATA.value, "apiVersion": _META}
_FORMS: Final = frozenset(form.value for form in ResponseForm)


def _parameters(parts: Sequence[str]) -> Iterator[tuple[str, str]]:
    for part in parts:
        name, _, value = part.partition("=")
        yield name, value


def _definitions(columns: Sequence[Column]) -> list[dict[str, Any]]:
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


def _typed(cells: list[Any], readers: Sequence[tuple[int, Callable[[str], Any]]]) -> list[Any]:
    """Convert cells of typed columns from text."""
    for i, read in readers:
        cells[i] = read(cells[i])
    return cells


def _whole(text: str) -> Any:
    return int(text) if text.removeprefix("-").isdecimal() else text


def _yaml_number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _truth(text: str) -> Any:
    return {"true": True, "false": False}.get(text, text)


_READ: Final[Mapping[str, Callable[[str], Any]]] = {
    "integer": _whole,
    "number": _yaml_number,
    "boolean": _truth,
}


def _metadata_of(obj: Obj) -> dict[str, Any]:
    return {**_PARTIAL, "metadata": metadata_in_whole_seconds(obj["metadata"])}
