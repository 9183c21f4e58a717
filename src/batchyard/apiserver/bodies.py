"""The bodies of requests: JSON, YAML or protobuf as values, and what strict decoding has against them.

Source of the words: sigs.k8s.io/json and k8s.io/apimachinery's pkg/runtime/serializer/json.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from batchyard.api.yaml_documents import FAULTS_MAX, NESTING_MAX, VALUES_MAX, nesting, outside_strings, read_documents
from batchyard.apiserver.protobuf import PROTOBUF, BadMessage, decoded
from batchyard.apiserver.request import JSON, Refused, Request, bad_request

YAML: Final = "application/yaml"
#: Documents of a body that are read: one is allowed, and two show that there are more.
_DOCUMENTS_MAX: Final = 2
_decode_json = msgspec.json.Decoder(strict=True).decode
#: Where a mapping keeps the names that it was given twice; no name of a field is like it.
_TWICE: Final = "\0twice"


class Body(NamedTuple):
    """A body, and what strict decoding has against it."""

    value: Any
    faults: Sequence[str] = ()


def content_type_of(request: Request) -> str:
    """The media type of a body, without its parameters; JSON where nothing is said."""
    return request.headers.get("content-type", JSON).partition(";")[0].strip().lower()


def read_body(request: Request) -> Body:
    """The body of a request that sends an object; Refused if it is nothing that can be read."""
    content_type = content_type_of(request)
    if not request.body:
        return Body({})
    if content_type not in _READERS:
        accepted = f"accepted media types include: {', '.join(_READERS)}"
        raise Refused(415, "UnsupportedMediaType", f"the body of the request was in an unknown format - {accepted}")
    return _READERS[content_type](request.body)


def read_json(body: bytes) -> Body:
    """A JSON text; Refused if it is none."""
    try:
        text = body.decode()
        check_size(body)
        value = _decode_json(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise bad_request(f"the body of the request is no JSON: {error}") from error
    # What is written back is what was read unless a field came twice, or the text has numbers or escapes in another
    # form; only then is it worth looking closely.
    if msgspec.json.encode(value) == msgspec.json.format(body, indent=-1):
        return Body(value)
    return Body(value, tuple(islice(_duplicates(json.loads(text, object_pairs_hook=_marked), ""), FAULTS_MAX)))


def read_yaml(body: bytes) -> Body:
    """A YAML text, of which JSON is one; Refused if it is none, or more than one document."""
    if body.lstrip()[:1] == b"{":
        return read_json(body)
    try:
        documents = list(islice(read_documents(body.decode(), VALUES_MAX), _DOCUMENTS_MAX))
    except UnicodeDecodeError as error:
        raise bad_request(f"error decoding YAML: {error}") from error
    if len(documents) != 1:
        found = "none" if not documents else "more"
        raise bad_request(f"error decoding YAML: there is one document to a request, not {found}")
    document = documents[0]
    if document.value is None:
        raise bad_request(f"error decoding YAML: {'; '.join(map(str, document.faults))}")
    return Body(document.value, tuple(f"yaml: {fault.path}: {fault.problem}" for fault in document.faults))


def _read_protobuf(body: bytes) -> Body:
    try:
        return Body(decoded(body))
    except BadMessage as error:
        raise bad_request(f"the body of the request cannot be read: {error}") from error


_READERS: Final[Mapping[str, Callable[[bytes], Body]]] = {
    JSON: read_json,
    YAML: read_yaml,
    PROTOBUF: _read_protobuf,
}


def check_size(body: bytes) -> None:
    """Refuse a JSON text with too many values, or nested too deeply, before it is parsed.

    Each value, and each name of a field, follows a bracket or a comma. So what is cheap to count is no less than the
    values, and only where that is too much the strings are left out.
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
        raise bad_request(f"the body of the request is nested more than {NESTING_MAX} deep")


def _too_many_values() -> Refused:
    return Refused(413, "RequestEntityTooLarge", f"Request entity too large: limit is {VALUES_MAX} values")


def _marked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        fields[_TWICE] = [name for name in fields if counts[name] > 1]
    elif _TWICE in fields:
        del fields[_TWICE]
    return fields


def _duplicates(value: Any, path: str) -> Iterator[str]:
    """The fields that are there twice."""
    if isinstance(value, Mapping):
        for name in value.get(_TWICE, ()):
            yield f'duplicate field "{path}{name}"'
        for name, child in value.items():
            if name != _TWICE:
                yield from _duplicates(child, f"{path}{name}.")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _duplicates(item, f"{path.removesuffix('.')}[{index}].")
