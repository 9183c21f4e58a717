"""Annotation values are parsed as Go parses them."""

import pytest

from batchyard.api.meta import parse_boolean, parse_integer
from batchyard.api.validation.topology import SliceLayer, parse_slice_layers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("+4", 4),
        ("-4", -4),
        ("0", 0),
        ("0004", 4),
        ("0" * 5000 + "4", 4),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        *((text, None) for text in ("", "+", "4 ", "1_0", "٤", "4.0", "0x4", "++4", "9223372036854775808", "9" * 5000)),
    ],
)
def test_whole_number_accepts_decimal_within_64_bits(text: str, value: int | None) -> None:
    assert parse_integer(text) == value


def test_whole_number_rejects_value_over_given_bits() -> None:
    assert parse_integer("2147483647", bits=32) == 2**31 - 1
    assert parse_integer("-2147483648", bits=32) == -(2**31)
    assert parse_integer("2147483648", bits=32) is None


def test_boolean_accepts_go_spellings_only() -> None:
    assert [parse_boolean(text) for text in ("1", "t", "T", "true", "TRUE", "True")] == [True] * 6
    assert [parse_boolean(text) for text in ("0", "f", "F", "false", "FALSE", "False")] == [False] * 6
    assert [parse_boolean(text) for text in ("", "tRUE", "yes", " true")] == [None] * 4


def test_layers_ignore_unknown_fields() -> None:
    assert parse_slice_layers('[{"topology": "rack", "size": 2, "colour": "red"}, {}]') == [
        SliceLayer("rack", 2),
        SliceLayer(),
    ]


@pytest.mark.parametrize("text", ["", "{}", "null", "[1]", '[{"size": "2"}]', "[" * 100_000, '[{"a":' + "[" * 100_000])
def test_layers_returns_none_for_invalid_text(text: str) -> None:
    assert parse_slice_layers(text) is None
