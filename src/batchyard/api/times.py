"""Times in API objects: parses and formats RFC 3339 times in UTC; time windows of machine reservations.

The formats are `2026-01-01T00:00:00Z` for whole seconds, as metav1.Time, and `2026-01-01T00:00:00.250000Z` with a
fraction, as metav1.MicroTime. Only this module uses calendars.
"""

import re
from calendar import monthrange
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

from batchyard.base.instant import Instant, parse_duration
from batchyard.base.primitives import memoized_if_short

_UNIX_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - all values are UTC, and naive ones are faster
_ONE_MICROSECOND: Final = timedelta(microseconds=1)
#: The first and the last instant that can be formatted: the years 1 to 9999.
_FIRST_INSTANT: Final[Instant] = (datetime.min - _UNIX_EPOCH) // _ONE_MICROSECOND  # noqa: DTZ901 - as above
_LAST_INSTANT: Final[Instant] = (datetime.max - _UNIX_EPOCH) // _ONE_MICROSECOND  # noqa: DTZ901 - as above
_RFC3339: Final = re.compile(r"(?a)(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.(\d+))?(?:Z|([+-])([01]\d|2[0-3]):([0-5]\d))")
_MICRO_TIME_PATTERN: Final = re.compile(r"[^.]*\.\d{6}(Z|[+-]..:..)", re.ASCII)
#: The size of the caches: times repeat within short periods only, and every Event has new ones.
_TIME_CACHE_SIZE: Final = 16384


@lru_cache(maxsize=_TIME_CACHE_SIZE)
def format_time(instant: Instant) -> str:
    """Format an instant in RFC 3339: in whole seconds, or with six decimals if it has a fraction of a second.

    Instants before the year 1 or after the year 9999 become the first or the last instant of these years.
    """
    return (_UNIX_EPOCH + timedelta(microseconds=min(max(instant, _FIRST_INSTANT), _LAST_INSTANT))).isoformat() + "Z"


def format_second(instant: Instant) -> str:
    """Format an instant for people, in RFC 3339 without its fraction of a second."""
    return format_time(instant // 1_000_000 * 1_000_000)


def format_micro_time(instant: Instant) -> str:
    """Format an instant as metav1.MicroTime, always with six fractional digits, which clients in Go require."""
    text = format_time(instant)
    return text if "." in text else f"{text[:-1]}.000000Z"


def convert_to_utc(text: str) -> str:
    """Convert an RFC 3339 time in any zone to UTC; a text with `Z` is unchanged. Raises ValueError if malformed."""
    instant = parse_time(text)
    return text if text.endswith("Z") else format_time(instant)


def convert_micro_time_to_utc(text: str) -> str:
    """Convert a metav1.MicroTime (six fractional digits) in any zone to UTC; raise ValueError if it is malformed."""
    if _MICRO_TIME_PATTERN.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a time with six decimals; write it as 2026-01-01T00:00:00.000000Z")
    instant = parse_time(text)
    return text if text.endswith("Z") else format_micro_time(instant)


def days_in_month(year: int, month: int) -> int:
    """Return the number of days in a month of the Gregorian calendar; the year 0 counts as a leap year."""
    return monthrange(year or 4, month)[1]


def to_datetime(instant: Instant) -> datetime:
    """Convert an instant to a datetime in UTC."""
    return (_UNIX_EPOCH + timedelta(microseconds=instant)).replace(tzinfo=UTC)


@memoized_if_short(maxsize=_TIME_CACHE_SIZE)
def parse_time(text: str) -> Instant:
    """Parse an RFC 3339 time in any zone, truncated to microseconds; raise ValueError if it is malformed."""
    time_match = _RFC3339.fullmatch(text)
    if time_match is None:
        raise ValueError(f"{text!r} is not an RFC 3339 time; write it as 2026-01-01T00:00:00Z")
    date_text, time_text, fraction, offset_sign, offset_hours, offset_minutes = time_match.groups()
    try:
        local_time = datetime.fromisoformat(f"{date_text}T{time_text}")
    except ValueError as error:
        raise ValueError(f"{text!r} is not a valid time ({error}); write it as 2026-01-01T00:00:00Z") from None
    instant = (local_time - _UNIX_EPOCH) // _ONE_MICROSECOND + int(((fraction or "") + "000000")[:6])
    utc_offset = (int(offset_hours) * 60 + int(offset_minutes)) * 60_000_000 if offset_sign else 0
    instant += utc_offset if offset_sign == "-" else -utc_offset
    if not _FIRST_INSTANT <= instant <= _LAST_INSTANT:
        raise ValueError(f"{text!r} is not in the years 1 to 9999 in UTC; write it as 2026-01-01T00:00:00Z")
    return instant


# Windows of machine reservations: start and end, as times or as durations from the start of the simulation.


class ReservationWindow(NamedTuple):
    """The start and end of a machine reservation; the end is None for an unlimited reservation."""

    start: Instant
    end: Instant | None

    def overlaps(self, other: "ReservationWindow") -> bool:
        """Return whether this reservation window overlaps another one."""
        return (other.end is None or self.start < other.end) and (self.end is None or other.start < self.end)


def is_time(text: str) -> bool:
    """Return whether a text, which must be an RFC 3339 time or a duration such as `2h`, is a time."""
    return "T" in text


def parse_time_or_duration(text: str, simulation_start: Instant) -> Instant:
    """Return the instant of an RFC 3339 time, or of a duration after `simulation_start`.

    Raises ValueError if the text is malformed.
    """
    return parse_time(text) if is_time(text) else simulation_start + parse_duration(text)


def reservation_window(reservation: Mapping[str, Any], simulation_start: Instant) -> ReservationWindow:
    """Return the start and end of a Cluster's machine reservation.

    A duration in the field `start` or `end` counts from `simulation_start`; the field `duration` counts from the start.
    """
    start = parse_time_or_duration(reservation.get("start") or "0s", simulation_start)
    duration_text, end = reservation.get("duration"), reservation.get("end")
    if duration_text is not None:
        return ReservationWindow(start, start + parse_duration(duration_text))
    return ReservationWindow(start, None if end is None else parse_time_or_duration(end, simulation_start))
