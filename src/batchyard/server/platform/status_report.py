"""The status document of a platform (health, version, object counts), and the platform's metrics."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final, Protocol

from batchyard.api import scheme
from batchyard.api.meta import Obj, is_true
from batchyard.api.times import format_time
from batchyard.apiserver.request import AnyResponse, ApiRequest, Response, bad_request
from batchyard.apiserver.server import ApiServer
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import WatchEvent
from batchyard.metrics.controllers import RequestMetrics
from batchyard.metrics.definitions import metric
from batchyard.metrics.exposition import CONTENT_TYPE, METRICS_PATH, Exposition, Scrape, selected_groups
from batchyard.metrics.gpus import GpuState, SimulatedGpus, gpu_metric_texts
from batchyard.metrics.registry import Histograms, gauge_text
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import monotonic_seconds
from batchyard.server.metrics import ObservedPlatform, ServerMetrics
from batchyard.server.platform.data_dir import DEFAULT_KUEUE_VERSION, JOURNAL_FILE, PlatformOptions

#: The URL path of the document.
STATUS_REPORT_PATH: Final = "/batchyard/status"


class StatusObjects(Protocol):
    """Read access to the stored objects, for the platform's status document."""

    @property
    def revision(self) -> int:
        """The revision of the last change."""

    def kinds(self) -> Sequence[str]:
        """Return the kinds that have objects, sorted."""

    def count(self, kind: str) -> int:
        """Return the number of objects of a kind."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return the objects of a kind in a namespace (None: in all), sorted by namespace and name."""


