"""The definitions of version 2 as the message that client-go reads of them.

It finds how to merge objects of kinds it has no types for there (`UnstructuredExtractor`). Which paths there are is not
in it: kubectl reads them for kinds that nobody patches, such as List, and without them leaves the judgement to the
server.
Source: github.com/google/gnostic-models, openapiv2/OpenAPIv2.proto; k8s.io/kube-openapi, pkg/util/proto.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

#: Fields of Schema that hold a text.
_TEXTS: Final = {"$ref": 1, "format": 2, "title": 3, "description": 4}
#: Field numbers, by the message they stand in.
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
    """A document of OpenAPI v2, without its paths and without the bounds that its schemas set."""
    about = document["info"]
    return b"".join(
        (
            _text(_SWAGGER, document["swagger"]),
            _part(_INFO, _text(1, about["title"]) + _text(2, about["version"])),
            _part(_DEFINITIONS, _named(1, document["definitions"].items())),
        )
    )


def _named(number: int, schemas: Iterable[tuple[str, Any]]) -> bytes:
    return b"".join(_part(number, _text(_NAME, name) + _part(_VALUE, _schema(schema))) for name, schema in schemas)


def _schema(schema: Mapping[str, Any]) -> bytes:
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
        yield _part(_ADDITIONAL, _part(1, _schema(value)) if is_schema else _BOOLEAN + bytes([value]))
    elif word == "type":
        yield _part(_TYPE, _text(1, value))
    elif word == "items":
        yield _part(_ITEMS, _part(1, _schema(value)))
    elif word == "allOf":
        yield from (_part(_ALL_OF, _schema(each)) for each in value)
    elif word == "properties":
        yield _part(_PROPERTIES, _named(1, value.items()))


def _any(value: Any) -> bytes:
    """A value as YAML, of which JSON is a part."""
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
