"""The /metrics endpoint: all families as one text, written in parts so that a scrape never blocks the server for long.

`collect[]` in the query selects groups; without it all are returned.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.metrics.definitions import GROUPS, metric
from batchyard.metrics.registry import HISTOGRAM, Counters, Histograms, Labels

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: The path of the endpoint, and the query parameter that selects groups.
PATH: Final = "/metrics"
CHOICE: Final = "collect[]"
#: Characters that are buffered before they are sent.
_PART: Final = 128 * 1024

Texts: TypeAlias = Callable[[], Iterator[str]]
"""Yields the text of whole families; an empty text marks a point at which the server may do other work."""


class Exposition:
    """The groups of families, each with its source of text, in the order of output."""

    def __init__(self, sources: Sequence[tuple[str, Texts]]) -> None:
        self._sources = sources

    def parts(self, groups: Sequence[str] = ()) -> Iterator[str]:
        """Yield the text in parts, some of them empty. Raises ValueError for an unknown group."""
        unknown = [group for group in groups if group not in GROUPS]
        if unknown:
            raise ValueError(f"{CHOICE} must be one of {', '.join(GROUPS)}, not {unknown[0]}")
        chosen = [texts for group, texts in self._sources if not groups or group in groups]
        return _gathered(chosen)


def _gathered(sources: Sequence[Texts]) -> Iterator[str]:
    gathered: list[str] = []
    size = 0
    for source in sources:
        for text in source():
            if not text:
                yield ""
                continue
            gathered.append(text)
            size += len(text)
            if size >= _PART:
                yield "".join(gathered)
                gathered, size = [], 0
    yield "".join(gathered)


class Scrape:
    """A streamed response to a scrape; `soon` schedules the next part after other pending work."""

    content_type: Final = CONTENT_TYPE
    times_out: Final = False

    def __init__(self, parts: Iterator[str], soon: Callable[[Callable[[], None]], object]) -> None:
        self.is_over = False
        self.on_news: Callable[[], None] = _ignore
        self._parts = parts
        self._soon = soon
        self._comes_back = False

    def take(self) -> Sequence[Any]:
        """Return the next part, or nothing if it is not due yet."""
        if self._comes_back or self.is_over:
            return ()
        part = next(self._parts, None)
        if part is None:
            self.is_over = True
            return ()
        self._comes_back = True
        self._soon(self._go_on)
        return (part.encode(),) if part else ()

    def mark(self) -> None:
        """Ignored: a scrape has no bookmarks."""

    def end(self) -> None:
        """Stop: the client closed the connection."""
        self.is_over = True

    def _go_on(self) -> None:
        self._comes_back = False
        self.on_news()


def groups_in(query: Mapping[str, str], pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return the groups that a query names."""
    return [value for name, value in pairs if name == CHOICE] or ([query[CHOICE]] if CHOICE in query else [])


def _ignore() -> None:
    pass


# --- families ---
#
# The families of a group that accumulate values, by name.


class MetricGroup:
    """Counters and histograms by name; `constant` is the value of their last label, if that never changes."""

    def __init__(self, names: Iterable[str], *constant: str) -> None:
        found = [metric(name) for name in names]
        self._histograms = {m.name: Histograms(m, *constant) for m in found if m.kind == HISTOGRAM}
        self._counters = {m.name: Counters(m, *constant) for m in found if m.kind != HISTOGRAM}
        self._families: Sequence[Counters | Histograms] = (*self._counters.values(), *self._histograms.values())

    def counters(self, name: str) -> Counters:
        """Return the counter of a name."""
        return self._counters[name]

    def histograms(self, name: str) -> Histograms:
        """Return the histogram of a name."""
        return self._histograms[name]

    def add(self, name: str, labels: Labels, amount: float = 1) -> None:
        """Add to a counter."""
        self._counters[name].add(labels, amount)

    def set(self, name: str, labels: Labels, value: float) -> None:
        """Set a gauge."""
        self._counters[name].set(labels, value)

    def observe(self, name: str, labels: Labels, value: float) -> None:
        """Observe a value of a histogram."""
        self._histograms[name].observe(labels, value)

    def forget(self, **labels: str) -> None:
        """Delete the series with these label values, in the families that have these labels."""
        for family in self._families:
            if all(name in family.metric.labels for name in labels):
                family.forget(**labels)

    def texts(self) -> Iterator[str]:
        """Yield the text of all families."""
        for family in self._families:
            yield from family.texts()
