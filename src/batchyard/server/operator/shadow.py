"""The shadow (`batchyard shadow`): reports the decisions of a cluster's Kueue that differ from batchyard's.

It writes no objects, so it needs no leader election, and any number of shadows can run. It uses the local clock.
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
from batchyard.dashboard.data_source import EVENTS
from batchyard.dashboard.history import PlatformHistory, SchedulerDivergence, ShadowComparison
from batchyard.dashboard.static_report import DashboardViews, PlatformTime
from batchyard.interfaces.client import WatchEvent
from batchyard.interfaces.controller import Work
from batchyard.metrics.exposition import Exposition
from batchyard.metrics.forks import ShadowMetrics
from batchyard.scheduling.decisions import DEFAULT_VERSION, KueueVersion
from batchyard.scheduling.kueue_configuration import KueueSettings, parse_kueue_settings
from batchyard.scheduling.scheduler_cache import WATCHED_KINDS, SchedulerCache
from batchyard.scheduling.workload.pods_ready import RequeuingTimestamp
from batchyard.server.clocks.wall import LoopTimers
from batchyard.server.kubeconfig.access import KubeconfigSource
from batchyard.server.kubeconfig.loading import read_access
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.operator.coexistence import KUEUE_CONFIG_MAP, read_kueue_configuration, unsupported_settings
from batchyard.server.operator.dashboard import DashboardHandlers, HttpEndpoints, PageSource, StreamHub, health_routes
from batchyard.server.operator.definitions import WatchErrorLog
from batchyard.server.operator.token_review import TokenReviewer
from batchyard.server.operator.user_requests import UserRequests
from batchyard.server.termination import run_unless_ended
from batchyard.shadow.controller import ShadowController
from batchyard.shadow.findings import ComparisonCounts, Divergence
from batchyard.shadow.state import BlockedPeriods, ShadowSettings

_UNSERVED_REMEDY: Final = "install Kueue, or select the cluster that runs it with --kubeconfig and --context"


# The dashboard of a cluster on which Kueue decides, with the same models as on a platform.


class ShadowPage:
    """The dashboard of an operator in shadow mode: the data of its pages, updated on every change of an object."""

    def __init__(
        self,
        client: RestClient,
        timers: LoopTimers,
        token_reviewer: TokenReviewer,
        comparison_counts: Callable[[], ComparisonCounts],
    ) -> None:
        self._index = SchedulerCache()
        self._timers = timers
        self._history = PlatformHistory(timers.now, self._index.cluster_queue_of)
        self._comparison = ShadowComparison(
            lambda: sum(comparison_counts().agreements.values()), lambda: comparison_counts().divergence_count
        )
        self._history.comparison = self._comparison
        self._hub = StreamHub()
        dashboard_views = DashboardViews(client, self._index, self._history, PlatformTime(timers.now, 1.0))
        dashboard_views.extra_documents = (EVENTS,)
        self.source = PageSource(ModelHandler(dashboard_views, token_reviewer, self._hub, timers), self._hub)

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Update the data of the dashboard after changes; existing objects are passed as ADDED events at the start."""
        now = self._timers.now()
        for event in events:
            self._index.observe(event, now)
        self._index.snapshot.rebuild_if_changed()
        self._history.observe(events)
        self._hub.observe(events)

    def add_divergence(self, divergence: Divergence) -> None:
        """Show on the dashboard a decision in which Kueue differs from batchyard."""
        start_time = divergence.at if divergence.since is None else divergence.since
        divergence_identity = divergence.divergence_type.value, divergence.workload, divergence.message
        self._comparison.recent_divergences.appendleft(
            SchedulerDivergence(
                divergence.at, start_time, *divergence_identity, divergence.explanation(), divergence.hints
            )
        )
        self._hub.mark_streams_stale()


_SHUTDOWN_TIMEOUT: Final = 1.0  # seconds
#: The rate limit of the client: requests per second, and burst.
_RATE_LIMIT: Final = 50.0, 100


