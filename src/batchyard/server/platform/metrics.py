"""Metrics of an embedded platform at /metrics: the common metrics, and those of requests, the journal and the clock."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

from batchyard.api import scheme
from batchyard.apiserver.request import ApiRequest, Response, bad_request
from batchyard.apiserver.responses import AnyResponse
from batchyard.apiserver.server import ApiServer
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import WatchEvent
from batchyard.metrics.definitions import metric
from batchyard.metrics.exposition import CONTENT_TYPE, PATH, Exposition, Scrape, groups_in
from batchyard.metrics.gpus import GpuState, SimulatedGpus, gpu_texts
from batchyard.metrics.registry import Histograms, text_of
from batchyard.metrics.requests import RequestMetrics
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import ticks
from batchyard.server.metrics import ObservedPlatform, ServerMetrics

_LOG: Final = logging.getLogger("batchyard")


class StoreStatistics(Protocol):
    """Statistics of the stored objects and of their journal."""

    def counts(self) -> Iterable[tuple[str, int]]:
        """Return the number of objects of each kind."""

    @property
    def revision(self) -> int:
        """The revision of the last change."""

    def journal_bytes(self) -> int:
        """Return the size of the journal in bytes."""


class EmbeddedMetrics:
    """The metric sources of an embedded platform."""

    def __init__(self, kept: StoreStatistics, kernel: LiveKernel, speed: float) -> None:
        self._kept = kept
        self._kernel = kernel
        self._speed = speed
        self.figures = ServerMetrics()
        self.requests = RequestMetrics(ticks)
        self._commits = Histograms(metric("batchyard_journal_commit_seconds"))
        #: Returns the number of watches and other streaming responses in progress.
        self.watches: Callable[[], int] = _none
        self._simulated = SimulatedGpus()
        #: The name of the local node, or '', and a function that returns its GPUs. All other GPUs are simulated.
        self.local = ""
        self.local_gpus: Callable[[], Sequence[GpuState]] = tuple

    def begin(self, observed: ObservedPlatform, found: Iterable[WatchEvent], server: ApiServer) -> None:
        """Observe the platform from now on, and serve its metrics."""
        self.figures.begin(observed, found)
        sources = [
            *self.figures.sources(),
            ("program", self.requests.texts),
            ("batchyard", self._own_texts),
            ("gpus", self._of_gpus),
        ]
        exposition, loop = Exposition(sources), asyncio.get_running_loop()

        def answer(request: ApiRequest) -> AnyResponse:
            try:
                parts = exposition.parts(groups_in(request.query, request.query_items))
            except ValueError as error:
                raise bad_request(str(error)) from error
            if request.method == "HEAD":
                return Response(200, "", content_type=CONTENT_TYPE)
            return Scrape(parts, loop.call_soon)

        server.add_handler(PATH, answer)

    def committed(self, seconds: float) -> None:
        """Record the duration of a journal transaction in seconds."""
        self._commits.observe((), seconds)

    def defect(self, error: Exception) -> None:
        """Count and log a defect in a controller. The other controllers keep running."""
        self.figures.defects += 1
        _LOG.error("defect %s", "; ".join(error.__notes__), exc_info=error)

    def _of_gpus(self) -> Iterator[str]:
        objects = self.figures.objects
        nodes = [node for node in objects.all(scheme.NODE) if node["metadata"]["name"] != self.local]
        yield ""
        simulated = self._simulated.states(nodes, objects.all(scheme.POD), self._kernel.clock())
        yield from gpu_texts([*self.local_gpus(), *simulated])

    def _own_texts(self) -> Iterator[str]:
        yield from self._commits.texts()
        yield text_of(metric("batchyard_objects"), (((kind,), count) for kind, count in self._kept.counts()))
        figures = {
            "batchyard_revision": self._kept.revision,
            "batchyard_journal_bytes": self._kept.journal_bytes(),
            "batchyard_time_seconds": self._kernel.clock() / SECOND,
            "batchyard_speed": self._speed,
            "batchyard_watches": self.watches(),
        }
        for name, value in figures.items():
            yield text_of(metric(name), [((), value)])


def _none() -> int:
    return 0
