"""The shadow: watches a cluster on which Kueue decides, and reports where batchyard would decide otherwise.

It writes nothing: its transport rejects writes. So it needs no leader election, and any number of shadows can run. It
uses the local clock.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from batchyard.apiserver.dashboard import ModelHandler
from batchyard.base.instant import Duration
from batchyard.client.informer import Informer
from batchyard.client.rest import ClientDependencies, RestClient
from batchyard.client.transport import RateLimit, ReadOnlyTransport
from batchyard.dashboard.history import PlatformHistory, SchedulerDivergence, ShadowComparison
from batchyard.dashboard.static_report import DashboardViews, PlatformTime
from batchyard.interfaces.client import WatchEvent
from batchyard.interfaces.controller import Work
from batchyard.metrics.exposition import Exposition
from batchyard.metrics.forks import ShadowMetrics
from batchyard.scheduling.kueue_configuration import KueueSettings, parse_kueue_settings
from batchyard.scheduling.scheduler_cache import KINDS, SchedulerCache
from batchyard.scheduling.workload.pods_ready import RequeuingTimestamp
from batchyard.server.clocks.wall import LoopTimers
from batchyard.server.kubeconfig.access import KubeconfigSource
from batchyard.server.kubeconfig.loading import read_access
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.operator.coexistence import KUEUE, configuration_of, unsupported_settings
from batchyard.server.operator.dashboard import HttpEndpoints, OperatorPage, StreamHub, health_routes
from batchyard.server.operator.definitions import WatchErrorLog
from batchyard.server.operator.token_review import TokenReviewer
from batchyard.server.termination import unless_ended
from batchyard.shadow.controller import ShadowController
from batchyard.shadow.findings import ComparisonCounts, Divergence
from batchyard.shadow.state import BlockedPeriods, ShadowSettings

# --- shadow dashboard ---
#
# The dashboard of a cluster on which Kueue decides, with the same models as on a platform.


class ShadowPage:
    """The dashboard models of a shadow, updated on every change; its index of queues is used only for display."""

    def __init__(
        self, client: RestClient, time: LoopTimers, reviewed: TokenReviewer, counts: Callable[[], ComparisonCounts]
    ) -> None:
        self._index = SchedulerCache()
        self._time = time
        self._history = PlatformHistory(time.now, self._index.cluster_queue_of)
        self._comparison = ShadowComparison(lambda: sum(counts().agreed.values()), lambda: counts().divergences)
        self._history.comparison = self._comparison
        self._hub = StreamHub()
        pages = DashboardViews(client, self._index, self._history, PlatformTime(time.now, 1.0))
        self.models = ModelHandler(pages, reviewed, self._hub, time), self._hub

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Update the dashboard models after changes; existing objects are passed as ADDED events."""
        now = self._time.now()
        for event in events:
            self._index.observe(event, now)
        self._index.snapshot.settle()
        self._history.observe(events)
        self._hub.observe(events)

    def found(self, finding: Divergence) -> None:
        """Add a divergence between the decisions of Kueue and batchyard to the dashboard."""
        since = finding.at if finding.since is None else finding.since
        identity = finding.divergence_type.value, finding.workload, finding.message
        self._comparison.partings.appendleft(
            SchedulerDivergence(finding.at, since, *identity, finding.why(), finding.look)
        )
        self._hub.touch()


_ENDS_WITHIN: Final = 1.0  # seconds
#: The rate limit of the client: requests per second, and burst.
_LIMIT: Final = 50.0, 100


@dataclass(frozen=True, slots=True)
class ShadowConfig:
    """The options of a shadow."""

    source: KubeconfigSource
    #: Settings of Kueue's Configuration; None reads them from the cluster.
    kueue: KueueSettings | None
    #: Whether fair sharing is enabled even if `kueue` does not enable it.
    fair_sharing: bool
    terms: ShadowSettings
    #: How long to run after all objects are read; None runs until it is stopped.
    lasts: Duration | None
    #: The address and port for health, metrics and the dashboard; port 0 disables them.
    address: str
    port: int


