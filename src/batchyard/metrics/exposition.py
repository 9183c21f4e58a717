"""The response of the /metrics endpoint, sent in chunks so that a scrape does not block the server for long.

The query parameter `collect[]` selects groups of metrics; without it, the response contains all groups.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import Reader, WatchEvent
from batchyard.metrics.definitions import GROUPS, metric
from batchyard.metrics.registry import HISTOGRAM, Counters, Histograms, Labels, Metric, format_labels
from batchyard.scheduling.kueue_configuration import WORKLOAD_SOURCE, CustomMetricLabel, MetricsSettings

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


_NO_KEPT_LABELS: Final[Mapping[str, Labels]] = {}
#: The metrics that also have the custom labels of Workloads. Source: InitMetricVectors in pkg/metrics/metrics.go.
_METRICS_BY_WORKLOAD_LABELS: Final = frozenset(
    {
        "kueue_pending_workloads",
        "kueue_admitted_active_workloads",
        "kueue_local_queue_admitted_active_workloads",
        "kueue_local_queue_admitted_workloads_total",
        "kueue_local_queue_admission_wait_time_seconds",
    }
)


def metric_by_workload_labels(name: str, workload_labels: Labels) -> Metric:
    """Return the definition of a metric with this full name, with the custom labels of Workloads if it has them.

    These labels come before the last label, `replica_role`. Raises KeyError if there is no such metric.
    """
    definition = metric(name)
    return _with_labels(definition, workload_labels) if name in _METRICS_BY_WORKLOAD_LABELS else definition


def _with_labels(definition: Metric, names: Labels) -> Metric:
    """Return the definition with more labels before its last one."""
    return definition._replace(labels=(*definition.labels[:-1], *names, definition.labels[-1])) if names else definition


class MetricGroup:
    """The series of several counters, gauges and histograms; `constant_values` are fixed values of the last labels.

    `kept_labels` are custom labels by metric. Their values are those of the time of the count, so the observers add
    them.
    """

    def __init__(
        self,
        names: Iterable[str],
        *constant_values: str,
        workload_labels: Labels = (),
        kept_labels: Mapping[str, Labels] = _NO_KEPT_LABELS,
    ) -> None:
        metrics = [
            _with_labels(metric_by_workload_labels(name, workload_labels), kept_labels.get(name, ())) for name in names
        ]
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


# Kueue's metrics as the section `metrics` of its Configuration and its feature gates select them.
#
# Custom labels of queues and Cohorts are added at each scrape, with the current labels and annotations of a series'
# queue or Cohort. As in Kueue, a change of a queue's labels deletes its series, so its counters start at zero again. A
# Cohort keeps its counters: they have the values of the time of the count. Such labels, and those of Workloads,
# distinguish series, so the observers of Workloads add them. Sources: pkg/metrics/custom_labels.go and localqueue.go of
# Kueue; Update in clusterqueue_controller.go, localqueue_controller.go and cohort_controller.go of pkg/controller/core.


UNTRACKED_VALUE: Final = "kueue.x-k8s.io/_UNTRACKED_VALUE_"
_LABEL_PATTERN: Final = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')
_LOCAL_QUEUE_PREFIX, _COHORT_PREFIX = "kueue_local_queue_", "kueue_cohort_"
_INFO_METRICS: Final = ("kueue_cohort_info", "kueue_cluster_queue_info")
_RESOURCE_METRICS: Final = tuple(
    f"kueue_cluster_queue_{name}" for name in ("nominal_quota", "borrowing_limit", "lending_limit", "resource_")
)


class CustomLabels:
    """The custom labels of metrics whose values are labels or annotations of the objects of one kind.

    Source: pkg/metrics/custom_labels.go of Kueue.
    """

    def __init__(self, labels: Iterable[CustomMetricLabel] = (), source_kind: str = WORKLOAD_SOURCE) -> None:
        self._labels = tuple(label for label in labels if label.source_kind == source_kind)
        #: The names of the labels, in the order of the Configuration.
        self.names: Labels = tuple(label.name for label in self._labels)

    def values_of(self, obj: Obj | None) -> Labels:
        """Return the values of the labels for an object; '' for each missing one, also of an object that is gone."""
        metadata = {} if obj is None else obj["metadata"]
        return tuple([_label_value(label, metadata) for label in self._labels])


#: The metrics whose custom labels of Cohorts or LocalQueues keep the values of the time of the count.
COHORT_COUNTER: Final = "kueue_cohort_subtree_admitted_workloads_total"
CREATION_LATENCY: Final = "kueue_workload_creation_latency_seconds"
#: The number of different values of custom labels that each Cohort or kind of job keeps.
_KEPT_VALUES_MAX: Final = 1000


class KeptLabels:
    """The custom labels of counters that keep the values of the time of the count.

    Each owner of counters, such as a Cohort, keeps a limited number of different values. Above the limit, new values
    count as untracked.
    """

    def __init__(self, labels: Iterable[CustomMetricLabel] = (), source_kind: str = WORKLOAD_SOURCE) -> None:
        self._labels = CustomLabels(labels, source_kind)
        self.names: Labels = self._labels.names
        self._values_by_owner: dict[str, set[Labels]] = {}

    def values_of(self, owner: str, find_source: Callable[[], Obj | None]) -> Labels:
        """Return the values to count with now for the counters of `owner`; they are those of the source object."""
        if not self.names:
            return ()
        values = self._labels.values_of(find_source())
        known_values = self._values_by_owner.setdefault(owner, set())
        if values not in known_values:
            if len(known_values) >= _KEPT_VALUES_MAX:
                return (UNTRACKED_VALUE,) * len(values)
            known_values.add(values)
        return values

    def forget(self, owner: str) -> None:
        """Forget the values of an owner whose counters were deleted."""
        self._values_by_owner.pop(owner, None)


class MetricSelection:
    """Selects Kueue's metrics and adds custom labels to them, as a Configuration specifies."""

    def __init__(self, settings: MetricsSettings, objects: Reader) -> None:
        self._settings = settings
        self._objects = objects
        self._is_default = settings == MetricsSettings()
        prefixes = {
            _LOCAL_QUEUE_PREFIX: settings.has_local_queues,
            **dict.fromkeys(_INFO_METRICS, settings.has_cohort_info),
            CREATION_LATENCY: settings.has_creation_latency,
            **dict.fromkeys(_RESOURCE_METRICS, settings.has_cluster_queue_resources),
        }
        self._omitted_prefixes = tuple(prefix for prefix, is_served in prefixes.items() if not is_served)
        self._custom_labels = {
            kind: CustomLabels(settings.custom_labels, kind_name) for kind, kind_name in _KIND_NAMES.items()
        }

    def select(self, texts: Iterator[str]) -> Iterator[str]:
        """Yield exposition texts without the omitted metrics and LocalQueues, and with custom labels."""
        return texts if self._is_default else map(self._select_lines, texts)

    def resets_counters(self, event: WatchEvent) -> bool:
        """Return whether a change of a queue deletes its series: custom labels change, or it enters or leaves them."""
        kind, new, old = event.key.kind, event.obj, event.old
        if self._is_default or old is None or kind not in _QUEUE_KINDS or "deletionTimestamp" in new["metadata"]:
            return False
        labels, old_labels = (each["metadata"].get("labels") or {} for each in (new, old))
        if kind == scheme.LOCAL_QUEUE and self._selects(labels) is not self._selects(old_labels):
            return True
        values_of = self._custom_labels[kind].values_of
        return values_of(new) != values_of(old)

    def _select_lines(self, text: str) -> str:
        return "".join([selected for line in text.split("\n") if line and (selected := self._select_line(line))])

    def _select_line(self, line: str) -> str:
        """Return a line with its end, and a sample with its custom labels; '' if its metric or queue is omitted."""
        is_comment = line.startswith("# ")
        name = line.split(" ", 3)[2] if is_comment else re.split(r"[{ ]", line, maxsplit=1)[0]
        if name.startswith(self._omitted_prefixes):
            return ""
        source = None if is_comment else _source_of(name, dict(_LABEL_PATTERN.findall(line)))
        if source is None:
            return f"{line}\n"
        obj = self._objects.get(source)
        metadata = {} if obj is None else obj["metadata"]
        if source.kind == scheme.LOCAL_QUEUE and not self._selects(metadata.get("labels") or {}):
            return ""
        custom_labels = self._custom_labels[source.kind]
        if not custom_labels.names or name == COHORT_COUNTER:
            return f"{line}\n"
        label_text = format_labels(custom_labels.names, custom_labels.values_of(obj))
        return f"{_insert_labels(line, label_text[1:-1])}\n"

    def _selects(self, labels: Mapping[str, str]) -> bool:
        selector = self._settings.local_queue_selector
        return selector is None or selector.matches(labels)


