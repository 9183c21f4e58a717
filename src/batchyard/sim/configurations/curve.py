"""A number that changes over time, with all its changes: its mean, its peak, and how it went."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from batchyard.base.instant import Instant
from batchyard.sim.gauge import Gauge


class Curve:
    """See the module. What was over in the same instant leaves no trace."""

    __slots__ = ("_begun", "_points")

    def __init__(self, begun: Instant) -> None:
        self._begun = begun
        self._points: list[tuple[Instant, int]] = [(begun, 0)]

    @property
    def value(self) -> int:
        """What it is."""
        return self._points[-1][1]

    def add(self, amount: int, now: Instant) -> None:
        """It is so much more from now on."""
        if not amount:
            return
        at, value = self._points[-1]
        if at == now:
            self._points[-1] = now, value + amount
        else:
            self._points.append((now, value + amount))

    @classmethod
    def sum_of(cls, curves: "Iterable[Curve]", begun: Instant) -> "Curve":
        """The sum of some that began together."""
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
        """Its mean until then, and its peak; what comes in the instant of the end counts for neither."""
        gauge = Gauge(self._begun)
        for at, value in self._points:
            gauge.set(value, min(at, end))
        return gauge.mean(end), gauge.peak

    def means(self, end: Instant, parts: int) -> Sequence[float]:
        """Its means over so many equal parts of the time from its beginning to an end."""
        edges = [self._begun + (end - self._begun) * part // parts for part in range(parts + 1)]
        told, index = [], 0
        for begin, until in pairwise(edges):
            area, at = 0, begin
            while True:
                after = self._points[index + 1][0] if index + 1 < len(self._points) else until
                area += self._points[index][1] * (min(after, until) - at)
                if after >= until:
                    break
                at, index = after, index + 1
            told.append(area / (until - begin) if until > begin else float(self._points[index][1]))
        return told