class Shadow:
    """A shadow: its client, and the comparison of Kueue's decisions with batchyard's.

    It must be created within the asyncio loop that runs it.
    """

    def __init__(
        self,
        wanted: ShadowConfig,
        kueue: KueueSettings,
        wire: HttpTransport,
        found: Callable[[Divergence], None],
        report: Callable[[str], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._wanted = wanted
        self._report = report
        self._on_finding = found
        self._loop = loop
        #: Done when the run time has passed, or when an exception ends the shadow.
        self.ended: asyncio.Future[None] = loop.create_future()
        self._time = LoopTimers(loop)
        #: The permissions of dashboard users, and the dashboard (None until all objects are read).
        self.reviewed = TokenReviewer(wire, self._time.now)
        self.page: ShadowPage | None = None
        transport = ReadOnlyTransport(wire.carrying_to(self._post))
        wiring = ClientDependencies(self._time, self._time, transport, RateLimit(*_LIMIT), _never)
        self.client = RestClient(wiring, KINDS)
        self.client.on_news = self._heard
        how = kueue.policy, _with_pods_ready(wanted.terms, kueue)
        self._looking = ShadowController(self.client, transport, self._time, how, report=self._found)
        self.followers = self._looking.followers
        self.client.subscribe(self._observe)
        self._troubles = WatchErrorLog()

    def start(self) -> None:
        """Start to list and watch objects."""
        self.client.start()

    def stop(self) -> None:
        """Stop the comparison and all timers."""
        self._looking.is_over = True
        self._time.stop()

    @property
    def counts(self) -> ComparisonCounts:
        """The counts of equal and divergent decisions so far."""
        return self.followers.counts

    def _post(self, work: Work) -> None:
        """Schedule work on the asyncio loop, unless the shadow has ended by then."""
        self._loop.call_soon(self._guarded, work)

    def _guarded(self, work: Work) -> None:
        if not self.ended.done():
            work()

    def fail(self, error: BaseException) -> None:
        """End the shadow with an error."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def _heard(self, informer: Informer) -> None:
        if news := self._troubles.news(informer, self.client.informers.values()):
            self._report(f"batchyard: {news}")
        has_begun = self._looking.has_begun
        self._looking.heard(informer)
        if not has_begun and self._looking.has_begun:
            if self._wanted.port:
                self.page = ShadowPage(self.client, self._time, self.reviewed, lambda: self.counts)
                self.page.observe(self.client.everything())
            self._report("batchyard: comparing with Kueue's decisions; no objects are written")
            if self._wanted.lasts is not None:
                self._time.call_at(self._time.now() + self._wanted.lasts, self._end)

    def _observe(self, events: Sequence[WatchEvent]) -> None:
        if self.page is not None:
            self.page.observe(events)

    def _found(self, finding: Divergence) -> None:
        self._on_finding(finding)
        if self.page is not None:
            self.page.found(finding)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def shadow_endpoints(shadow: Shadow, place: tuple[str, int], report: Callable[[str], None]) -> HttpEndpoints:
    """Return the HTTP server of a shadow for health, metrics and the dashboard."""
    figures = ShadowMetrics(lambda: shadow.counts, lambda: shadow.followers.waiting, lambda: shadow.followers.reordered)
    informers = shadow.client.informers
    routes = health_routes(
        Exposition([("batchyard", figures.texts)]),
        lambda: ", ".join(kind for kind, informer in informers.items() if not informer.is_synced),
    )
    page = OperatorPage(shadow.reviewed, lambda: None if shadow.page is None else shadow.page.models)
    return HttpEndpoints([*routes, *page.routes()], place, report)


async def compare_with_kueue(
    wanted: ShadowConfig, found: Callable[[Divergence], None], report: Callable[[str], None], end: asyncio.Event
) -> ComparisonCounts:
    """Run a shadow until `end` is set or its run time has passed. Return counts of equal and divergent decisions."""
    access = await unless_ended(end, read_access(wanted.source))
    if access is None:
        return ComparisonCounts()
    wire = HttpTransport(access, lambda: read_access(wanted.source))
    report(f"batchyard: shadow at {access.url}")
    kueue = await unless_ended(end, _kueue(wanted, wire, report))
    if kueue is None:
        await wire.close()
        return ComparisonCounts()
    shadow = Shadow(wanted, kueue, wire, found, report)
    shadow.ended.add_done_callback(lambda _: end.set())
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: _handle_loop_exception(shadow, loop, context))
    try:
        async with shadow_endpoints(shadow, (wanted.address, wanted.port), report):
            shadow.start()
            await end.wait()
    finally:
        shadow.stop()
        await wire.close()
    if shadow.ended.done():
        shadow.ended.result()
    return shadow.counts


async def _kueue(wanted: ShadowConfig, wire: HttpTransport, report: Callable[[str], None]) -> KueueSettings:
    """Return the settings with which Kueue decides, read from the cluster unless they are given."""
    kueue = wanted.kueue
    if kueue is None:
        read = await configuration_of(wire, [KUEUE])
        configuration = read.configuration
        without = "" if configuration is not None else "; assuming Kueue's defaults (--config sets another)"
        for line in [read.message + without, *(() if configuration is None else unsupported_settings(configuration))]:
            report(f"batchyard: {line}")
        kueue = KueueSettings() if configuration is None else parse_kueue_settings(configuration)
    return kueue.sharing_fairly() if wanted.fair_sharing else kueue


def _with_pods_ready(terms: ShadowSettings, kueue: KueueSettings) -> ShadowSettings:
    """Return the settings of the shadow, extended by those of Kueue's waitForPodsReady."""
    waits = kueue.pods_ready
    if waits is None:
        return terms
    by_creation = waits.requeuing_timestamp is RequeuingTimestamp.CREATION
    return terms._replace(is_by_creation=by_creation, held_back=BlockedPeriods() if waits.block_admission else None)


def _handle_loop_exception(shadow: Shadow, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End the shadow after an exception in its own code; ignore errors of broken connections."""
    error = context.get("exception")
    if error is None:
        loop.default_exception_handler(context)
    elif not isinstance(error, OSError):
        shadow.fail(error)


def _never() -> bool:
    """Return False: a shadow may not write."""
    return False
