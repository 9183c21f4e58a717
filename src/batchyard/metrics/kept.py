"""The families of a group whose figures are kept, by name."""

from collections.abc import Iterable, Iterator, Sequence

from batchyard.metrics.families import HISTOGRAM, Counters, Histograms, Labels
from batchyard.metrics.names import metric


class Kept:
    """Counters and histograms by name; `constant` is the value of their last label, where it is always the same."""

    def __init__(self, names: Iterable[str], *constant: str) -> None:
        found = [metric(name) for name in names]
        self._histograms = {m.name: Histograms(m, *constant) for m in found if m.kind == HISTOGRAM}
        self._counters = {m.name: Counters(m, *constant) for m in found if m.kind != HISTOGRAM}
        self._families: Sequence[Counters | Histograms] = (*self._counters.values(), *self._histograms.values())

    def counters(self, name: str) -> Counters:
        """Those of a name."""
        return self._counters[name]

    def histograms(self, name: str) -> Histograms:
        """Those of a name."""
        return self._histograms[name]

    def add(self, name: str, labels: Labels, amount: float = 1) -> None:
        """Count."""
        self._counters[name].add(labels, amount)

    def set(self, name: str, labels: Labels, value: float) -> None:
        """Let a gauge be that much."""
        self._counters[name].set(labels, value)

    def observe(self, name: str, labels: Labels, value: float) -> None:
        """Count a value of a histogram."""
        self._histograms[name].observe(labels, value)

    def forget(self, **labels: str) -> None:
        """Drop what has these values of labels, in the families that have these labels."""
        for family in self._families:
            if all(name in family.metric.labels for name in labels):
                family.forget(**labels)

    def texts(self) -> Iterator[str]:
        """All families."""
        for family in self._families:
            yield from family.texts()
