"""Numbers that change over simulated time: their mean, their peak, and averages over intervals."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from batchyard.base.instant import Instant

# A value that is replaced within the same instant counts for neither the mean nor the peak.


class Gauge:
    """A number that changes over time; keeps its time-weighted mean and its peak."""

    __slots__ = ("_changed_at", "_integral", "_start_time", "_value", "peak", "peak_at")

    def __init__(self, start_time: Instant) -> None:
        self._start_time = self._changed_at = start_time
        self._value: float = 0
        self._integral: float = 0
        self.peak: float = 0
        self.peak_at = start_time
        """The instant at which the value first reached `peak`."""

    @property
    def value(self) -> float:
        """Return the current value."""
        return self._value

    def set(self, value: float, now: Instant) -> None:
        """Change the value to `value` from the instant `now` on."""
        duration = now - self._changed_at
        if duration:
            self._integral += self._value * duration
            if self._value > self.peak:
                self.peak, self.peak_at = self._value, self._changed_at
            self._changed_at = now
        self._value = value

    def add(self, amount: float, now: Instant) -> None:
        """Change the value by `amount` from the instant `now` on."""
        self.set(self._value + amount, now)

    def mean(self, now: Instant) -> float:
        """Return the time-weighted mean from the beginning to the instant `now`."""
        self.set(self._value, now)
        return self._integral / (now - self._start_time) if now > self._start_time else self._value


class Curve:
    """A number that changes over time; of several changes in one instant, only the last value is kept."""

    __slots__ = ("_points", "_start_time")

    def __init__(self, start_time: Instant) -> None:
        self._start_time = start_time
        self._points: list[tuple[Instant, int]] = [(start_time, 0)]

    @property
    def value(self) -> int:
        """Return the current value."""
        return self._points[-1][1]

    def add(self, amount: int, now: Instant) -> None:
        """Change the value by `amount` from the instant `now` on."""
        if not amount:
            return
        at, value = self._points[-1]
        if at == now:
            self._points[-1] = now, value + amount
        else:
            self._points.append((now, value + amount))

    @classmethod
    def sum_of(cls, curves: "Iterable[Curve]", start_time: Instant) -> "Curve":
        """Return the sum of several curves that all begin at `start_time`."""
        change_by_instant: dict[Instant, int] = {}
        for curve in curves:
            previous_value = 0
            for at, value in curve._points:
                change_by_instant[at] = change_by_instant.get(at, 0) + value - previous_value
                previous_value = value
        sum_curve = cls(start_time)
        for at in sorted(change_by_instant):
            sum_curve.add(change_by_instant[at], at)
        return sum_curve

    def mean_and_peak(self, end: Instant) -> tuple[float, float]:
        """Return the time-weighted mean and the peak from the beginning to `end`, without changes at `end` itself."""
        gauge = Gauge(self._start_time)
        for at, value in self._points:
            gauge.set(value, min(at, end))
        return gauge.mean(end), gauge.peak

    def means(self, end: Instant, count: int) -> Sequence[float]:
        """Return the time-weighted means over `count` equal intervals from the beginning to `end`."""
        boundaries = [self._start_time + (end - self._start_time) * number // count for number in range(count + 1)]
        means_by_part, point_index = [], 0
        for interval_begin, interval_end in pairwise(boundaries):
            integral, at = 0, interval_begin
            while True:
                next_change = self._points[point_index + 1][0] if point_index + 1 < len(self._points) else interval_end
                integral += self._points[point_index][1] * (min(next_change, interval_end) - at)
                if next_change >= interval_end:
                    break
                at, point_index = next_change, point_index + 1
            means_by_part.append(
                integral / (interval_end - interval_begin)
                if interval_end > interval_begin
                else float(self._points[point_index][1])
            )
        return means_by_part
