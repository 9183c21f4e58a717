"""The operator: batchyard's controllers in their own process, against a remote API server.

It waits for leadership, syncs its informers, and then runs the controllers. Other replicas only wait and serve
webhooks. A replica that loses leadership exits, and its supervisor (such as the kubelet) restarts it. Controllers use
the server's time (`clocks/server.py`).
"""

import asyncio
import contextlib
import socket
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from batchyard.apiserver.dashboard import ModelHandler
from batchyard.base.instant import SECOND
from batchyard.client.informer import Informer
from batchyard.client.leader_election import LeaderElector, Leadership, LeaseSettings
from batchyard.client.rest import ClientDependencies, RestClient
from batchyard.client.transport import RateLimit
from batchyard.controller_groups import kinds_seen
from batchyard.controller_runtime.events import EventRecorder
from batchyard.dashboard.history import PlatformHistory
from batchyard.dashboard.static_report import DashboardViews, PlatformTime
from batchyard.interfaces.client import WatchEvent
from batchyard.metrics.definitions import metric
from batchyard.metrics.exposition import Exposition, Texts
from batchyard.metrics.registry import text_of
from batchyard.scheduling.controller import CycleObserver
from batchyard.scheduling.workload_traces import WorkloadTracer
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.server import ServerClock
from batchyard.server.clocks.wall import LoopTimers
from batchyard.server.kubeconfig.access import KubeconfigSource
from batchyard.server.kubeconfig.loading import read_access
from batchyard.server.logging.logs import CycleLog, DecisionLog, keep_nothing
from batchyard.server.logging.spans import SpanExport
from batchyard.server.metrics import LEADER, STANDALONE, ObservedPlatform, ServerMetrics
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.operator.coexistence import (
    EVERY,
    Service,
    conflicting_write,
    startup_conflict,
    watch_for_conflict,
)
from batchyard.server.operator.dashboard import HttpEndpoints, OperatorPage, StreamHub, health_routes
from batchyard.server.operator.definitions import WatchErrorLog, install
from batchyard.server.operator.token_review import TokenReviewer
from batchyard.server.operator.webhooks import Webhooks, WebhookTerms
from batchyard.server.platform.decision_throttle import DecisionThrottle
from batchyard.server.termination import unless_ended
from batchyard.wiring import PlatformSettings, Ports, WiredPlatform, build_platform

#: The remedy for kinds that the server does not serve.
_REMEDY: Final = "--install-crds installs the kinds of queues, JobSets and requests for capacity"


class OperatorError(Exception):
    """The operator must stop. The message contains the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class ClientRateLimits:
    """The rate limit of the operator's writes: requests per second, and burst."""

    qps: float
    burst: int


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """The options of an operator."""

    source: KubeconfigSource
    settings: PlatformSettings
    #: The settings of leader election; with None the operator leads at once, for a single replica.
    terms: LeaseSettings | None
    limits: ClientRateLimits
    #: Whether missing CustomResourceDefinitions are installed first.
    installs: bool
    #: The address and port for health, metrics and the dashboard; port 0 disables them.
    address: str
    port: int
    #: The URL of the collector that receives traces; '' for none.
    traces_to: str = ""
    webhooks: WebhookTerms = field(default_factory=WebhookTerms)
    #: Whether to run even if another controller decides about the same objects.
    beside_upstream: bool = False


