"""Numbers that change over time: mean, peak, and averages over intervals."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from batchyard.base.instant import Instant

# --- gauge ---
#
# A number that changes over time, with its time-weighted mean and its peak. A value that is replaced within the same
# instant counts for neither.


class Gauge:
    """A number that changes over time, its time-weighted mean and its peak."""

    __slots__ = ("_area", "_begun", "_since", "_value", "peak", "peak_at")

    def __init__(self, begun: Instant) -> None:
        self._begun = self._since = begun
        self._value: float = 0
        self._area: float = 0
        self.peak: float = 0
        self.peak_at = begun
        """The start of its first peak."""

    @property
    def value(self) -> float:
        """Return the current value."""
        return self._value

    def set(self, value: float, now: Instant) -> None:
        """Set the value from now on."""
        lasted = now - self._since
        if lasted:
            self._area += self._value * lasted
            if self._value > self.peak:
                self.peak, self.peak_at = self._value, self._since
            self._since = now
        self._value = value

    def add(self, amount: float, now: Instant) -> None:
        """Add to the value from now on."""
        self.set(self._value + amount, now)

    def mean(self, now: Instant) -> float:
        """Return the time-weighted mean until now."""
        self.set(self._value, now)
        return self._area / (now - self._begun) if now > self._begun else self._value


class Curve:
    """A number that changes over time, with all its changes. A value replaced within the same instant is not kept."""

    __slots__ = ("_begun", "_points")

    def __init__(self, begun: Instant) -> None:
        self._begun = begun
        self._points: list[tuple[Instant, int]] = [(begun, 0)]

    @property
    def value(self) -> int:
        """Return the current value."""
        return self._points[-1][1]

    def add(self, amount: int, now: Instant) -> None:
        """Add to the value from now on."""
        if not amount:
            return
        at, value = self._points[-1]
        if at == now:
            self._points[-1] = now, value + amount
        else:
            self._points.append((now, value + amount))

    @classmethod
    def sum_of(cls, curves: "Iterable[Curve]", begun: Instant) -> "Curve":
        """Return the sum of curves that begin at the same time."""
        changes: dict[Instant, int] = {}
        for curve in curves:
            before = 0
            for at, value in curve._points:
                changes[at] = changes.get(at, 0) + value - before
                before = value
        made = cls(begun)
        for at in sorted(changes):
            made.add(changes[at], at)
        return made

    def summed(self, end: Instant) -> tuple[float, float]:
        """Return the mean until an end, and the peak; a change at the instant of the end counts for neither."""
        gauge = Gauge(self._begun)
        for at, value in self._points:
            gauge.set(value, min(at, end))
        return gauge.mean(end), gauge.peak

    def means(self, end: Instant, parts: int) -> Sequence[float]:
        """Return the means over `parts` equal intervals from the begin to an end."""
        edges = [self._begun + (end - self._begun) * part // parts for part in range(parts + 1)]
        means_by_part, index = [], 0
        for begin, until in pairwise(edges):
            area, at = 0, begin
            while True:
                after = self._points[index + 1][0] if index + 1 < len(self._points) else until
                area += self._points[index][1] * (min(after, until) - at)
                if after >= until:
                    break
                at, index = after, index + 1
            means_by_part.append(area / (until - begin) if until > begin else float(self._points[index][1]))
        return means_by_part
