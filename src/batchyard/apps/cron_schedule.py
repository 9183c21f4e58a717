"""Schedules of CronJobs: the next time of a cron expression in a time zone.

Source: github.com/robfig/cron v3 (parser.go, spec.go, constantdelay.go).
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from batchyard.api.times import format_time, to_datetime
from batchyard.api.validation.apps import MONTH_NAMES, WEEKDAY_NAMES, check_schedule
from batchyard.base.instant import SECOND, Duration, Instant, parse_duration

_DESCRIPTORS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY_PREFIX: Final = "@every "
#: A schedule without a time in this many years has none.
_SEARCH_YEARS: Final = 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_NAMES: Final[tuple[str, ...]] = ()


class CronSchedule(Protocol):
    """The times at which a CronJob starts Jobs."""

    def next_time(self, after: Instant) -> Instant | None:
        """Return the first scheduled time after an instant; None if there is none in the next five years."""


@dataclass(frozen=True, slots=True)
class PeriodicSchedule:
    """A schedule `@every 90m`: whole seconds, counted from the time before."""

    period: Duration

    def next_time(self, after: Instant) -> Instant | None:
        """Return the time one period after the second of an instant."""
        return after // SECOND * SECOND + self.period


@dataclass(frozen=True, slots=True)
class FieldSchedule:
    """A schedule of five cron fields in a time zone."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    #: Whether the days of the month and of the week are both restricted; then a day needs to match only one of them.
    has_both_days: bool
    zone: tzinfo

    def next_time(self, after: Instant) -> Instant | None:
        """Return the first time after an instant whose local date and time match all fields."""
        local = to_datetime(after // SECOND * SECOND + SECOND).astimezone(self.zone)
        last_year = local.year + _SEARCH_YEARS
        while local.year <= last_year:
            if local.month not in self.months:
                local = self._at(local.year + local.month // 12, local.month % 12 + 1, 1)
            elif not self._matches_day(local):
                local = self._next_day(local)
            elif local.hour not in self.hours:
                local = _add(local.replace(minute=0, second=0), timedelta(hours=1))
            elif local.minute not in self.minutes or local.second:
                local = _add(local.replace(second=0), timedelta(minutes=1))
            else:
                return (local.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
        return None

    def _matches_day(self, local: datetime) -> bool:
        matches_day, matches_weekday = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return matches_day or matches_weekday if self.has_both_days else matches_day and matches_weekday

    def _next_day(self, local: datetime) -> datetime:
        tomorrow = (datetime(local.year, local.month, local.day, tzinfo=UTC) + timedelta(days=1)).date()
        return self._at(tomorrow.year, tomorrow.month, tomorrow.day)

    def _at(self, year: int, month: int, day: int) -> datetime:
        """Return the first time of a day, which is not midnight if the clocks change at midnight."""
        return datetime(year, month, day, tzinfo=self.zone).astimezone(UTC).astimezone(self.zone)


def _add(local: datetime, duration: timedelta) -> datetime:
    """Add a duration of real time, which differs from local time if the clocks change."""
    return (local.astimezone(UTC) + duration).astimezone(local.tzinfo)


def find_zone(name: str | None) -> tzinfo:
    """Return a time zone by its name, UTC for None; raise ValueError if this machine has no such zone."""
    if name is None:
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"unknown time zone {name}") from None


@lru_cache(maxsize=1024)
def parse_schedule(text: str, zone_name: str | None) -> CronSchedule:
    """Parse the schedule of a CronJob in a time zone; raise ScheduleError, or ValueError for an unknown zone."""
    check_schedule(text)
    if text.startswith(_EVERY_PREFIX):
        period = parse_duration(text.removeprefix(_EVERY_PREFIX).removeprefix("+"))
        return PeriodicSchedule(max(SECOND, period // SECOND * SECOND))
    minute, hour, day, month, weekday = _DESCRIPTORS.get(text, text).split()
    return FieldSchedule(
        _parse_field(minute, 0, 59),
        _parse_field(hour, 0, 23),
        _parse_field(day, 1, 31),
        _parse_field(month, 1, 12, MONTH_NAMES),
        _parse_field(weekday, 0, 6, WEEKDAY_NAMES),
        not (_has_star(day) or _has_star(weekday)),
        find_zone(zone_name),
    )


def format_local_time(at: Instant, zone_name: str | None) -> str:
    """Return an instant in RFC 3339 format with the offset of a time zone; `Z` for UTC without a zone."""
    zone = find_zone(zone_name)
    local = to_datetime(at).astimezone(zone)
    return local.isoformat(timespec="seconds") if local.utcoffset() else format_time(at)


def format_rfc1123(at: Instant) -> str:
    """Return an instant in UTC in Go's format RFC1123Z, such as `Mon, 02 Jan 2006 15:04:05 +0000`."""
    moment = to_datetime(at)
    weekday, month = WEEKDAY_NAMES[moment.isoweekday() % 7].title(), MONTH_NAMES[moment.month - 1].title()
    return f"{weekday}, {moment.day:02d} {month} {moment:%Y %H:%M:%S} +0000"


def _parse_field(text: str, minimum: int, maximum: int, names: tuple[str, ...] = _NO_NAMES) -> frozenset[int]:
    values: set[int] = set()
    for part in text.split(","):
        if not part:
            continue
        range_text, _, step_text = part.partition("/")
        low_text, _, high_text = range_text.partition("-")
        if low_text in {"*", "?"}:
            low, high = minimum, maximum
        else:
            low = _parse_number(low_text, names, minimum)
            high = _parse_number(high_text, names, minimum) if high_text else maximum if step_text else low
        values.update(range(low, high + 1, int(step_text or 1)))
    return frozenset(values)


def _parse_number(text: str, names: tuple[str, ...], minimum: int) -> int:
    return names.index(text.lower()) + minimum if text.lower() in names else int(text)


def _has_star(text: str) -> bool:
    """Return whether a field of days has a `*` or `?` without a step: then only the other field restricts the day."""
    parts = [part.partition("/") for part in text.split(",")]
    return any(range_text.partition("-")[0] in {"*", "?"} and int(step or 1) <= 1 for range_text, _, step in parts)
