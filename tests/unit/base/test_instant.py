"""Durations as kubectl prints ages."""

import pytest

from batchyard.base.instant import HOUR, MILLISECOND, MINUTE, SECOND, format_age

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
def test_an_age_keeps_two_units_at_most(duration: int, age: str) -> None:
    assert format_age(duration) == age