_QUEUE_KINDS: Final = (scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE)
_KIND_NAMES: Final = {scheme.CLUSTER_QUEUE: "ClusterQueue", scheme.COHORT: "Cohort", scheme.LOCAL_QUEUE: "LocalQueue"}


def _source_of(metric_name: str, labels: Mapping[str, str]) -> Key | None:
    """Return the key of the queue or Cohort that a series of Kueue belongs to; None if it belongs to none."""
    if metric_name.startswith(_LOCAL_QUEUE_PREFIX):
        return Key(scheme.LOCAL_QUEUE, labels["namespace"], labels["name"])
    if metric_name.startswith(_COHORT_PREFIX):
        return Key(scheme.COHORT, "", labels["cohort"])
    name = labels.get("cluster_queue") or labels.get("preempting_cluster_queue")
    return Key(scheme.CLUSTER_QUEUE, "", name) if name else None


def _label_value(label: CustomMetricLabel, metadata: Mapping[str, Any]) -> str:
    value: str = (metadata.get("annotations" if label.is_annotation else "labels") or {}).get(label.key, "")
    return value if not label.tracked_values or value in label.tracked_values else UNTRACKED_VALUE


def _insert_labels(line: str, label_text: str) -> str:
    """Insert labels after the last label of a sample line, but before `le`, which stays the last."""
    bound_start = line.rfind(',le="')
    end = bound_start if bound_start >= 0 else line.rindex("}")
    return f"{line[:end]},{label_text}{line[end:]}"