@dataclass(frozen=True, slots=True)
class ShadowConfig:
    """The options of `batchyard shadow`, which compares Kueue's decisions with batchyard's."""

    source: KubeconfigSource
    #: Settings of Kueue's Configuration; None reads them from the cluster.
    kueue: KueueSettings | None
    #: Whether fair sharing is enabled even if `kueue` does not enable it.
    fair_sharing: bool
    terms: ShadowSettings
    #: How long to run after all objects are read; None runs until it is stopped.
    run_time: Duration | None
    #: The address and port for health, metrics and the dashboard; port 0 disables them.
    address: str
    port: int
    #: The version of the observed Kueue, whose decision rules apply.
    version: KueueVersion = DEFAULT_VERSION


class Shadow:
    """A running shadow: its read-only client, and the comparison of Kueue's decisions with batchyard's.

    It must be created within the asyncio loop that runs it.
    """

    def __init__(
        self,
        config: ShadowConfig,
        kueue_settings: KueueSettings,
        http_transport: HttpTransport,
        on_divergence: Callable[[Divergence], None],
        report: Callable[[str], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._config = config
        self._report = report
        self._on_divergence = on_divergence
        self._loop = loop
        #: Done when the run time has passed, or when an exception ends the shadow.
        self.ended: asyncio.Future[None] = loop.create_future()
        self._timers = LoopTimers(loop)
        #: The permissions of dashboard users, and the dashboard (None until all objects are read).
        self.token_reviewer = TokenReviewer(http_transport, self._timers.now)
        self.user_requests = UserRequests(http_transport.user_transport, self._timers.now)
        self.page: ShadowPage | None = None
        reader = ReadOnlyTransport(http_transport.kernel_transport(self._post))
        dependencies = ClientDependencies(self._timers, self._timers, reader, RateLimit(*_RATE_LIMIT), _may_write)
        self.client = RestClient(dependencies, WATCHED_KINDS)
        self.client.on_new_data = self._on_informer_update
        settings = kueue_settings.policy, _with_kueue_settings(config.terms, kueue_settings)
        self._controller = ShadowController(self.client, reader, self._timers, settings, report=self._report_divergence)
        self.followers = self._controller.followers
        self.client.subscribe(self._observe)
        self._watch_errors = WatchErrorLog(_UNSERVED_REMEDY)

    def start(self) -> None:
        """Start to list and watch the objects of the cluster."""
        self.client.start()

    def stop(self) -> None:
        """Stop the comparison of decisions, and cancel its timers."""
        self._controller.is_over = True
        self._timers.stop()

    @property
    def counts(self) -> ComparisonCounts:
        """The numbers of equal and of different decisions of Kueue and batchyard so far."""
        return self.followers.counts

    def _post(self, work: Work) -> None:
        self._loop.call_soon(self._run_unless_ended, work)

    def _run_unless_ended(self, work: Work) -> None:
        if not self.ended.done():
            work()

    def fail(self, error: BaseException) -> None:
        """End the shadow with this error, unless it has ended already."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def _on_informer_update(self, informer: Informer) -> None:
        if message := self._watch_errors.new_message(informer, self.client.informers.values()):
            self._report(f"batchyard: {message}")
        has_begun = self._controller.has_begun
        self._controller.on_informer_update(informer)
        if not has_begun and self._controller.has_begun:
            if self._config.port:
                self.page = ShadowPage(self.client, self._timers, self.token_reviewer, lambda: self.counts)
                self.page.observe(self.client.added_events())
            self._report("batchyard: comparing with Kueue's decisions; no objects are written")
            if self._config.run_time is not None:
                self._timers.call_at(self._timers.now() + self._config.run_time, self._finish_comparison)

    def _observe(self, events: Sequence[WatchEvent]) -> None:
        if self.page is not None:
            self.page.observe(events)

    def _report_divergence(self, divergence: Divergence) -> None:
        self._on_divergence(divergence)
        if self.page is not None:
            self.page.add_divergence(divergence)

    def _finish_comparison(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def shadow_endpoints(shadow: Shadow, listen_address: tuple[str, int], report: Callable[[str], None]) -> HttpEndpoints:
    """Return the shadow's HTTP server for health checks, metrics and the dashboard."""
    followers = shadow.followers
    metrics = ShadowMetrics(
        lambda: shadow.counts, lambda: followers.waiting_count, lambda: followers.vanished_divergence_count
    )
    informers = shadow.client.informers
    routes = health_routes(
        Exposition([("batchyard", metrics.texts)]),
        lambda: ", ".join(kind for kind, informer in informers.items() if not informer.is_synced),
    )
    dashboard_handlers = DashboardHandlers(
        shadow.token_reviewer, shadow.user_requests, lambda: None if shadow.page is None else shadow.page.source
    )
    return HttpEndpoints([*routes, *dashboard_handlers.routes()], listen_address, report)


async def compare_with_kueue(
    config: ShadowConfig, on_divergence: Callable[[Divergence], None], report: Callable[[str], None], end: asyncio.Event
) -> ComparisonCounts:
    """Compare Kueue's decisions with batchyard's until `end` is set or the run time is over; return the counts.

    Raises KubeconfigError if the API server's address and credentials cannot be loaded, or the exception that ended the
    comparison.
    """
    access = await run_unless_ended(end, read_access(config.source))
    if access is None:
        return ComparisonCounts()
    http_transport = HttpTransport(access, lambda: read_access(config.source))
    report(f"batchyard: shadow at {access.url}")
    kueue_settings = await run_unless_ended(end, _read_kueue_settings(config, http_transport, report))
    if kueue_settings is None:
        await http_transport.close()
        return ComparisonCounts()
    shadow = Shadow(config, kueue_settings, http_transport, on_divergence, report)
    shadow.ended.add_done_callback(lambda _: end.set())
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: _handle_loop_exception(shadow, loop, context))
    try:
        async with shadow_endpoints(shadow, (config.address, config.port), report):
            shadow.start()
            await end.wait()
    finally:
        shadow.stop()
        await http_transport.close()
    if shadow.ended.done():
        shadow.ended.result()
    return shadow.counts


async def _read_kueue_settings(
    config: ShadowConfig, http_transport: HttpTransport, report: Callable[[str], None]
) -> KueueSettings:
    kueue_settings = config.kueue
    if kueue_settings is None:
        result = await read_kueue_configuration(http_transport, [KUEUE_CONFIG_MAP])
        configuration = result.configuration
        note = "" if configuration is not None else "; assuming Kueue's defaults (set others with --config)"
        for line in [result.message + note, *(() if configuration is None else unsupported_settings(configuration))]:
            report(f"batchyard: {line}")
        kueue_settings = KueueSettings() if configuration is None else parse_kueue_settings(configuration)
    kueue_settings = kueue_settings.with_version(config.version)
    return kueue_settings.with_fair_sharing() if config.fair_sharing else kueue_settings


def _with_kueue_settings(shadow_settings: ShadowSettings, kueue_settings: KueueSettings) -> ShadowSettings:
    shadow_settings = shadow_settings._replace(
        resource_rules=kueue_settings.resources, admission_fair_sharing=kueue_settings.admission_fair_sharing
    )
    settings = kueue_settings.pods_ready
    if settings is None:
        return shadow_settings
    is_creation_ordered = settings.requeuing_timestamp is RequeuingTimestamp.CREATION
    blocked_periods = BlockedPeriods() if settings.block_admission else None
    return shadow_settings._replace(is_ordered_by_creation=is_creation_ordered, blocked_periods=blocked_periods)


def _handle_loop_exception(shadow: Shadow, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End the shadow after an unhandled exception on the asyncio loop.

    An error report without an exception is only logged. An OSError is ignored, because a client's broken connection
    causes it.
    """
    error = context.get("exception")
    if error is None:
        loop.default_exception_handler(context)
    elif not isinstance(error, OSError):
        shadow.fail(error)


def _may_write() -> bool:
    """Return False: a shadow never writes to the cluster."""
    return False