class OperatorProcess:
    """A replica of the operator: its client, controllers and leader election.

    It must be created within the asyncio loop that runs it.
    """

    def __init__(self, wanted: OperatorConfig, wire: HttpTransport, report: Callable[[str], None]) -> None:
        self._wanted = wanted
        self.wire = wire
        self.report = report
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.timers = LoopTimers(loop)
        self.kernel = LiveKernel(loop, self.timers.now())
        self._carrier = wire.carrying_to(_at_once(loop))
        self.clock = ServerClock(self.kernel, self.timers, wire, self._carrier, report)
        self.spans = SpanExport(wanted.traces_to, loop) if wanted.traces_to else None
        self._leadership = self._candidate()
        gate = (lambda: True) if self._leadership is None else self._leadership.may_write
        limit = RateLimit(wanted.limits.qps, wanted.limits.burst)
        wiring = ClientDependencies(self.kernel, self.timers, wire.carrying_to(self.kernel.post), limit, gate)
        self.client = RestClient(wiring, kinds_seen(wanted.settings.controllers))
        self.client.on_news = self._heard
        self.client.outbox.on_refused = lambda refusal: report(f"batchyard: write rejected: {refusal}; retrying")
        self.platform: WiredPlatform | None = None
        #: The permissions of dashboard users, and the models of the dashboard (None until the operator leads).
        self.reviewed = TokenReviewer(wire, self.timers.now)
        self.models: tuple[ModelHandler, StreamHub] | None = None
        self.figures = ServerMetrics(STANDALONE if wanted.terms is None else LEADER)
        if self.spans is not None:
            self.figures.also.append(self.spans.texts)
        self.leads = False
        #: Returns whether the webhooks are ready to be called.
        self.answers: Callable[[], bool] = lambda: True
        #: Yields the metrics of the webhooks.
        self.asked: Texts = lambda: iter(())
        self._troubles = WatchErrorLog(_REMEDY)

    async def start(self) -> None:
        """Set the clock to the server's time, install definitions if requested, and join leader election."""
        await self.clock.set()
        if self._wanted.installs:
            for reported in await install(self.wire, kinds_seen(self._wanted.settings.controllers)):
                self.report(reported)
        if self._leadership is None:
            self._lead()
        else:
            self.report("batchyard: waiting to lead; the leader is elected with a Lease")
            self._leadership.start()

    async def close(self) -> None:
        """Stop the controllers, and release the Lease."""
        self.kernel.stop()
        if self._leadership is not None:
            released = asyncio.Event()
            self._leadership.end(released.set)
            await released.wait()
        self.timers.stop()
        if self.spans is not None:
            await self.spans.close()

    def fail(self, error: BaseException) -> None:
        """End the operator process with an error."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def _candidate(self) -> Leadership | None:
        terms = self._wanted.terms
        if terms is None:
            return None
        leadership = Leadership(LeaderElector(terms), self.timers, self._carrier)
        leadership.on_leading, leadership.on_lost = self._lead, self._lost
        leadership.on_trouble = lambda trouble: self.report(f"batchyard: {trouble}")
        return leadership

    def _lead(self) -> None:
        self.leads = True
        self.report("batchyard: this replica leads; listing objects")
        self.client.start()

    def _lost(self) -> None:
        self.kernel.stop()
        self.fail(OperatorError("leader election lost: another replica may lead now; restart this one"))

    def _heard(self, informer: Informer) -> None:
        """Report news of an informer, and start the controllers when all informers are synced."""
        if news := self._troubles.news(informer, self.client.informers.values()):
            self.report(f"batchyard: {news}")
        if self.platform is None and self.client.is_synced:
            self.platform = self._begun()
            self.report(f"batchyard: this replica runs {', '.join(self._wanted.settings.controllers)}")

    def _begun(self) -> WiredPlatform:
        pace = DecisionThrottle(self.kernel.clock, self.clock.speed)
        self.figures.also.append(pace.texts)
        decisions, cycles = (
            DecisionLog(EventRecorder(self.client, socket.gethostname()), keep_nothing),
            self.figures.cycles,
        )
        ports = Ports(self.kernel, self.client, (), (), decisions, cycles.loop, pace, cycles=self._watching(cycles))
        platform, found = build_platform(ports, self._wanted.settings), self.client.everything()
        if self.spans is not None:
            self.client.subscribe(WorkloadTracer(self.kernel.now, self.spans.emit).observe)
        if not self._wanted.beside_upstream:
            self.client.subscribe(self._look_for_others)
        platform.runner.observe(found)
        fair_sharing = self._wanted.settings.kueue.policy.fair_sharing
        self.figures.begin(ObservedPlatform(platform, self.client, self.kernel.now, fair_sharing=fair_sharing), found)
        self.models = self._shown(platform, found)
        return platform

    def _look_for_others(self, events: Sequence[WatchEvent]) -> None:
        """Stop the operator if a change shows that another controller writes the same objects."""
        for event in events:
            if why := conflicting_write(event, self._wanted.settings.controllers, self.kernel.clock()):
                self.kernel.stop()
                self.fail(OperatorError(why))

    def _shown(self, platform: WiredPlatform, found: Sequence[WatchEvent]) -> tuple[ModelHandler, StreamHub]:
        """Create the dashboard's models of a platform, which are updated on every change."""
        history, hub = PlatformHistory(self.kernel.clock, platform.index.cluster_queue_of), StreamHub()
        history.observe(found)
        self.client.subscribe(history.observe)
        self.client.subscribe(hub.observe)
        pages = DashboardViews(self.client, platform.index, history, PlatformTime(self.kernel.clock, self.clock.speed))
        return ModelHandler(pages, self.reviewed, hub, self.timers), hub

    def _watching(self, cycles: CycleObserver) -> CycleObserver:
        return CycleLog(cycles, None if self.spans is None else self.spans.emit)


