"""The next times of cron schedules, as the library robfig/cron computes them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchyard.api.times import format_time, parse_time, to_datetime
from batchyard.api.validation.apps import TIME_ZONES
from batchyard.apps.cron_schedule import find_zone, format_local_time, format_rfc1123, parse_schedule
from batchyard.base.instant import HOUR, MINUTE, Instant


def next_time(schedule: str, after: str, zone: str | None = None) -> str | None:
    found = parse_schedule(schedule, zone).next_time(parse_time(after))
    return None if found is None else format_time(found)


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
        ("0/15 * * * *", "2012-07-09T14:45:00Z", "2012-07-09T15:00:00Z"),
        ("20-35/15 * * * *", "2012-07-09T14:59:59Z", "2012-07-09T15:20:00Z"),
        ("0 0 * feb mon,TUE", "2012-07-09T23:35:00Z", "2013-02-04T00:00:00Z"),
        ("0 0 15 * mon", "2026-01-06T00:00:00Z", "2026-01-12T00:00:00Z"),  # either day
        ("0 0 */10 * mon", "2026-01-06T00:00:00Z", "2026-01-11T00:00:00Z"),  # a step counts as restricted
        ("0 0 ? * mon", "2026-01-06T00:00:00Z", "2026-01-12T00:00:00Z"),
        ("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 30 2 *", "2026-01-01T00:00:00Z", None),
        ("@hourly", "2026-12-31T23:30:00Z", "2027-01-01T00:00:00Z"),
        ("@weekly", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
        ("@monthly", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"),
        ("@yearly", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("@every 1h30m", "2026-01-01T00:00:10Z", "2026-01-01T01:30:10Z"),
        ("@every 10ms", "2026-01-01T00:00:10Z", "2026-01-01T00:00:11Z"),
    ],
)
def test_next_time_matches_all_fields(schedule: str, after: str, expected: str | None) -> None:
    assert next_time(schedule, after) == expected


@pytest.mark.parametrize(
    ("schedule", "after", "expected"),
    [
        ("0 9 * * *", "2026-06-01T00:00:00Z", "2026-06-01T13:00:00Z"),
        ("30 2 * * *", "2012-03-11T05:00:00Z", "2012-03-12T06:30:00Z"),  # 02:30 does not exist on the 11th
        ("0 * * * *", "2012-03-11T06:00:00Z", "2012-03-11T07:00:00Z"),  # 01:00 is followed by 03:00
        ("0 1 * * *", "2012-11-04T05:00:00Z", "2012-11-04T06:00:00Z"),  # 01:00 happens twice
        ("0 2 * * *", "2012-11-04T05:00:00Z", "2012-11-04T07:00:00Z"),
    ],
)
def test_schedule_follows_the_clock_changes_of_its_zone(schedule: str, after: str, expected: str) -> None:
    assert next_time(schedule, after, "America/New_York") == expected


@pytest.mark.parametrize("day", ["2009-10-31", "2010-11-06"])
def test_midnight_that_happens_twice_does_not_stop_the_search(day: str) -> None:
    start = parse_time(f"{day}T12:00:00Z")  # in the night, the clocks go back from 00:01 to 23:01
    for hour, minute in ((0, 0), (0, 30), (23, 30)):
        found = parse_schedule(f"{minute} {hour} 1,7 11 *", "America/St_Johns").next_time(start)
        assert found is not None
        assert local_fields(found, "America/St_Johns")[1:] == (hour, minute)


def test_search_ends_before_the_last_year_of_dates() -> None:
    assert next_time("0 0 30 2 *", "9989-12-31T23:59:59Z") is None
    assert next_time("0 0 1 1 *", "9989-12-31T23:59:59Z", "Asia/Tokyo") == "9990-12-31T15:00:00Z"
    assert next_time("* * * * *", "9999-12-31T23:59:59Z") is None


def local_fields(at: Instant, zone: str) -> tuple[int, int, int]:
    """The day, the hour and the minute of an instant in a zone."""
    local = to_datetime(at).astimezone(find_zone(zone))
    return local.day, local.hour, local.minute


def clock_changes(zone: str, year: int) -> list[Instant]:
    """The hours of a year at whose end the clocks of a zone differ."""

    def differs(start: Instant, duration: Instant) -> bool:
        first, last = (to_datetime(at).astimezone(find_zone(zone)) for at in (start, start + duration))
        return first.utcoffset() != last.utcoffset()

    new_year = parse_time(f"{year}-01-01T00:00:00Z")
    days = [day for day in range(new_year, new_year + 365 * 24 * HOUR, 24 * HOUR) if differs(day, 24 * HOUR)]
    return [hour for day in days for hour in range(day, day + 24 * HOUR, HOUR) if differs(hour, HOUR)]


@settings(deadline=None, max_examples=25)
@given(st.data(), st.sampled_from(sorted(TIME_ZONES)), st.integers(1975, 2035), st.integers(-26, 26))
def test_search_around_clock_changes_is_that_by_minutes(data: st.DataObject, zone: str, year: int, hours: int) -> None:
    change = data.draw(st.sampled_from(clock_changes(zone, year) or [parse_time(f"{year}-03-31T01:00:00Z")]))
    start, wanted = change + hours * HOUR, change + data.draw(st.integers(-90, 90)) * MINUTE
    day, hour, minute = local_fields(max(start, wanted), zone)
    found = parse_schedule(f"{minute} {hour} {day} * *", zone).next_time(start)
    minutes = range(start + MINUTE, start + 54 * HOUR, MINUTE)
    expected = next((at for at in minutes if local_fields(at, zone) == (day, hour, minute)), None)
    assert found is None or found > start
    if expected is not None or (found is not None and found < minutes.stop):
        assert found == expected


def test_times_are_written_as_in_go() -> None:
    at = parse_time("2026-01-05T08:00:00Z")
    assert format_local_time(at, "Europe/Berlin") == "2026-01-05T09:00:00+01:00"
    assert format_local_time(at, None) == "2026-01-05T08:00:00Z"
    assert format_rfc1123(at) == "Mon, 05 Jan 2026 08:00:00 +0000"


def test_unknown_zone_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown time zone No/Where"):
        parse_schedule("* * * * *", "No/Where")


#: Zones with changes of their clocks at midnight, by half an hour, by two hours, or of a whole day, and others.
ZONES = (
    *("UTC", "Europe/Berlin", "America/New_York", "America/Sao_Paulo", "America/Havana", "Asia/Beirut", "Asia/Kolkata"),
    *("Africa/Casablanca", "Antarctica/Troll", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Chatham"),
)
#: A quarter of an hour of the years from 1980 to 2037, whose time zones have offsets of whole minutes.
QUARTERS = st.integers(10 * 365 * 96, 67 * 365 * 96)


def first_minute(start: Instant, zone: str, hour: int, minute: int) -> Instant | None:
    """The first minute after `start` with this local time, within three days."""
    for at in range(start + MINUTE, start + 72 * HOUR, MINUTE):
        local = to_datetime(at).astimezone(find_zone(zone))
        if (local.hour, local.minute) == (hour, minute):
            return at
    return None


@given(zone=st.sampled_from(ZONES), quarter=QUARTERS, hour=st.integers(0, 23), minute=st.sampled_from([0, 7, 30, 59]))
def test_next_time_is_that_of_a_search_by_minutes(zone: str, quarter: int, hour: int, minute: int) -> None:
    start = quarter * 15 * MINUTE
    found = parse_schedule(f"{minute} {hour} * * *", zone).next_time(start)
    assert found is not None
    assert found == first_minute(start, zone, hour, minute)


@pytest.mark.parametrize(
    ("after", "expected"),
    [("2026-04-04T12:00:00Z", "2026-04-04T18:30:00Z"), ("2026-04-04T15:10:00Z", "2026-04-04T18:30:00Z")],
)
def test_clock_that_goes_back_half_an_hour_does_not_stop_the_search(after: str, expected: str) -> None:
    found = parse_schedule("0 5 * * *", "Australia/Lord_Howe").next_time(parse_time(after))
    assert found is not None
    assert format_time(found) == expected


@pytest.mark.parametrize("schedule", [", * * * *", "* , * * *", "* * * , *"])
def test_field_without_values_has_no_time(schedule: str) -> None:
    assert parse_schedule(schedule, None).next_time(0) is None
