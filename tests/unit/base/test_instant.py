"""Durations as Go writes them, as kubectl prints ages, and in seconds."""

import pytest

from batchyard.base.instant import HOUR, MILLISECOND, MINUTE, SECOND, duration_seconds, format_age, parse_duration

DAY = 24 * HOUR
YEAR = 365 * DAY


@pytest.mark.parametrize(
    ("duration", "age"),
    [
        (-2 * SECOND, "<invalid>"),
        (-2 * SECOND + 1, "0s"),
        (999 * MILLISECOND, "0s"),
        (119 * SECOND, "119s"),
        (2 * MINUTE, "2m"),
        (3 * MINUTE + 20 * SECOND, "3m20s"),
        (10 * MINUTE - 1, "9m59s"),
        (10 * MINUTE + 59 * SECOND, "10m"),
        (3 * HOUR - 1, "179m"),
        (3 * HOUR, "3h"),
        (5 * HOUR + 12 * MINUTE, "5h12m"),
        (8 * HOUR + 30 * MINUTE, "8h"),
        (48 * HOUR - 1, "47h"),
        (2 * DAY, "2d"),
        (2 * DAY + 3 * HOUR, "2d3h"),
        (8 * DAY + 3 * HOUR, "8d"),
        (2 * YEAR - 1, "729d"),
        (2 * YEAR, "2y"),
        (2 * YEAR + 5 * DAY, "2y5d"),
        (8 * YEAR + 5 * DAY, "8y"),
    ],
)
def test_format_age_prints_at_most_two_units(duration: int, age: str) -> None:
    assert format_age(duration) == age


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("0", 0),
        ("0s", 0),
        ("90s", 90 * SECOND),
        ("1h30m", 90 * MINUTE),
        ("0.2s", 200 * MILLISECOND),
        (".5s", 500 * MILLISECOND),
        ("1.s", SECOND),
        ("150ms", 150 * MILLISECOND),
        ("7us", 7),
        ("7µs", 7),
        ("1h1m1s1ms1us", HOUR + MINUTE + SECOND + MILLISECOND + 1),
        ("0.0000019s", 1),
        ("1s1s", 2 * SECOND),
        ("100000h", 100_000 * HOUR),
    ],
)
def test_parse_duration_accepts_go_format(text: str, duration: int) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "s", "1 s", "-1s", "1d", "1h30", "1.2.3s", "one second", "00", ".s", "1s ", "٣s"),
        pytest.param("9" * 5000 + "s", id="more digits than Python reads"),
    ],
)
def test_parse_duration_rejects_invalid_text_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration; write it as 90s, 1h30m or 0\.5s"):
        parse_duration(text)


def test_seconds_returns_integer_for_whole_seconds() -> None:
    assert [repr(duration_seconds(d)) for d in (0, 3 * SECOND, SECOND // 2, -SECOND)] == ["0", "3", "0.5", "-1"]
