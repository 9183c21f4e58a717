"""The response of the /metrics endpoint, sent in chunks so that a scrape does not block the server for long.

The query parameter `collect[]` selects groups of metrics; without it, the response contains all groups.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.metrics.definitions import GROUPS, metric
from batchyard.metrics.registry import HISTOGRAM, Counters, Histograms, Labels

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
#: The path of the endpoint, and the query parameter that selects groups.
METRICS_PATH: Final = "/metrics"
GROUPS_PARAMETER: Final = "collect[]"
#: The number of characters that are buffered before a chunk is sent.
_CHUNK_CHARACTERS: Final = 128 * 1024

TextSource: TypeAlias = Callable[[], Iterator[str]]
"""Yields the text of complete families; an empty string marks a point where the server may do other work."""


class Exposition:
    """The output of /metrics: the metric groups in order, each with the function that yields its text."""

    def __init__(self, sources: Sequence[tuple[str, TextSource]]) -> None:
        self._sources = sources

    def text_chunks(self, groups: Sequence[str] = ()) -> Iterator[str]:
        """Yield the text of these metric groups (default: all) in chunks. Raises ValueError for an unknown group.

        An empty chunk marks a point where the server may do other work.
        """
        unknown_groups = [group for group in groups if group not in GROUPS]
        if unknown_groups:
            raise ValueError(f"{GROUPS_PARAMETER} must be one of {', '.join(GROUPS)}, not {unknown_groups[0]}")
        selected_sources = [texts for group, texts in self._sources if not groups or group in groups]
        return _join_chunks(selected_sources)


def _join_chunks(text_sources: Sequence[TextSource]) -> Iterator[str]:
    buffered_chunks: list[str] = []
    buffered_size = 0
    for source in text_sources:
        for text in source():
            if not text:
                yield ""
                continue
            buffered_chunks.append(text)
            buffered_size += len(text)
            if buffered_size >= _CHUNK_CHARACTERS:
                yield "".join(buffered_chunks)
                buffered_chunks, buffered_size = [], 0
    yield "".join(buffered_chunks)


class Scrape:
    """The streamed response to one scrape; `schedule` runs a function later, after other pending work of the server."""

    content_type: Final = CONTENT_TYPE
    times_out: Final = False

    def __init__(self, chunks: Iterator[str], schedule: Callable[[Callable[[], None]], object]) -> None:
        self.is_over = False
        self.on_new_data: Callable[[], None] = _do_nothing
        self._chunks = chunks
        self._schedule = schedule
        self._is_scheduled = False

    def take_buffered_data(self) -> Sequence[Any]:
        """Return the next chunk as the only item; () during a pause, before the chunk is due, or after the end."""
        if self._is_scheduled or self.is_over:
            return ()
        chunk = next(self._chunks, None)
        if chunk is None:
            self.is_over = True
            return ()
        self._is_scheduled = True
        self._schedule(self._resume)
        return (chunk.encode(),) if chunk else ()

    def send_keep_alive(self) -> None:
        """Do nothing: only the responses of watches have bookmarks."""

    def end(self) -> None:
        """End the response, because the client closed the connection."""
        self.is_over = True

    def _resume(self) -> None:
        self._is_scheduled = False
        self.on_new_data()


def selected_groups(query: Mapping[str, str], query_items: Sequence[tuple[str, str]]) -> list[str]:
    """Return the metric groups that the query parameter `collect[]` names; empty if the parameter is missing."""
    return [value for name, value in query_items if name == GROUPS_PARAMETER] or (
        [query[GROUPS_PARAMETER]] if GROUPS_PARAMETER in query else []
    )


def _do_nothing() -> None:
    pass


class MetricGroup:
    """The series of several counters, gauges and histograms; `constant_values` are fixed values of the last labels."""

    def __init__(self, names: Iterable[str], *constant_values: str) -> None:
        metrics = [metric(name) for name in names]
        self._histograms = {m.name: Histograms(m, *constant_values) for m in metrics if m.kind == HISTOGRAM}
        self._counters = {m.name: Counters(m, *constant_values) for m in metrics if m.kind != HISTOGRAM}
        self._families: Sequence[Counters | Histograms] = (*self._counters.values(), *self._histograms.values())

    def counters(self, name: str) -> Counters:
        """Return the series of the counter or gauge with this name."""
        return self._counters[name]

    def histograms(self, name: str) -> Histograms:
        """Return the series of the histogram with this name."""
        return self._histograms[name]

    def add(self, name: str, labels: Labels, amount: float = 1) -> None:
        """Add `amount` to one series of the counter or gauge `name`: the series with these label values."""
        self._counters[name].add(labels, amount)

    def set(self, name: str, labels: Labels, value: float) -> None:
        """Set the value of the series with these label values, of the gauge `name`."""
        self._counters[name].set(labels, value)

    def observe(self, name: str, labels: Labels, value: float) -> None:
        """Add an observed value to one series of the histogram `name`: the series with these label values."""
        self._histograms[name].observe(labels, value)

    def forget(self, **labels: str) -> None:
        """Delete all series with these label values (NAME=VALUE) from each metric that has all of these labels."""
        for family in self._families:
            if all(name in family.metric.labels for name in labels):
                family.forget(**labels)

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of all metrics of the group."""
        for family in self._families:
            yield from family.texts()
