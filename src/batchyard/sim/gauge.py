"""A number that changes over time: its mean, weighted with how long it lasted, and the most of it.

What was over in the same instant counts for nothing.
"""

from batchyard.base.instant import Instant


class Gauge:
    """See the module."""

    __slots__ = ("_area", "_begun", "_since", "_value", "peak", "peak_at")

    def __init__(self, begun: Instant) -> None:
        self._begun = self._since = begun
        self._value: float = 0
        self._area: float = 0
        self.peak: float = 0
        self.peak_at = begun
        """When it was at its peak first."""

    @property
    def value(self) -> float:
        """What it is."""
        return self._value

    def set(self, value: float, now: Instant) -> None:
        """It is this from now on."""
        lasted = now - self._since
        if lasted:
            self._area += self._value * lasted
            if self._value > self.peak:
                self.peak, self.peak_at = self._value, self._since
            self._since = now
        self._value = value

    def add(self, amount: float, now: Instant) -> None:
        """It is so much more from now on."""
        self.set(self._value + amount, now)

    def mean(self, now: Instant) -> float:
        """What it was on average."""
        self.set(self._value, now)
        return self._area / (now - self._begun) if now > self._begun else self._value
