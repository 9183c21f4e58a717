"""Schedules of CronJobs: the next time of a cron expression in a time zone.

Source: github.com/robfig/cron v3 (parser.go, spec.go, constantdelay.go).
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from batchyard.api.times import format_time, parse_time, to_datetime
from batchyard.api.validation.apps import EVERY_PREFIX, MONTH_NAMES, WEEKDAY_NAMES, parse_schedule_fields
from batchyard.base.instant import SECOND, Duration, Instant, parse_duration

#: A schedule without a time in this many years has none.
_SEARCH_YEARS: Final = 5
#: Later than all times of CronJobs, and so early that the search ends before the last year that a datetime can have.
_SEARCH_END: Final = parse_time("9990-01-01T00:00:00Z")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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
        if not (self.minutes and self.hours and self.months):  # such as the field `,`, which robfig/cron accepts
            return None
        if after >= _SEARCH_END:
            return None
        local = to_datetime(after // SECOND * SECOND + SECOND).astimezone(self.zone)
        last_year = local.year + _SEARCH_YEARS
        while local.year <= last_year:
            if local.month not in self.months:
                local = self._start_of(local.year + local.month // 12, local.month % 12 + 1, 1, local)
            elif not self._matches_day(local):
                local = self._next_day(local)
            elif local.hour not in self.hours:
                # In real time, because a clock that goes back by half an hour has no full hour before it.
                local = _add(local, timedelta(minutes=60 - local.minute, seconds=-local.second))
            elif local.minute not in self.minutes or local.second:
                local = _add(local, timedelta(seconds=60 - local.second))
            else:
                return (local.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
        return None

    def _matches_day(self, local: datetime) -> bool:
        matches_day, matches_weekday = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return matches_day or matches_weekday if self.has_both_days else matches_day and matches_weekday

    def _next_day(self, local: datetime) -> datetime:
        tomorrow = (datetime(local.year, local.month, local.day, tzinfo=UTC) + timedelta(days=1)).date()
        return self._start_of(tomorrow.year, tomorrow.month, tomorrow.day, local)

    def _start_of(self, year: int, month: int, day: int, local: datetime) -> datetime:
        """Return the first time of a day after `local`; not midnight if the clocks change at midnight.

        A midnight happens twice if the clocks go back shortly after it. If `local` is between the two, the day starts
        again at the second one.
        """
        midnight, now = datetime(year, month, day, tzinfo=self.zone), local.astimezone(UTC)
        starts = (midnight.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
        start = next((each for each in starts if each > now), now + timedelta(hours=1))  # never stands still
        return start.astimezone(self.zone)


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
    fields = parse_schedule_fields(text)
    if not fields:
        period = parse_duration(text.removeprefix(EVERY_PREFIX).removeprefix("+"))
        return PeriodicSchedule(max(SECOND, period // SECOND * SECOND))
    minute, hour, day, month, weekday = fields
    has_both_days = not (day.has_star or weekday.has_star)
    zone = find_zone(zone_name)
    return FieldSchedule(minute.values, hour.values, day.values, month.values, weekday.values, has_both_days, zone)


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
