"""Conversion of instants to RFC 3339 and back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.api.times import format_second, format_time, parse_time
from batchyard.base.instant import HOUR, MILLISECOND, MINUTE, SECOND

YEAR_9999_END = 253_402_300_800 * SECOND - 1


def test_format_time_omits_fraction_for_whole_seconds() -> None:
    assert format_time(0) == "1970-01-01T00:00:00Z"
    assert format_time(1_767_225_600 * SECOND) == "2026-01-01T00:00:00Z"


def test_format_time_prints_microseconds() -> None:
    assert format_time(250 * MILLISECOND) == "1970-01-01T00:00:00.250000Z"
    assert format_time(1) == "1970-01-01T00:00:00.000001Z"


def test_times_for_people_have_no_fraction() -> None:
    assert format_second(59 * SECOND + 999_999) == "1970-01-01T00:00:59Z"


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("1970-01-01T00:00:01Z", SECOND),
        ("1970-01-01T00:00:00.5Z", 500 * MILLISECOND),
        ("1970-01-01T00:00:00.1234567Z", 123_456),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00-02:30", 2 * HOUR + 30 * MINUTE),
        ("1969-12-31T23:59:59Z", -SECOND),
    ],
)
def test_parse_time_accepts_all_time_zones(text: str, instant: int) -> None:
    assert parse_time(text) == instant


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "2026-01-01", "2026-01-01 00:00:00Z", "2026-01-01T00:00:00", "2026-02-30T00:00:00Z"),
        *("0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01", "0000-01-01T00:00:00Z"),
        *("2026-01-01T25:00:00Z", "2026-01-01T00:00:00+25:00", "٢٠٢٦-01-01T00:00:00Z", "2026-01-01T00:00:00Z\n"),
    ],
)
def test_parse_time_rejects_invalid_text_with_example(text: str) -> None:
    with pytest.raises(ValueError, match="write it as 2026-01-01T00:00:00Z"):
        parse_time(text)


@settings(deadline=None)
@given(st.integers(min_value=-(10**15), max_value=YEAR_9999_END))
def test_formatted_time_round_trips(instant: int) -> None:
    assert parse_time(format_time(instant)) == instant


@pytest.mark.parametrize(
    ("instant", "text"),
    [
        (YEAR_9999_END + 1, "9999-12-31T23:59:59.999999Z"),
        (2**63 * SECOND, "9999-12-31T23:59:59.999999Z"),
        (-(2**63) * SECOND, "0001-01-01T00:00:00Z"),
    ],
)
def test_format_time_clamps_to_years_1_to_9999(instant: int, text: str) -> None:
    assert format_time(instant) == text


@settings(deadline=None)
@given(st.lists(st.integers(min_value=0, max_value=YEAR_9999_END // SECOND), min_size=2))
def test_formatted_whole_seconds_sort_chronologically(seconds: list[int]) -> None:
    texts = [format_time(each * SECOND) for each in sorted(seconds)]
    assert texts == sorted(texts)
