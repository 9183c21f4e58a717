"""Names and UIDs derived from a seed."""

import uuid

import pytest

from batchyard.base.primitives import fnv1a_64, uid_for


def test_uid_is_valid_version_4_uuid() -> None:
    created = uuid.UUID(uid_for(1, "a"))
    assert (created.version, created.variant) == (4, uuid.RFC_4122)


def test_equal_seed_and_parts_return_equal_uid() -> None:
    assert uid_for(7, "a", "b") == uid_for(7, "a", "b")


def test_different_seed_or_parts_return_different_uid() -> None:
    created = [
        uid_for(0),
        uid_for(1),
        uid_for(0, "a"),
        uid_for(0, "a", "b"),
        uid_for(0, "ab"),
        uid_for(0, "a", "b", ""),
    ]
    assert len(set(created)) == len(created)


@pytest.mark.parametrize(
    ("text", "value"), [("", 0xCBF29CE484222325), ("a", 0xAF63DC4C8601EC8C), ("foobar", 0x85944171F73967E8)]
)
def test_fnv1a_64_returns_reference_values(text: str, value: int) -> None:
    assert fnv1a_64(text) == value


def test_fnv1a_64_hashes_utf_8_bytes() -> None:
    value = fnv1a_64("")
    for byte in (0xC3, 0xA9):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    assert fnv1a_64("é") == value
