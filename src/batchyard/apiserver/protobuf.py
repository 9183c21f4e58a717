"""Decoding of protobuf requests, which typed clients of Kubernetes send for native kinds; responses are JSON."""

import base64
import pkgutil
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from batchyard.api.times import format_micro_time, format_time
from batchyard.api.yaml_documents import NESTING_MAX, VALUES_MAX, is_too_deep
from batchyard.base.instant import SECOND, Instant

FieldValue: TypeAlias = int | bytes
_VARINT_LENGTH_MAX = 10  # bytes


class FieldBudget:
    """How many more fields a protobuf message may have, including the fields of nested messages."""

    def __init__(self, remaining_count: int) -> None:
        self._remaining = remaining_count

    def count_field(self) -> None:
        """Count one field. Raises BadMessage if the message has too many."""
        self._remaining -= 1
        if self._remaining < 0:
            raise BadMessage("the message has too many fields; send a smaller object")


class BadMessage(Exception):  # noqa: N818 - named after the condition
    """The bytes are not a protobuf message that this module can decode."""


def fields_of(message: bytes, budget: FieldBudget | None = None) -> Iterator[tuple[int, FieldValue]]:
    """Yield (field number, value) of each field in a protobuf message.

    The value is an integer for a varint, and bytes for other wire types.

    Raises BadMessage if the message is malformed, or has more fields than `budget` allows.
    """
    position = 0
    while position < len(message):
        if budget is not None:
            budget.count_field()
        tag, position = _read_varint(message, position)
        value, position = _read_value(message, position, tag & 7)
        yield tag >> 3, value


def to_signed(value: int) -> int:
    """Convert a protobuf varint to a signed 64-bit integer."""
    return value - (1 << 64) if value >> 63 else value


