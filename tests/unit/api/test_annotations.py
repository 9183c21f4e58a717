"""What annotations say is read as Go reads it."""

import pytest

from batchyard.api.meta import Layer, boolean, layers, whole_number


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
def test_whole_numbers_are_decimal_and_fit_in_64_bits(text: str, value: int | None) -> None:
    assert whole_number(text) == value


def test_whole_numbers_may_have_to_fit_in_fewer_bits() -> None:
    assert whole_number("2147483647", bits=32) == 2**31 - 1
    assert whole_number("-2147483648", bits=32) == -(2**31)
    assert whole_number("2147483648", bits=32) is None


def test_truth_has_six_words_each_way() -> None:
    assert [boolean(text) for text in ("1", "t", "T", "true", "TRUE", "True")] == [True] * 6
    assert [boolean(text) for text in ("0", "f", "F", "false", "FALSE", "False")] == [False] * 6
    assert [boolean(text) for text in ("", "tRUE", "yes", " true")] == [None] * 4


def test_layers_are_read_without_fields_that_nobody_knows() -> None:
    assert layers('[{"topology": "rack", "size": 2, "colour": "red"}, {}]') == [Layer("rack", 2), Layer()]


@pytest.mark.parametrize("text", ["", "{}", "null", "[1]", '[{"size": "2"}]', "[" * 100_000, '[{"a":' + "[" * 100_000])
def test_what_is_no_list_of_layers_is_none(text: str) -> None:
    assert layers(text) is None
