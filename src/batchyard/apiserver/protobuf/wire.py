"""The wire format of protobuf: the fields of a message as they come. Source: protobuf.dev, "Encoding"."""

from collections.abc import Iterator
from typing import TypeAlias

Value: TypeAlias = int | bytes
_VARINT_MAX = 10  # bytes


class Allowance:
    """How many more fields may be read of one message, with all that lie within it."""

    def __init__(self, left: int) -> None:
        self._left = left

    def spend(self) -> None:
        """Count a field; BadMessage where that is one too many."""
        self._left -= 1
        if self._left < 0:
            raise BadMessage("it has too many values")


class BadMessage(ValueError):  # noqa: N818 - as a person would say it
    """The bytes are no message; says why."""


def fields_of(message: bytes, allowance: Allowance | None = None) -> Iterator[tuple[int, Value]]:
    """The number and the value of each field: of a varint the unsigned number, of all else the bytes."""
    at = 0
    while at < len(message):
        if allowance is not None:
            allowance.spend()
        tag, at = _varint(message, at)
        value, at = _value(message, at, tag & 7)
        yield tag >> 3, value


def signed(value: int) -> int:
    """A varint as the 64-bit integer that it stands for."""
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
        raise BadMessage(f"a field of {length} bytes at byte {at} goes beyond the end")
    return message[at : at + length], at + length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(message[at : at + _VARINT_MAX]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + number + 1
    raise BadMessage(f"a number at byte {at} has no end")
