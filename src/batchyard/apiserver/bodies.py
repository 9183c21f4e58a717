"""Request bodies: decoding of JSON, YAML and protobuf, and detection of duplicate fields.

Source of the messages: sigs.k8s.io/json and k8s.io/apimachinery's pkg/runtime/serializer/json.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api.yaml_documents import FAULTS_MAX, NESTING_MAX, VALUES_MAX, nesting, outside_strings, read_documents
from batchyard.apiserver.protobuf import PROTOBUF, BadMessage, decoded
from batchyard.apiserver.request import JSON, ApiRequest, StatusError, bad_request

YAML: Final = "application/yaml"
#: Maximum number of documents read: one is valid, and a second one is an error.
_DOCUMENTS_MAX: Final = 2
_decode_json = msgspec.json.Decoder(strict=True).decode
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
    if content_type not in _READERS:
        accepted = f"accepted media types include: {', '.join(_READERS)}"
        raise StatusError(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {accepted}")
    return _READERS[content_type](request.body)


def read_json(body: bytes) -> Body:
    """Decode JSON. Raises Refused if it is invalid."""
    try:
        text = body.decode()
        check_size(body)
        value = _decode_json(body)
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


_READERS: Final[Mapping[str, Callable[[bytes], Body]]] = {
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