def _read_value(message: bytes, position: int, wire_type: int) -> tuple[FieldValue, int]:
    if wire_type == 0:
        return _read_varint(message, position)
    if wire_type == 2:
        value_length, position = _read_varint(message, position)
    elif wire_type in {1, 5}:
        value_length = 8 if wire_type == 1 else 4
    else:
        raise BadMessage(f"unsupported wire type {wire_type} at byte {position}")
    if value_length > len(message) - position:
        raise BadMessage(f"a field of {value_length} bytes at byte {position} exceeds the message")
    return message[position : position + value_length], position + value_length


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index, byte in enumerate(message[position : position + _VARINT_LENGTH_MAX]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + index + 1
    raise BadMessage(f"the varint at byte {position} is unterminated")


PROTOBUF: Final = "application/vnd.kubernetes.protobuf"
_MAGIC_PREFIX: Final = b"k8s\0"
_DEPTH_MAX: Final = 64
#: Message prefixes of groups, if they differ from the first part of the group name.
_PACKAGES_BY_GROUP: Final = {"": "core", "meta.k8s.io": "meta"}
_decode_json: Final = msgspec.json.Decoder(strict=True).decode


class _ProtobufField(NamedTuple):
    name: str
    type: str
    is_list: bool
    is_map: bool
    keeps_zero: bool


def decode_protobuf_object(body: bytes) -> dict[str, Any]:
    """Decode the object of a protobuf request body.

    Raises BadMessage if the body is malformed, too deep or too large, or its kind is unknown.
    """
    if not body.startswith(_MAGIC_PREFIX):
        raise BadMessage("the body does not start with the prefix k8s\\0 of Kubernetes protobuf")
    envelope = dict(fields_of(body[len(_MAGIC_PREFIX) :]))
    type_meta = {number: _decode_text(value) for number, value in fields_of(_expect_bytes(envelope.get(1, b"")))}
    api_version, kind = type_meta.get(1, ""), type_meta.get(2, "")
    if kind == "DeleteOptions":
        api_version = "meta.k8s.io/v1"
    message_name = _message_name(api_version, kind)
    if message_name not in _message_tables():
        raise BadMessage(f'no protobuf message is known for {kind} in "{api_version}"; send JSON')
    limits = DecodingLimits(_DEPTH_MAX, FieldBudget(VALUES_MAX))
    decoded_object = _decode_object(_expect_bytes(envelope.get(2, b"")), message_name, limits)
    return {"apiVersion": api_version, "kind": kind, **decoded_object}


def _message_name(api_version: str, kind: str) -> str:
    group, _, version = api_version.rpartition("/")
    return f"{_PACKAGES_BY_GROUP.get(group) or group.partition('.')[0]}.{version}.{kind}"


@cache
def _message_tables() -> Mapping[str, Mapping[int, _ProtobufField]]:
    encoded_tables = pkgutil.get_data(__package__, "protobuf_messages.json")
    assert encoded_tables is not None, "the package data file protobuf_messages.json is missing"
    table = msgspec.json.decode(encoded_tables, type=dict[str, dict[int, str]])
    return {name: {number: _parse_field(spec) for number, spec in fields.items()} for name, fields in table.items()}


def _parse_field(spec: str) -> _ProtobufField:
    name, _, expression = spec.partition(" ")
    type_spec = expression.removesuffix("*")
    is_list, is_map = type_spec.startswith("["), type_spec.startswith("{")
    return _ProtobufField(name, type_spec.strip("[]{}"), is_list, is_map, expression.endswith("*"))


class DecodingLimits(NamedTuple):
    """How much deeper a protobuf message may nest, and how many more fields it may have."""

    depth: int
    budget: FieldBudget


def _decode_object(message: bytes, name: str, limits: DecodingLimits) -> dict[str, Any]:
    if not limits.depth:
        raise BadMessage(f"objects are nested more than {_DEPTH_MAX} levels deep")
    field_table = _message_tables()[name]
    decoded_object: dict[str, Any] = {}
    nested_limits = DecodingLimits(limits.depth - 1, limits.budget)
    for number, value in fields_of(message, limits.budget):
        field = field_table.get(number)
        if field is not None:
            _store_field(decoded_object, field, value, nested_limits)
    return decoded_object


def _store_field(result: dict[str, Any], field: _ProtobufField, value: FieldValue, limits: DecodingLimits) -> None:
    if field.is_map:
        map_entry = dict(fields_of(_expect_bytes(value)))
        entry_value = _convert_value(field.type, map_entry.get(2, b""), limits)
        result.setdefault(field.name, {})[_decode_text(map_entry.get(1, b""))] = entry_value
        return
    converted_value = _convert_value(field.type, value, limits)
    if field.is_list:
        result.setdefault(field.name, []).append(converted_value)
    elif not field.name:
        result.update(converted_value)
    elif converted_value is not None and (converted_value or field.keeps_zero):
        result[field.name] = converted_value


def _convert_value(type_name: str, value: FieldValue, limits: DecodingLimits) -> Any:
    if "." in type_name:
        return _decode_object(_expect_bytes(value), type_name, limits)
    decode_value = _VALUE_DECODERS.get(type_name)
    assert decode_value is not None, f"protobuf_messages.json names the unknown type {type_name}"
    return decode_value(value)


def _decode_text(value: FieldValue) -> str:
    try:
        return _expect_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise BadMessage(f"byte {error.start} of a string is not UTF-8") from error


def _expect_bytes(value: FieldValue) -> bytes:
    if isinstance(value, int):
        raise BadMessage("expected a length-delimited field (string, bytes or message), found a numeric field")
    return value


def _decode_integer(value: FieldValue) -> int:
    if not isinstance(value, int):
        raise BadMessage("expected a numeric field, found a length-delimited field (string, bytes or message)")
    return to_signed(value)


def _decode_double(value: FieldValue) -> float:
    raw = _expect_bytes(value)
    if len(raw) != 8:
        raise BadMessage(f"a double must have 8 bytes, not {len(raw)}")
    number: float = struct.unpack("<d", raw)[0]
    return number


def _decode_instant(value: FieldValue) -> Instant | None:
    fields = {number: _decode_integer(field_value) for number, field_value in fields_of(_expect_bytes(value))}
    epoch_seconds = fields.get(1, 0)
    if not 0 <= epoch_seconds < 253_402_300_800:
        raise BadMessage(f"the time of {epoch_seconds} seconds since 1970 is out of range")
    return epoch_seconds * SECOND + fields.get(2, 0) // 1000 % SECOND or None


def _decode_time(value: FieldValue) -> str | None:
    instant = _decode_instant(value)
    return None if instant is None else format_time(instant // SECOND * SECOND)


def _decode_micro_time(value: FieldValue) -> str | None:
    instant = _decode_instant(value)
    return None if instant is None else format_micro_time(instant)


def _decode_quantity(value: FieldValue) -> str:
    return _decode_text(dict(fields_of(_expect_bytes(value))).get(1, b""))


def _decode_int_or_string(value: FieldValue) -> int | str:
    fields = dict(fields_of(_expect_bytes(value)))
    return _decode_text(fields.get(3, b"")) if fields.get(1, 0) else _decode_integer(fields.get(2, 0))


def _decode_raw_json(value: FieldValue) -> Any:
    raw = _expect_bytes(dict(fields_of(_expect_bytes(value))).get(1, b""))
    try:
        if is_too_deep(raw.decode()):
            raise BadMessage(f"embedded JSON is nested more than {NESTING_MAX} levels deep")
        return _decode_json(raw) if raw else None
    except UnicodeDecodeError as error:
        raise BadMessage(f"embedded JSON is invalid: byte {error.start} is not UTF-8") from error
    except RecursionError as error:
        raise BadMessage("embedded JSON is nested too deeply") from error
    except msgspec.DecodeError as error:
        raise BadMessage(f"embedded JSON is invalid: {error}") from error


def _decode_string_list(value: FieldValue) -> list[str]:
    return [_decode_text(item) for _, item in fields_of(_expect_bytes(value))]


_VALUE_DECODERS: Final[Mapping[str, Any]] = {
    "string": _decode_text,
    "int": _decode_integer,
    "bool": lambda value: bool(_decode_integer(value)),
    "double": _decode_double,
    "bytes": lambda value: base64.b64encode(_expect_bytes(value)).decode(),
    "time": _decode_time,
    "micro-time": _decode_micro_time,
    "quantity": _decode_quantity,
    "int-or-string": _decode_int_or_string,
    "raw": _decode_raw_json,
    "items": _decode_string_list,
}