class StatusReport:
    """Creates the status document of a platform.

    `start_time` is wall-clock time. `speed` is that of the platform's time, as a multiple of real time.
    """

    def __init__(self, objects: StatusObjects, options: PlatformOptions, start_time: Instant, speed: float) -> None:
        self._objects = objects
        self._journal_path = options.folder / JOURNAL_FILE
        self._started_at = start_time
        self._speed = speed
        self._sync = options.sync
        self._controllers = options.controllers
        self._configuration = options.configuration
        self._kueue_version = options.kueue_version or DEFAULT_KUEUE_VERSION

    def document(self, *, wall: Instant, clock: Instant, node_status: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return the platform's status document.

        `wall` is the current wall-clock time, `clock` the platform's current time. `node_status` describes the local
        node, if there is one.
        """
        objects = self._objects
        nodes, cluster_queues = objects.list(scheme.NODE), objects.list(scheme.CLUSTER_QUEUE)
        return {
            "health": "ok",
            "version": version("batchyard"),
            "started": format_time(self._started_at // SECOND * SECOND),
            "uptimeSeconds": (wall - self._started_at) // SECOND,
            "time": format_time(clock // SECOND * SECOND),
            "instant": clock,
            "speed": self._speed,
            "controllers": list(self._controllers),
            "revision": objects.revision,
            "sync": str(self._sync),
            "journalBytes": self.journal_bytes(),
            "nodes": {"ready": sum(is_true(node, "Ready") for node in nodes), "all": len(nodes)},
            "workloads": {
                "pending": _sum_status_field(cluster_queues, "pendingWorkloads"),
                "admitted": _sum_status_field(cluster_queues, "admittedWorkloads"),
                "all": objects.count(scheme.WORKLOAD),
            },
            "objects": dict(self.counts()),
            **({} if self._configuration is None else {"configuration": self._configuration}),
            "kueueVersion": self._kueue_version,
            **({} if node_status is None else {"local": node_status}),
        }

    @property
    def revision(self) -> int:
        """The revision of the last change in the store."""
        return self._objects.revision

    def counts(self) -> Sequence[tuple[str, int]]:
        """Return the kinds that have objects, sorted, each with its number of objects."""
        return [(kind, self._objects.count(kind)) for kind in self._objects.kinds()]

    def journal_bytes(self) -> int:
        """Return the size of the journal file in bytes, including its write-ahead log."""
        journal_files = [self._journal_path, self._journal_path.with_name(f"{self._journal_path.name}-wal")]
        return sum(path.stat().st_size for path in journal_files if path.exists())


def _sum_status_field(queues: Sequence[Obj], field: str) -> int:
    return sum((queue.get("status") or {}).get(field, 0) for queue in queues)


# Metrics of an embedded platform at /metrics: the common metrics, and those of requests, the journal and the clock.


class StoreStatistics(Protocol):
    """Statistics of the stored objects and of the journal, for metrics."""

    def counts(self) -> Iterable[tuple[str, int]]:
        """Return the kinds that have objects, each with its number of objects."""

    @property
    def revision(self) -> int:
        """The revision of the last change in the store."""

    def journal_bytes(self) -> int:
        """Return the size of the journal in bytes."""


class EmbeddedMetrics:
    """The metrics that a platform serves at /metrics."""

    def __init__(self, statistics: StoreStatistics, kernel: LiveKernel, speed: float) -> None:
        self._statistics = statistics
        self._kernel = kernel
        self._speed = speed
        self.server_metrics = ServerMetrics()
        self.requests = RequestMetrics(monotonic_seconds)
        self._commits = Histograms(metric("batchyard_journal_commit_seconds"))
        #: Returns the number of watches and other streaming responses in progress.
        self.watch_count: Callable[[], int] = _zero_watches
        self._simulated_gpus = SimulatedGpus()
        #: The name of the local node, or '', and a function that returns its GPUs. All other GPUs are simulated.
        self.local_node_name = ""
        self.read_local_gpus: Callable[[], Sequence[GpuState]] = tuple

    def begin(self, observed_platform: ObservedPlatform, events: Iterable[WatchEvent], server: ApiServer) -> None:
        """Start to collect metrics, and serve them at /metrics. `events` holds the existing objects as ADDED events."""
        self.server_metrics.begin(observed_platform, events)
        text_sources = [
            *self.server_metrics.sources(),
            ("program", self.requests.texts),
            ("batchyard", self._platform_texts),
            ("gpus", self._gpu_texts),
        ]
        exposition, loop = Exposition(text_sources), asyncio.get_running_loop()

        def serve_metrics(request: ApiRequest) -> AnyResponse:
            try:
                exposition_parts = exposition.text_chunks(selected_groups(request.query, request.query_items))
            except ValueError as error:
                raise bad_request(str(error)) from error
            if request.method == "HEAD":
                return Response(200, "", content_type=CONTENT_TYPE)
            return Scrape(exposition_parts, loop.call_soon)

        server.add_get_handler(METRICS_PATH, serve_metrics)

    def observe_commit(self, commit_seconds: float) -> None:
        """Record the duration of a journal transaction in seconds."""
        self._commits.observe((), commit_seconds)

    def _gpu_texts(self) -> Iterator[str]:
        objects = self.server_metrics.objects
        nodes = [node for node in objects.objects_of(scheme.NODE) if node["metadata"]["name"] != self.local_node_name]
        yield ""
        simulated_states = self._simulated_gpus.states(nodes, objects.objects_of(scheme.POD), self._kernel.clock())
        yield from gpu_metric_texts([*self.read_local_gpus(), *simulated_states])

    def _platform_texts(self) -> Iterator[str]:
        yield from self._commits.texts()
        yield gauge_text(metric("batchyard_objects"), (((kind,), count) for kind, count in self._statistics.counts()))
        values_by_name = {
            "batchyard_revision": self._statistics.revision,
            "batchyard_journal_bytes": self._statistics.journal_bytes(),
            "batchyard_time_seconds": self._kernel.clock() / SECOND,
            "batchyard_speed": self._speed,
            "batchyard_watches": self.watch_count(),
        }
        for name, value in values_by_name.items():
            yield gauge_text(metric(name), [((), value)])


def _zero_watches() -> int:
    return 0
