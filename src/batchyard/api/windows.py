"""Windows of reservations: when one begins and ends, as times or as durations from the start of the world."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchyard.api.times import parse_time
from batchyard.base.instant import Instant, parse_duration


class Window(NamedTuple):
    """From when to when machines are reserved; without an end for good."""

    start: Instant
    end: Instant | None

    def overlaps(self, other: "Window") -> bool:
        """Whether both hold at some instant."""
        return (other.end is None or self.start < other.end) and (self.end is None or other.start < self.end)


def is_time(text: str) -> bool:
    """Whether a moment is written as a time, not as a duration from the start of the world."""
    return "T" in text


def moment(text: str, began: Instant) -> Instant:
    """Return the instant of a moment in a world that began then; ValueError says why there is none."""
    return parse_time(text) if is_time(text) else began + parse_duration(text)


def window_of(reservation: Mapping[str, Any], began: Instant) -> Window:
    """Return the window of a sound reservation."""
    start = moment(reservation.get("start") or "0s", began)
    length, end = reservation.get("duration"), reservation.get("end")
    if length is not None:
        return Window(start, start + parse_duration(length))
    return Window(start, None if end is None else moment(end, began))
