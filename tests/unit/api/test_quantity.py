"""Quantities: exact, rounded up, capped and printed as Kubernetes does."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.api import meta

SUFFIXES: dict[str, int | Fraction] = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "Ki": 1024,
    "Mi": 1024**2,
    "Gi": 1024**3,
    "m": Fraction(1, 1000),
}
INVALID_QUANTITIES = [
    "",
    " ",
    "a",
    "1 ",
    " 1",
    "1K",
    "1kk",
    "12e",
    "e3",
    "1e3Ki",
    ".",
    "+",
    "--1",
    "1.2.3",
    "1_0",
    "0x1",
    "\u0661",
    "1\n",
]

quantities = st.builds(
    lambda sign, whole, fraction, suffix: f"{sign}{whole}{fraction}{suffix}",
    st.sampled_from(["", "-", "+"]),
    st.integers(0, 10**9),
    st.sampled_from(["", ".5", ".25", ".001", "."]),
    st.sampled_from(["", "n", "u", "m", "k", "M", "Ki", "Mi", "e3", "E-2"]),
)


@pytest.mark.parametrize(
    ("resource", "text", "whole"),
    [
        ("cpu", "500m", 500),
        ("cpu", 2, 2000),
        ("cpu", "0.1", 100),
        ("cpu", 0.5, 500),
        ("cpu", "1e3", 1_000_000),
        ("cpu", "0.0001", 1),
        ("memory", "10Gi", 10 * 1024**3),
        ("memory", "0.5Gi", 512 * 1024**2),
        ("memory", "1500m", 2),
        ("nvidia.com/gpu", "4", 4),
        ("memory", "-1.5", -1),
    ],
)
def test_amount_returns_whole_number_rounded_up(resource: str, text: str | int | float, whole: int) -> None:
    assert meta.amount(resource, text) == whole


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(sorted(SUFFIXES)))
def test_suffix_multiplies_quantity(number: int, suffix: str) -> None:
    assert meta.parse_quantity(f"{number}{suffix}") == number * SUFFIXES[suffix] * meta.NANO


@pytest.mark.parametrize("text", INVALID_QUANTITIES)
def test_invalid_quantity_is_rejected_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity; write it as "):
        meta.parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("4GB", "4G (powers of 1000) or 4Gi (powers of 1024)"),
        ("1K", "1k (powers of 1000) or 1Ki (powers of 1024)"),
        ("1.5gib", "1.5Gi (powers of 1024)"),
        ("4 cores", "500m, 2, 1.5, 10Gi or 1e3"),
    ],
)
def test_amount_of_bytes_is_rejected_with_notation_of_kubernetes(text: str, remedy: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity") as caught:
        meta.parse_quantity(text)
    assert str(caught.value) == f"'{text}' is not a quantity; write it as {remedy}"


def test_boolean_is_rejected_even_after_parsing_equal_integer() -> None:
    meta.parse_quantity(1)
    with pytest.raises(ValueError, match="True is not a quantity"):
        meta.parse_quantity(True)


def test_error_for_long_text_is_short() -> None:
    with pytest.raises(ValueError, match="is not a quantity") as caught:
        meta.parse_quantity("9" * 5000)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("text", ["1e9999", "9223372036854775808", "12E", "-12E"])
def test_quantity_is_capped_at_64_bits(text: str) -> None:
    assert abs(meta.parse_quantity(text)) == meta.INT64_MAX * meta.NANO


def test_fraction_below_nano_is_rounded_away_from_zero() -> None:
    assert meta.parse_quantity("0.1n") == 1
    assert meta.parse_quantity("-0.1n") == -1


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("1.5", "1500m"),
        ("2000", "2k"),
        ("1024Mi", "1Gi"),
        ("0.5Gi", "512Mi"),
        ("1.5Ki", "1536"),
        ("0.5Ki", "512"),
        ("1E5", "100e3"),
        ("1e-3", "1e-3"),
        ("0e9", "0"),
        (4, "4"),
    ],
)
def test_canonical_form_keeps_suffix_family(text: str | int, canonical: str) -> None:
    assert meta.canonical_quantity(text) == canonical


@settings(deadline=None)
@given(quantities)
def test_canonical_form_has_equal_value_and_is_idempotent(text: str) -> None:
    canonical = meta.canonical_quantity(text)
    assert meta.parse_quantity(canonical) == meta.parse_quantity(text)
    assert meta.canonical_quantity(canonical) == canonical


@settings(deadline=None)
@given(st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "hugepages-2Mi"]), st.integers(0, 10**15))
def test_formatted_amount_round_trips(resource: str, whole: int) -> None:
    assert meta.amount(resource, meta.format_amount(resource, whole)) == whole


@settings(deadline=None)
@given(quantities, quantities)
def test_amounts_keep_order_of_quantities(one: str, other: str) -> None:
    if meta.parse_quantity(one) <= meta.parse_quantity(other):
        assert meta.amount("cpu", one) <= meta.amount("cpu", other)


@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_largest_quota_is_unlimited(resource: str) -> None:
    assert meta.is_unlimited(meta.quota_amount(resource, str(meta.INT64_MAX)))
    assert not meta.is_unlimited(meta.quota_amount(resource, "1e15"))
    assert meta.format_amount(resource, meta.UNLIMITED) == "<unlimited>"


def test_unlimited_stays_unlimited_after_addition_and_subtraction() -> None:
    assert meta.is_unlimited(meta.UNLIMITED - meta.INT64_MAX)
    assert meta.is_unlimited(2 * meta.UNLIMITED)


@pytest.mark.parametrize(
    ("resource", "whole", "text"),
    [
        ("cpu", 1500, "1500m"),
        ("cpu", 2_000_000, "2k"),
        ("memory", 1024**3, "1Gi"),
        ("memory", 1000, "1k"),
        ("gpu", 7, "7"),
    ],
)
def test_amounts_are_printed_in_canonical_form(resource: str, whole: int, text: str) -> None:
    assert meta.format_amount(resource, whole) == text
