"""The protobuf wire format: iteration over the fields of a message. Source: protobuf.dev, "Encoding"."""

from collections.abc import Iterator
from typing import TypeAlias

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


class BadMessage(ValueError):  # noqa: N818 - named after the condition
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
