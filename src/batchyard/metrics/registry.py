"""Metric families (counters, histograms, gauges) and their output in Prometheus text format 0.0.4.

The text of samples that did not change since the last scrape is reused.
Source: prometheus.io/docs/instrumenting/exposition_formats.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

Labels: TypeAlias = tuple[str, ...]

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"
#: The number of series that are formatted before the scrape may pause.
_SERIES_PER_CHUNK: Final = 100
_SAMPLES_PER_CHUNK: Final = 1000
_Series = TypeVar("_Series")
_LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metric(NamedTuple):
    """The definition of a metric: name, type, help text, label names, and for a histogram the bucket bounds."""

    name: str
    kind: str
    help: str
    labels: Labels = ()
    buckets: tuple[float, ...] = ()

    def header_lines(self) -> str:
        """Return the HELP and TYPE lines of the metric's exposition text."""
        escaped_help = self.help.replace("\\", r"\\").replace("\n", r"\n")
        return f"# HELP {self.name} {escaped_help}\n# TYPE {self.name} {self.kind}\n"

    def sample(self, label_values: Iterable[str], value: float) -> str:
        """Format a sample line of a gauge or counter; `label_values` are in the order of the labels."""
        return f"{self.name}{format_labels(self.labels, label_values)} {format_value(value)}\n"


def format_labels(names: Iterable[str], values: Iterable[str]) -> str:
    """Format labels as in a sample line: `{name="value",...}`. Names without a value, which come last, are omitted."""
    label_texts = [f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in zip(names, values, strict=False)]
    return f"{{{','.join(label_texts)}}}" if label_texts else ""


def format_value(value: float) -> str:
    """Format the numeric value of a sample, with `NaN`, `+Inf` and `-Inf` as Prometheus writes them."""
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "+Inf" if value > 0 else "-Inf"
        if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
    return repr(value)


def gauge_text(metric: Metric, samples: Iterable[tuple[Labels, float]]) -> str:
    """Return the exposition text of a gauge or counter; an empty string if there are no samples."""
    lines = [metric.sample(labels, value) for labels, value in samples]
    return metric.header_lines() + "".join(lines) if lines else ""


def gauge_text_chunks(metric: Metric, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    """Yield the exposition text of a gauge in chunks, after collecting all samples; nothing if there are no samples."""
    rows = list(samples)
    if rows:
        yield metric.header_lines()
    for start in range(0, len(rows), _SAMPLES_PER_CHUNK):
        yield "".join([metric.sample(labels, value) for labels, value in rows[start : start + _SAMPLES_PER_CHUNK]])


class _CounterSeries:
    __slots__ = ("text", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.text = ""


class Counters:
    """All series of one counter or gauge, by label values; `constant_values` are fixed values of the last labels."""

    def __init__(self, metric: Metric, *constant_values: str) -> None:
        self.metric = metric
        self._constant_values = constant_values
        self._series: dict[Labels, _CounterSeries] = {}

    def add(self, labels: Labels, amount: float = 1) -> None:
        """Add `amount` to the series with these label values; a new series starts at 0."""
        counter_series = self._series.get(labels)
        if counter_series is None:
            counter_series = self._series[labels] = _CounterSeries()
        counter_series.value += amount
        counter_series.text = ""

    def set(self, labels: Labels, value: float) -> None:
        """Set the value of the series with these label values."""
        self.add(labels, 0)
        self._series[labels].value = value

    def forget(self, **labels: str) -> None:
        """Delete all series that have these label values (NAME=VALUE)."""
        _delete_matching(self._series, self.metric, labels)

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of all series in chunks; nothing if there are none."""
        return _yield_chunks(self.metric, self._series, self._format_series)

    def _format_series(self, labels: Labels, counter_series: _CounterSeries) -> str:
        if not counter_series.text:
            counter_series.text = self.metric.sample((*labels, *self._constant_values), counter_series.value)
        return counter_series.text


class _HistogramSeries:
    __slots__ = ("counts", "sum", "text")

    def __init__(self, bucket_count: int) -> None:
        self.counts = [0] * (bucket_count + 1)
        self.sum = 0.0
        self.text = ""


class Histograms:
    """All series of one histogram, by label values; `constant_values` are fixed values of the last labels."""

    def __init__(self, metric: Metric, *constant_values: str) -> None:
        self.metric = metric
        self._constant_values = constant_values
        self._bounds = [format_value(bound) for bound in metric.buckets] + ["+Inf"]
        self._series: dict[Labels, _HistogramSeries] = {}

    def observe(self, labels: Labels, value: float) -> None:
        """Add an observed value to the series with these label values."""
        histogram = self._series.get(labels)
        if histogram is None:
            histogram = self._series[labels] = _HistogramSeries(len(self.metric.buckets))
        histogram.counts[bisect_left(self.metric.buckets, value)] += 1
        histogram.sum += value
        histogram.text = ""

    def forget(self, **labels: str) -> None:
        """Delete all series that have these label values (NAME=VALUE)."""
        _delete_matching(self._series, self.metric, labels)

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of all series in chunks; nothing if there are none."""
        return _yield_chunks(self.metric, self._series, self._format_series)

    def _format_series(self, labels: Labels, histogram: _HistogramSeries) -> str:
        if not histogram.text:
            histogram.text = self._format_histogram(labels, histogram)
        return histogram.text

    def _format_histogram(self, labels: Labels, histogram: _HistogramSeries) -> str:
        name = self.metric.name
        label_text = format_labels(self.metric.labels, (*labels, *self._constant_values))
        bucket_prefix = f"{label_text[:-1]}," if label_text else "{"
        lines, cumulative = [], 0
        for bound, count in zip(self._bounds, histogram.counts, strict=True):
            cumulative += count
            lines.append(f'{name}_bucket{bucket_prefix}le="{bound}"}} {cumulative}\n')
        lines.append(f"{name}_sum{label_text} {format_value(histogram.sum)}\n{name}_count{label_text} {cumulative}\n")
        return "".join(lines)


def _yield_chunks(
    metric: Metric, series: Mapping[Labels, _Series], format_series: Callable[[Labels, _Series], str]
) -> Iterator[str]:
    """Yield a metric's HELP and TYPE lines and its series in chunks, so that the caller may pause between chunks."""
    if series:
        yield metric.header_lines()
    series_items = list(series.items())
    for start in range(0, len(series_items), _SERIES_PER_CHUNK):
        yield "".join([format_series(labels, item) for labels, item in series_items[start : start + _SERIES_PER_CHUNK]])


def _delete_matching(
    series: dict[Labels, _CounterSeries] | dict[Labels, _HistogramSeries], metric: Metric, label_values: dict[str, str]
) -> None:
    conditions: Sequence[tuple[int, str]] = [(metric.labels.index(name), value) for name, value in label_values.items()]
    for labels in [labels for labels in series if all(labels[position] == value for position, value in conditions)]:
        del series[labels]
