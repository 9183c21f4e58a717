"""Recorded totals over time for the charts of the overview: quota, node requests and capacity, and Workload counts.

The number of recorded points is bounded: at the limit, every second point is dropped and the interval doubles.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.base.instant import SECOND, Duration, Instant

#: The maximum number of recorded points, and the first interval between two points.
POINTS_MAX: Final = 240
_FIRST_INTERVAL: Final = 5 * SECOND
#: The maximum number of resources that are recorded; later ones are ignored.
RESOURCES_MAX: Final = 32

#: The recorded amounts of a resource: quota in use, requests of pods on nodes, and capacity of nodes.
QUOTA, REQUESTED, CAPACITY = "quota", "requested", "capacity"
#: The recorded counts of Workloads.
PENDING_COUNT, RUNNING_COUNT = ("workloads", "pending"), ("workloads", "running")


class RecordedSeries(NamedTuple):
    """Time series of recorded totals: the instants, and the values of each total, by its kind and resource."""

    instants: Sequence[Instant]
    values: Mapping[tuple[str, str], Sequence[int]]


class UsageHistory:
    """Recorded totals (quota, requests, capacity, Workloads) at the end of each interval since the recording began.

    The totals of an interval are keyed by the kind of total and the resource, such as `("quota", "cpu")`.
    """

    def __init__(self, began: Instant) -> None:
        self._began = began
        self._interval: Duration = _FIRST_INTERVAL
        self._resources: set[str] = set()
        #: The last point is current and changes in place.
        self._points: list[dict[tuple[str, str], int]] = [{}]

    def set_count(self, now: Instant, name: tuple[str, str], count: int) -> None:
        """Set the current value of the count `name`, such as PENDING_COUNT."""
        self._current_point(now)[name] = count

    def add(self, now: Instant, total_kind: str, amounts: Iterable[tuple[str, int]], sign: int = 1) -> None:
        """Add (resource, amount) pairs to the totals of a kind, such as QUOTA, at `now`; `sign` -1 subtracts them.

        Only the first RESOURCES_MAX distinct resources are recorded; others are ignored.
        """
        point = self._current_point(now)
        for resource, amount in amounts:
            if resource not in self._resources:
                if len(self._resources) >= RESOURCES_MAX:
                    continue
                self._resources.add(resource)
            point[total_kind, resource] = point.get((total_kind, resource), 0) + sign * amount

    def series(self, now: Instant) -> RecordedSeries:
        """Return all totals that have a nonzero recorded value; the last value of each is the total at `now`."""
        self._current_point(now)
        names = sorted({name for point in self._points for name, value in point.items() if value})
        instants = [self._began + number * self._interval for number in range(1, len(self._points))]
        values = {name: [point.get(name, 0) for point in self._points] for name in names}
        return RecordedSeries([*instants, max(now, self._began)], values)

    def _current_point(self, now: Instant) -> dict[tuple[str, str], int]:
        """Return the totals of the interval that contains `now`, for updates in place.

        Skipped intervals get the totals of the last recorded one. If there are more than POINTS_MAX intervals, their
        length is doubled, and every second one is dropped.
        """
        while (now - self._began) // self._interval >= POINTS_MAX:
            if len(self._points) % 2:
                self._points.append(dict(self._points[-1]))
            self._points = self._points[1::2]
            self._interval *= 2
        while len(self._points) <= (now - self._began) // self._interval:
            self._points.append(dict(self._points[-1]))
        return self._points[-1]
