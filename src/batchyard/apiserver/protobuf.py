"""Protobuf requests, which typed clients of Kubernetes send for native kinds; responses are always JSON."""

import base64
import pkgutil
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.api.times import format_micro_time, format_time
from batchyard.api.yaml_documents import (
    NESTING_MAX,
    VALUES_MAX,
    is_too_deep,
)
from batchyard.base.instant import SECOND, Instant

Value: TypeAlias = int | bytes
_VARINT_MAX = 10  # bytes


class FieldBudget:
    """The remaining number of fields of a message, including nested ones."""

    def __init__(self, left: int) -> None:
        self._left = left

    def spend(self) -> None:
        """Count a field. Raises BadMessage if the limit is exceeded."""
        self._left -= 1
        if self._left < 0:
            raise BadMessage("too many values")


class BadMessage(Exception):  # noqa: N818 - named after the condition
    """The bytes are not a valid message."""


def fields_of(message: bytes, allowance: FieldBudget | None = None) -> Iterator[tuple[int, Value]]:
    """Yield number and value of each field: an unsigned integer for varints, bytes for other wire types."""
    at = 0
    while at < len(message):
        if allowance is not None:
            allowance.spend()
        tag, at = _varint(message, at)
        value, at = _value(message, at, tag & 7)
        yield tag >> 3, value


def signed(value: int) -> int:
    """Convert a varint to a signed 64-bit integer."""
    return value - (1 << 64) if value >> 63 else value


