"""Instants and durations as whole microseconds.

An instant counts from 1970-01-01T00:00:00Z; a duration is a difference of two. Both are plain ints, so that equal
inputs give equal outputs on every machine. Durations are written as Go writes them: `1h30m`, `0.2s`, `150ms`.
"""

import re
from functools import lru_cache
from typing import Final

Instant = int
Duration = int

MICROSECOND: Final = 1
MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE

_NANOSECONDS_BY_UNIT: Final = {
    "ns": 1,
    "us": 1000 * MICROSECOND,
    "\u00b5s": 1000 * MICROSECOND,
    "\u03bcs": 1000 * MICROSECOND,
    "ms": 1000 * MILLISECOND,
    "s": 1000 * SECOND,
    "m": 1000 * MINUTE,
    "h": 1000 * HOUR,
}
_UNIT_PATTERN: Final = "(ns|us|\u00b5s|\u03bcs|ms|s|m|h)"
_DURATION_PART_PATTERN: Final = re.compile(rf"(\d++)(?:\.(\d*+))?{_UNIT_PATTERN}|\.(\d++){_UNIT_PATTERN}", re.ASCII)
#: The maximum length of a duration. Go has none, but its longest duration, to the nanosecond, has 25 characters.
_DURATION_LENGTH_MAX: Final = 400


@lru_cache(maxsize=4096)
def parse_duration(text: str) -> Duration:
    """Parse a Go duration (`1h30m`, `0.2s`) into microseconds; raise ValueError if it is invalid.

    Fractions of a microsecond are truncated. `0` needs no unit. Negative durations and texts of more than 400
    characters are rejected.
    """
    if text == "0":
        return 0
    if len(text) > _DURATION_LENGTH_MAX:
        raise ValueError(f"a text of {len(text)} characters is not a duration; write it as 90s, 1h30m or 0.5s")
    text_position, total_duration = 0, 0
    while text_position < len(text):
        part = _DURATION_PART_PATTERN.match(text, text_position)
        if part is None:
            raise ValueError(f"{text!r} is not a duration; write it as 90s, 1h30m or 0.5s")
        integer_part, fraction, unit = part[1] or "0", part[2] or part[4] or "", part[3] or part[5]
        total_duration += int(integer_part + fraction) * _NANOSECONDS_BY_UNIT[unit] // 10 ** len(fraction)
        text_position = part.end()
    if not text:
        raise ValueError("an empty text is not a duration; write it as 90s, 1h30m or 0.5s")
    return total_duration // 1000


def duration_seconds(duration: Duration) -> int | float:
    """Convert a duration to seconds for output and JSON: an int for whole seconds, otherwise a float."""
    whole_seconds, remaining_microseconds = divmod(duration, SECOND)
    return whole_seconds if remaining_microseconds == 0 else duration / SECOND


def format_duration(duration: Duration) -> str:
    """Format a duration so that `parse_duration` returns the same value: `2100s`, or `1500us` if not whole seconds."""
    whole_seconds, remainder = divmod(duration, SECOND)
    return f"{whole_seconds}s" if remainder == 0 else f"{duration}us"


def format_age(duration: Duration) -> str:
    """Return a duration as kubectl prints ages: `45s`, `3m20s`, `17m`, `5h12m`, `2d3h`.

    Clocks may differ slightly, so a negative duration is printed as `0s` if above -2 s, otherwise as `<invalid>`.
    Source: k8s.io/apimachinery duration.HumanDuration.
    """
    if duration <= -2 * SECOND:
        return "<invalid>"
    total_seconds = max(0, duration) // SECOND
    minutes, hours, days = total_seconds // 60, total_seconds // 3600, total_seconds // 86400
    if total_seconds < 120:
        return f"{total_seconds}s"
    if minutes < 10:
        return f"{minutes}m{total_seconds % 60}s" if total_seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    if hours < 192:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 365 * 2:
        return f"{days}d"
    years, remaining_days = divmod(days, 365)
    return f"{years}y{remaining_days}d" if days < 365 * 8 and remaining_days else f"{years}y"


# Exponential backoff with an upper bound and without jitter.


_BACKOFF_DOUBLINGS_MAX: Final = 62  # enough to reach any bound


def exponential_backoff(first_backoff: Duration, backoff_max: Duration, attempt_count: int) -> Duration:
    """Return the delay before a retry: `first_backoff` after attempt 1, then doubled each time up to `backoff_max`."""
    return min(first_backoff << min(attempt_count - 1, _BACKOFF_DOUBLINGS_MAX), backoff_max)