async def operate(wanted: OperatorConfig, report: Callable[[str], None], end: asyncio.Event) -> None:
    """Run a replica of the operator until `end` is set. Raises OperatorError or KubeconfigError if it cannot run."""
    access = await unless_ended(end, read_access(wanted.source))
    if access is None:
        return
    if wanted.terms is not None and not wanted.terms.namespace:
        wanted = replace(wanted, terms=replace(wanted.terms, namespace=access.namespace))
    wire = HttpTransport(access, lambda: read_access(wanted.source))
    operator = OperatorProcess(wanted, wire, report)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: _handle_loop_exception(operator, loop, context))
    terms = wanted.webhooks._replace(managed_namespaces=wanted.settings.kueue.managed_namespaces)
    hooks = Webhooks(terms, wanted.settings.controllers, wire, (wanted.address, access.namespace)).reporting_to(report)
    operator.answers, operator.asked = (lambda: hooks.is_ready), hooks.texts
    try:
        async with operator_endpoints(operator, (wanted.address, wanted.port), report), hooks:
            report(f"batchyard: operator at {access.url}")
            async with _without_conflicts(operator, wanted, Service(access.namespace, wanted.webhooks.service), end):
                if not end.is_set():
                    await unless_ended(end, operator.start())
                await _first(end, operator.ended)
    finally:
        await operator.close()
        await wire.close()


@contextlib.asynccontextmanager
async def _without_conflicts(
    operator: OperatorProcess, wanted: OperatorConfig, own: Service, end: asyncio.Event
) -> AsyncIterator[None]:
    """Wait until no other controller decides about the same objects; end the operator if one appears later.


    A replica with webhooks keeps answering them while it waits, so that objects can still be created.
    """
    if wanted.beside_upstream:
        yield
        return
    groups, reported = wanted.settings.controllers, ""
    while not end.is_set() and (why := await unless_ended(end, startup_conflict(operator.wire, groups, own))):
        if not wanted.webhooks.port:
            raise OperatorError(why)
        if why != reported:
            operator.report(f"batchyard: {why}. Only the webhooks are served until this is resolved")
        reported = why
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(end.wait(), EVERY / SECOND)
    looking = asyncio.create_task(watch_for_conflict(operator.wire, groups, own))
    looking.add_done_callback(lambda done: None if done.cancelled() else operator.fail(OperatorError(done.result())))
    try:
        yield
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def _first(end: asyncio.Event, ended: asyncio.Future[None]) -> None:
    """Wait until `end` is set or the operator has ended. Raises the error that ended it, if any."""
    ended.add_done_callback(lambda _: end.set())
    await end.wait()
    if ended.done():
        ended.result()


def _handle_loop_exception(operator: OperatorProcess, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End the operator after an exception in its own code; ignore errors of broken connections."""
    error = context.get("exception")
    if isinstance(error, BaseException) and _is_ours(error):
        operator.fail(error)
    elif not isinstance(error, OSError):
        loop.default_exception_handler(context)


def _is_ours(error: BaseException) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith("batchyard.") for frame, _ in frames)


def _at_once(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    def post(work: Callable[[], None]) -> None:
        loop.call_soon(work)

    return post


def operator_endpoints(
    operator: OperatorProcess, place: tuple[str, int], report: Callable[[str], None]
) -> HttpEndpoints:
    """Return the HTTP server of an operator for health, metrics and the dashboard."""
    program = [("program", lambda: _texts(operator)), ("program", operator.asked)]
    exposition = Exposition([*program, *operator.figures.sources()])
    page = OperatorPage(operator.reviewed, lambda: operator.models)
    return HttpEndpoints([*health_routes(exposition, lambda: _missing(operator)), *page.routes()], place, report)


def _missing(operator: OperatorProcess) -> str:
    """Return what delays readiness: webhook certificates, or on the leader informers that are not synced; else ''."""
    if not operator.answers():
        return "the certificates of the webhooks"
    if operator.leads and operator.platform is None:
        return ", ".join(kind for kind, informer in operator.client.informers.items() if not informer.is_synced)
    return ""


def _texts(operator: OperatorProcess) -> Iterator[str]:
    """Yield the metrics of leader election and of the client."""
    yield text_of(metric("leader_election_master_status"), [(("batchyard",), int(operator.leads))])
    answers = operator.client.outbox.answers
    rows = (((str(code), method), answers[method, code]) for method, code in sorted(answers))
    yield text_of(metric("rest_client_requests_total"), rows)
    informers = operator.client.informers.items()
    yield text_of(metric("batchyard_lists_total"), (((kind,), each.lists) for kind, each in informers))
    yield text_of(metric("batchyard_watches_total"), (((kind,), each.watches) for kind, each in informers))
