"""Metrics that `batchyard up` and `batchyard operator` share: of the process, and of the observed controllers."""

import gc
import logging
import os
import platform
import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Final

from batchyard.api import scheme
from batchyard.base.instant import Instant
from batchyard.base.primitives import LruCache
from batchyard.controller_runtime.runner import Runner
from batchyard.interfaces.client import EventType, ObjectClient, WatchEvent
from batchyard.metrics.controllers import ControllerMetrics
from batchyard.metrics.definitions import metric
from batchyard.metrics.exposition import MetricSelection, TextSource
from batchyard.metrics.objects import CostMetrics, MachineMetrics, ObjectMetrics
from batchyard.metrics.queues import QueueMetrics
from batchyard.metrics.registry import gauge_text
from batchyard.metrics.workloads import CycleMetrics, WorkloadMetrics
from batchyard.scheduling.kueue_configuration import MetricsSettings
from batchyard.server.clocks.wall import monotonic_seconds
from batchyard.wiring import WiredPlatform

# Resource usage of this process, by the metric names of Prometheus's client libraries.
#
# Source: prometheus.io/docs/instrumenting/writing_clientlibs.


_PAGE_SIZE: Final = resource.getpagesize()
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


def process_metric_texts() -> Iterator[str]:
    """Yield the metrics of this process, such as CPU time and memory, in Prometheus's text format."""
    stat_fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    btime_lines = [line for line in Path("/proc/stat").read_text("ascii").splitlines() if line.startswith("btime ")]
    values_by_metric = {
        "process_cpu_seconds_total": (int(stat_fields[11]) + int(stat_fields[12])) / _TICKS_PER_SECOND,
        "process_resident_memory_bytes": int(stat_fields[21]) * _PAGE_SIZE,
        "process_virtual_memory_bytes": int(stat_fields[20]),
        "process_start_time_seconds": int(btime_lines[0].split()[1]) + int(stat_fields[19]) / _TICKS_PER_SECOND,
        "process_open_fds": len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - only the names are counted
        "process_max_fds": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
    for name, value in values_by_metric.items():
        yield gauge_text(metric(name), [((), value)])
    yield _python_info_metric_text()
    stats = list(enumerate(gc.get_stats()))
    yield gauge_text(metric("python_gc_collections_total"), (((str(n),), each["collections"]) for n, each in stats))
    yield gauge_text(metric("python_gc_objects_collected_total"), (((str(n),), each["collected"]) for n, each in stats))


def build_info_texts() -> Iterator[str]:
    """Yield the metric kueue_build_info, with batchyard's version, the Python implementation and the platform."""
    machine_platform = f"{platform.system().lower()}/{platform.machine()}"
    labels = (f"v{version('batchyard')}", "", "", "", platform.python_implementation(), machine_platform)
    yield gauge_text(metric("kueue_build_info"), [(labels, 1)])


def _python_info_metric_text() -> str:
    version_parts = platform.python_version_tuple()
    labels = (platform.python_implementation(), *version_parts, platform.python_version())
    return gauge_text(metric("python_info"), [(labels, 1)])


#: The `replica_role` of a process without leader election, and of an elected leader.
STANDALONE: Final = "standalone"
LEADER: Final = "leader"


@dataclass(frozen=True, slots=True)
class ObservedPlatform:
    """A set of running controllers whose metrics are collected, with their client, clock and settings."""

    platform: WiredPlatform
    client: ObjectClient
    now: Callable[[], Instant]
    fair_sharing: bool
    selection: MetricsSettings = field(default_factory=MetricsSettings)


_LOG: Final = logging.getLogger("batchyard")
_LOGGED_DEFECTS_MAX: Final = 1000


class ServerMetrics:
    """The metrics of a platform's controllers. Most of them are collected only after `begin` is called."""

    def __init__(self, role: str = STANDALONE) -> None:
        self._role = role
        self.cycles = CycleMetrics(monotonic_seconds, role)
        self._controllers = ControllerMetrics(monotonic_seconds)
        self.objects = ObjectMetrics()
        self._machines = MachineMetrics()
        self._costs = CostMetrics()
        self._observed: ObservedPlatform | None = None
        #: The metrics that need a platform; None until `begin`.
        self._workloads: WorkloadMetrics | None = None
        self._queues: QueueMetrics | None = None
        self._selection: MetricSelection | None = None
        self._runner: Runner | None = None
        self.defects = 0
        #: The last defects in the log, each by its exception and the object that the controller reconciled.
        self._logged_defects: LruCache[tuple[str, ...], bool] = LruCache(_LOGGED_DEFECTS_MAX)
        #: Functions that yield more metrics, such as those of the decision ledger and the trace export.
        self.additional_sources: list[TextSource] = []
        #: Functions that yield more metrics of the API server.
        self.api_sources: list[TextSource] = []

    def record_defect(self, error: Exception) -> None:
        """Count an unexpected exception of a controller, and log it; its retries for the same object are not logged."""
        self.defects += 1
        actions = [note.rpartition(" at instant ")[0] for note in error.__notes__]
        defect = (repr(error), *actions)
        if not self._logged_defects.get(defect):
            self._logged_defects.put(defect, True)
            _LOG.error("unexpected exception %s", "; ".join(error.__notes__), exc_info=error)

    def begin(self, observed_platform: ObservedPlatform, existing_events: Iterable[WatchEvent]) -> None:
        """Start to collect metrics of a platform's controllers, given the existing objects as ADDED events."""
        index, objects = observed_platform.platform.index, observed_platform.client
        self._observed = observed_platform
        self._selection = MetricSelection(observed_platform.selection, objects)
        custom_labels = observed_platform.selection.custom_labels
        workloads = WorkloadMetrics(index, objects, observed_platform.now, self._role, custom_labels)
        self._workloads = workloads
        self._queues = QueueMetrics(index, workloads, objects, self._role, fair_sharing=observed_platform.fair_sharing)
        self._runner = observed_platform.platform.runner
        for event in existing_events:
            workloads.observe_existing(event)
            self.objects.observe(event)
            self._machines.observe_existing(event)
        observed_platform.client.subscribe(self._observe)
        self._runner.meter = self._controllers

    def sources(self) -> Sequence[tuple[str, TextSource]]:
        """Return pairs of a metric group and a function that yields metrics of the group.

        Before `begin`, there are no metrics of Workloads, queues, controllers and costs.
        """
        return (
            ("kueue", build_info_texts),
            ("kueue", self._cycle_metric_texts),
            ("kueue", self._workload_and_queue_metric_texts),
            ("program", self._controller_texts),
            ("program", process_metric_texts),
            ("batchyard", self._batchyard_texts),
            ("objects", self.objects.texts),
        )

    def _workload_and_queue_metric_texts(self) -> Iterator[str]:
        if self._workloads is not None and self._queues is not None and self._selection is not None:
            yield from self._selection.select(self._workloads.texts())
            yield from self._selection.select(self._queues.texts())

    def _cycle_metric_texts(self) -> Iterator[str]:
        texts = self.cycles.texts()
        return texts if self._selection is None else self._selection.select(texts)

    def _controller_texts(self) -> Iterator[str]:
        if self._runner is not None:
            yield from self._controllers.texts(self._runner)
        for texts in self.api_sources:
            yield from texts()

    def _observe(self, events: Sequence[WatchEvent]) -> None:
        workload_metrics, queue_metrics = self._workloads, self._queues
        assert workload_metrics is not None, "begin must be called before changes are observed"
        assert queue_metrics is not None, "begin must be called before changes are observed"
        for event in events:
            workload_metrics.observe(event)
            queue_metrics.observe(event)
            self.objects.observe(event)
            self._machines.observe(event)
            if event.type is EventType.DELETED:
                if event.key.kind == scheme.CLUSTER_QUEUE:
                    self.cycles.forget_queue(event.key.name)
            elif self._selection is not None and self._selection.resets_counters(event):
                workload_metrics.forget_series(event.key)
                if event.key.kind == scheme.CLUSTER_QUEUE:
                    self.cycles.forget_upstream_series(event.key.name)

    def _batchyard_texts(self) -> Iterator[str]:
        yield from self.cycles.own_texts()
        yield from self._machines.texts()
        yield gauge_text(metric("batchyard_defects_total"), [((), self.defects)])
        for texts in self.additional_sources:
            yield from texts()
        observed_platform = self._observed
        if observed_platform is not None:
            yield from self._costs.texts(
                observed_platform.platform.costs, observed_platform.client, observed_platform.now()
            )