def _value(message: bytes, at: int, wire_type: int) -> tuple[Value, int]:
    if wire_type == 0:
        return _varint(message, at)
    if wire_type == 2:
        length, at = _varint(message, at)
    elif wire_type in {1, 5}:
        length = 8 if wire_type == 1 else 4
    else:
        raise BadMessage(f"wire type {wire_type} at byte {at}")
    if length > len(message) - at:
        raise BadMessage(f"a field of {length} bytes at byte {at} exceeds the message")
    return message[at : at + length], at + length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(message[at : at + _VARINT_MAX]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + number + 1
    raise BadMessage(f"the varint at byte {at} is unterminated")


PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\0"
_DEPTH_MAX: Final = 64
#: Message prefixes of groups, if they differ from the first part of the group name.
_PACKAGES: Final = {"": "core", "meta.k8s.io": "meta"}
_decode_json: Final = msgspec.json.Decoder(strict=True).decode


class _Field(NamedTuple):
    name: str
    type: str
    is_list: bool
    is_map: bool
    keeps_zero: bool


def decoded(body: bytes) -> dict[str, Any]:
    """Decode the object of a request body. Raises BadMessage if it is malformed or of an unknown kind."""
    if not body.startswith(_MAGIC):
        raise BadMessage("it lacks the prefix of Kubernetes protobuf")
    envelope = dict(fields_of(body[len(_MAGIC) :]))
    about = {number: _text(value) for number, value in fields_of(_bytes(envelope.get(1, b"")))}
    api_version, kind = about.get(1, ""), about.get(2, "")
    if kind == "DeleteOptions":
        api_version = "meta.k8s.io/v1"
    message = _message_name(api_version, kind)
    if message not in _messages():
        raise BadMessage(f'no protobuf message is known for {kind} in "{api_version}"; send JSON')
    return {
        "apiVersion": api_version,
        "kind": kind,
        **_object(_bytes(envelope.get(2, b"")), message, DecodingLimits(_DEPTH_MAX, FieldBudget(VALUES_MAX))),
    }


def _message_name(api_version: str, kind: str) -> str:
    group, _, version = api_version.rpartition("/")
    return f"{_PACKAGES.get(group) or group.partition('.')[0]}.{version}.{kind}"


@cache
def _messages() -> Mapping[str, Mapping[int, _Field]]:
    content = pkgutil.get_data(__package__, "protobuf_messages.json")
    assert content is not None, "the package lacks its table of messages"
    table = msgspec.json.decode(content, type=dict[str, dict[int, str]])
    return {name: {number: _field(spec) for number, spec in fields.items()} for name, fields in table.items()}


def _field(spec: str) -> _Field:
    name, _, expression = spec.partition(" ")
    inner = expression.removesuffix("*")
    is_list, is_map = inner.startswith("["), inner.startswith("{")
    return _Field(name, inner.strip("[]{}"), is_list, is_map, expression.endswith("*"))


class DecodingLimits(NamedTuple):
    """The remaining nesting depth and number of fields."""

    depth: int
    allowance: FieldBudget


def _object(message: bytes, name: str, reach: DecodingLimits) -> dict[str, Any]:
    if not reach.depth:
        raise BadMessage(f"objects are nested more than {_DEPTH_MAX} levels deep")
    fields = _messages()[name]
    result: dict[str, Any] = {}
    within = DecodingLimits(reach.depth - 1, reach.allowance)
    for number, value in fields_of(message, reach.allowance):
        field = fields.get(number)
        if field is not None:
            _take(result, field, value, within)
    return result


def _take(result: dict[str, Any], field: _Field, value: Value, reach: DecodingLimits) -> None:
    """Store the value of a field in an object."""
    if field.is_map:
        entry = dict(fields_of(_bytes(value)))
        held = _plain(field.type, entry.get(2, b""), reach)
        result.setdefault(field.name, {})[_text(entry.get(1, b""))] = held
        return
    plain = _plain(field.type, value, reach)
    if field.is_list:
        result.setdefault(field.name, []).append(plain)
    elif not field.name:
        result.update(plain)
    elif plain is not None and (plain or field.keeps_zero):
        result[field.name] = plain


def _plain(of: str, value: Value, reach: DecodingLimits) -> Any:
    """Convert a value of a type to JSON."""
    if "." in of:
        return _object(_bytes(value), of, reach)
    reader = _READERS.get(of)
    assert reader is not None, f"the table has no type {of}"
    return reader(value)


def _text(value: Value) -> str:
    try:
        return _bytes(value).decode()
    except UnicodeDecodeError as error:
        raise BadMessage(f"a text is not UTF-8: {error}") from error


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise BadMessage("expected a string or an object, found a number")
    return value


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise BadMessage("expected a number, found a string or an object")
    return signed(value)


def _double(value: Value) -> float:
    raw = _bytes(value)
    if len(raw) != 8:
        raise BadMessage("a double must have 8 bytes")
    number: float = struct.unpack("<d", raw)[0]
    return number


def _instant(value: Value) -> Instant | None:
    """Return the instant of a Timestamp message; None if it is zero."""
    parts = {number: _number(part) for number, part in fields_of(_bytes(value))}
    seconds = parts.get(1, 0)
    if not 0 <= seconds < 253_402_300_800:
        raise BadMessage(f"{seconds} is not a valid time")
    return seconds * SECOND + parts.get(2, 0) // 1000 % SECOND or None


def _time(value: Value) -> str | None:
    instant = _instant(value)
    return None if instant is None else format_time(instant // SECOND * SECOND)


def _micro_time(value: Value) -> str | None:
    instant = _instant(value)
    return None if instant is None else format_micro_time(instant)


def _quantity(value: Value) -> str:
    return _text(dict(fields_of(_bytes(value))).get(1, b""))


def _int_or_string(value: Value) -> int | str:
    parts = dict(fields_of(_bytes(value)))
    return _text(parts.get(3, b"")) if parts.get(1, 0) else _number(parts.get(2, 0))


def _raw(value: Value) -> Any:
    """Decode embedded JSON."""
    raw = _bytes(dict(fields_of(_bytes(value))).get(1, b""))
    try:
        if is_too_deep(raw.decode()):
            raise BadMessage(f"embedded JSON is nested more than {NESTING_MAX} levels deep")
        return _decode_json(raw) if raw else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadMessage(f"embedded JSON is invalid: {error}") from error


def _items(value: Value) -> list[str]:
    return [_text(item) for _, item in fields_of(_bytes(value))]


_READERS: Final[Mapping[str, Any]] = {
    "string": _text,
    "int": _number,
    "bool": lambda value: bool(_number(value)),
    "double": _double,
    "bytes": lambda value: base64.b64encode(_bytes(value)).decode(),
    "time": _time,
    "micro-time": _micro_time,
    "quantity": _quantity,
    "int-or-string": _int_or_string,
    "raw": _raw,
    "items": _items,
}
