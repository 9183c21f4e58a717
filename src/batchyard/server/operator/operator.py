"""The operator (`batchyard operator`): the controllers in their own process, for the objects of a remote API server.

It waits for leadership, syncs its informers, and then runs the controllers. The other replicas wait, and serve
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

from batchyard.api.scheme import JOB_KIND, NODE, POD, PREEMPTION_CONFIG, TOPOLOGY, ServedKind, kind_info
from batchyard.apiserver.dashboard import ModelHandler
from batchyard.apiserver.dashboard_actions import DashboardActions
from batchyard.base.instant import SECOND
from batchyard.client.informer import Informer
from batchyard.client.leader_election import LeaderElector, Leadership, LeaseSettings
from batchyard.client.rest import ClientDependencies, RestClient
from batchyard.client.transport import RateLimit
from batchyard.controller_groups import ADMISSION, kinds_read, watches_nodes_for_topologies
from batchyard.controller_runtime.events import EventRecorder
from batchyard.dashboard.data_source import EVENTS, WHY
from batchyard.dashboard.history import PlatformHistory
from batchyard.dashboard.static_report import DashboardViews, PlatformTime
from batchyard.interfaces.client import WatchEvent
from batchyard.metrics.definitions import metric
from batchyard.metrics.exposition import Exposition, TextSource
from batchyard.metrics.registry import gauge_text
from batchyard.scheduling.blocked_cycle import NETWORK_PACING
from batchyard.scheduling.controller import CycleObserver
from batchyard.scheduling.workload_traces import WorkloadTracer
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.server import ServerClock
from batchyard.server.clocks.wall import LoopTimers
from batchyard.server.kubeconfig.access import KubeconfigSource
from batchyard.server.kubeconfig.loading import read_access
from batchyard.server.logging.logs import CycleLog, DecisionLog, discard_decision
from batchyard.server.logging.spans import SpanExport
from batchyard.server.metrics import LEADER, STANDALONE, ObservedPlatform, ServerMetrics
from batchyard.server.operator import coexistence, definitions
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.operator.dashboard import (
    BearerActionTokens,
    DashboardHandlers,
    Explain,
    HttpEndpoints,
    PageSource,
    StreamHub,
    health_routes,
)
from batchyard.server.operator.token_review import TokenReviewer
from batchyard.server.operator.user_requests import UserRequests
from batchyard.server.operator.webhooks import WebhookOptions, Webhooks
from batchyard.server.platform.decision_throttle import DecisionThrottle
from batchyard.server.termination import run_unless_ended
from batchyard.wiring import PlatformPorts, PlatformSettings, WiredPlatform, build_platform

#: The remedy for kinds that the server does not serve.
_UNSERVED_REMEDY: Final = "--install-crds installs the kinds of queues, JobSets and requests for capacity"


class OperatorError(Exception):
    """The operator cannot run any longer. The message contains the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class ClientRateLimits:
    """The rate limit of the operator's writes: requests per second, and the size of a burst."""

    qps: float
    burst: int


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """The options of `batchyard operator`: connection, controllers, leader election, rate limits and endpoints."""

    source: KubeconfigSource
    settings: PlatformSettings
    #: The settings of leader election; with None the operator leads at once, for a single replica.
    terms: LeaseSettings | None
    limits: ClientRateLimits
    #: Whether missing CustomResourceDefinitions are installed first.
    installs_definitions: bool
    #: The address and port for health, metrics and the dashboard; port 0 disables them.
    address: str
    port: int
    #: The URL of the collector that receives traces; '' for none.
    traces_to: str = ""
    webhooks: WebhookOptions = field(default_factory=WebhookOptions)
    #: Whether to run even if another controller decides about the same objects.
    beside_upstream: bool = False
    #: The kinds of jobs that other controllers manage; `run_operator` finds them.
    external_kinds: Sequence[ServedKind] = ()
    #: Finds the custom kinds of jobs; `run_operator` creates it. None if the operator queues no jobs.
    job_kinds: definitions.JobKindDiscovery | None = None


class OperatorProcess:
    """One replica of the operator: its client of the API server, its controllers, and its part in leader election.

    It must be created within the asyncio loop that runs it.
    """

    def __init__(self, config: OperatorConfig, http_transport: HttpTransport, report: Callable[[str], None]) -> None:
        self._config = config
        self.http_transport = http_transport
        self.report = report
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.timers = LoopTimers(loop)
        self.kernel = LiveKernel(loop, self.timers.now())
        self._kernel_transport = http_transport.kernel_transport(_post_directly(loop))
        self.clock = ServerClock(self.kernel, self.timers, http_transport, self._kernel_transport, report)
        self.spans = SpanExport(config.traces_to, loop) if config.traces_to else None
        self._leadership = self._create_leadership()
        write_gate = (lambda: True) if self._leadership is None else self._leadership.may_write
        rate_limit = RateLimit(config.limits.qps, config.limits.burst)
        dependencies = ClientDependencies(
            self.kernel, self.timers, http_transport.kernel_transport(self.kernel.post), rate_limit, write_gate
        )
        kinds = dict.fromkeys(kinds_read(config.settings.controllers))
        if config.settings.kueue.tracks_scheduling:
            kinds[POD] = None
        if not config.settings.kueue.policy.rules.preempts_by_rules:
            kinds.pop(PREEMPTION_CONFIG, None)  # clusters with Kueue 0.19 do not serve this kind
        #: Whether Nodes are watched only once there is a Topology.
        self._awaits_topology = watches_nodes_for_topologies(config.settings.controllers)
        if self._awaits_topology:
            del kinds[NODE]
        kinds.pop(JOB_KIND, None)  # `job_kinds` contains it if the server serves it
        job_kinds = () if config.job_kinds is None else config.job_kinds.found_kinds
        self.client = RestClient(dependencies, list(kinds), [*config.external_kinds, *job_kinds])
        self._search: asyncio.Task[None] | None = None
        self.client.on_new_data = self._process_informer_change
        self.client.outbox.on_refused = lambda refusal: report(f"batchyard: write rejected: {refusal}; retrying")
        self.platform: WiredPlatform | None = None
        #: The permissions of dashboard users, and the source of the dashboard's data (None until the operator leads).
        self.token_reviewer = TokenReviewer(http_transport, self.timers.now)
        self.user_requests = UserRequests(http_transport.user_transport, self.timers.now)
        self.page_source: PageSource | None = None
        self.server_metrics = ServerMetrics(STANDALONE if config.terms is None else LEADER)
        if self.spans is not None:
            self.server_metrics.additional_sources.append(self.spans.texts)
        self.leads = False
        #: Returns whether the webhooks are ready to be called.
        self.are_webhooks_ready: Callable[[], bool] = lambda: True
        #: Yields the metrics of the webhooks.
        self.webhook_texts: TextSource = lambda: iter(())
        self._watch_errors = definitions.WatchErrorLog(_UNSERVED_REMEDY)

    async def start(self) -> None:
        """Set the clock to the server's time, install CRDs if requested, and start leader election.

        Without leader election, this replica leads at once.
        """
        await self.clock.synchronize()
        if self._config.installs_definitions:
            for line in await definitions.install_definitions(
                self.http_transport, kinds_read(self._config.settings.controllers)
            ):
                self.report(line)
        if self._config.job_kinds is not None:
            search = self._config.job_kinds.search_periodically(self.client.watch_kind, lambda: self.platform is None)
            self._search = asyncio.create_task(search)
            self._search.add_done_callback(self._fail_with)
        if self._leadership is None:
            self._start_leading()
        else:
            self.report("batchyard: waiting to lead; the leader is elected with a Lease")
            self._leadership.start()

    async def close(self) -> None:
        """Stop the controllers, and release the Lease if this replica holds it."""
        self.kernel.stop()
        if self._search is not None:
            self._search.cancel()
            await asyncio.gather(self._search, return_exceptions=True)
        if self._leadership is not None:
            lease_released = asyncio.Event()
            self._leadership.end(lease_released.set)
            await lease_released.wait()
        self.timers.stop()
        if self.spans is not None:
            await self.spans.close()

    def fail(self, error: BaseException) -> None:
        """End the operator with this error, unless it has ended already."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def _fail_with(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def _create_leadership(self) -> Leadership | None:
        lease_settings = self._config.terms
        if lease_settings is None:
            return None
        leadership = Leadership(LeaderElector(lease_settings), self.timers, self._kernel_transport)
        leadership.on_leading, leadership.on_lost = self._start_leading, self._stop_after_lost_lease
        leadership.on_trouble = lambda trouble: self.report(f"batchyard: {trouble}")
        return leadership

    def _start_leading(self) -> None:
        self.leads = True
        self.report("batchyard: this replica leads; listing objects")
        self.client.start()

    def _stop_after_lost_lease(self) -> None:
        self.kernel.stop()
        terms = self._config.terms
        lease_text = "" if terms is None else f" (Lease {terms.namespace}/{terms.name})"
        self.fail(OperatorError(f"leader election lost{lease_text}: another replica may lead now; restart this one"))

    def _process_informer_change(self, informer: Informer) -> None:
        if message := self._watch_errors.new_message(informer, self.client.informers.values()):
            self.report(f"batchyard: {message}")
        if self._awaits_topology and informer.info.constant == TOPOLOGY and self._config.settings.with_topology:
            self._watch_nodes_of_topologies()
        if self.platform is None and self.client.is_synced:
            self.platform = self._start_controllers()
            self.report(f"batchyard: this replica runs {', '.join(self._config.settings.controllers)}")

    def _watch_nodes_of_topologies(self) -> None:
        if self.client.list(TOPOLOGY):
            self._awaits_topology = False
            self.client.watch_kind(kind_info(NODE))

    def _start_controllers(self) -> WiredPlatform:
        throttle = DecisionThrottle(self.kernel.clock, self.clock.speed)
        self.server_metrics.additional_sources.append(throttle.texts)
        cycle_metrics = self.server_metrics.cycles
        decision_log = DecisionLog(EventRecorder(self.client, socket.gethostname()), discard_decision)
        cycle_observer = self._cycle_observer(cycle_metrics)
        count_preemption_loop = cycle_metrics.count_preemption_loop
        platform_ports = PlatformPorts(
            *(self.kernel, self.client, (), (), decision_log, count_preemption_loop, throttle),
            defect_reporter=self.server_metrics.record_defect,
            cycle_observer=cycle_observer,
            pacing=NETWORK_PACING,
        )
        platform, existing_events = build_platform(platform_ports, self._config.settings), self.client.added_events()
        if self.spans is not None:
            self.client.subscribe(WorkloadTracer(self.kernel.now, self.spans.emit).observe)
        if not self._config.beside_upstream:
            self.client.subscribe(self._check_write_conflicts)
        platform.runner.observe(existing_events)
        kueue = self._config.settings.kueue
        observed_platform = ObservedPlatform(
            *(platform, self.client, self.kernel.now), fair_sharing=kueue.policy.fair_sharing, selection=kueue.metrics
        )
        self.server_metrics.begin(observed_platform, existing_events)
        self.page_source = self._create_page_source(platform, existing_events)
        return platform

    def _check_write_conflicts(self, events: Sequence[WatchEvent]) -> None:
        for event in events:
            if reason := coexistence.conflicting_write(event, self._config.settings.controllers, self.kernel.clock()):
                self.kernel.stop()
                self.fail(OperatorError(reason))

    def _create_page_source(self, platform: WiredPlatform, events: Sequence[WatchEvent]) -> PageSource:
        history, stream_hub = PlatformHistory(self.kernel.clock, platform.index.cluster_queue_of), StreamHub()
        history.observe(events)
        self.client.subscribe(history.observe)
        self.client.subscribe(stream_hub.observe)
        has_explanations = ADMISSION in self._config.settings.controllers
        views = DashboardViews(self.client, platform.index, history, PlatformTime(self.kernel.clock, self.clock.speed))
        views.extra_documents = (WHY, EVENTS) if has_explanations else (EVENTS,)
        models = ModelHandler(views, self.token_reviewer, stream_hub, self.timers)
        actions = DashboardActions(self.client, self.token_reviewer, BearerActionTokens())
        explain: Explain = lambda key, may_read: platform.explainer.why(key, self.kernel.now(), may_read)  # noqa: E731
        return PageSource(models, stream_hub, explain if has_explanations else None, actions)

    def _cycle_observer(self, cycle_metrics: CycleObserver) -> CycleObserver:
        return CycleLog(cycle_metrics, None if self.spans is None else self.spans.emit)


async def run_operator(config: OperatorConfig, report: Callable[[str], None], end: asyncio.Event) -> None:
    """Run a replica of the operator until `end` is set. Raises OperatorError or KubeconfigError if it cannot run."""
    access = await run_unless_ended(end, read_access(config.source))
    if access is None:
        return
    if config.terms is not None and not config.terms.namespace:
        config = replace(config, terms=replace(config.terms, namespace=access.namespace))
    http_transport = HttpTransport(access, lambda: read_access(config.source))
    settings = replace(config.settings, kueue=config.settings.kueue.with_own_job_kinds())
    config, managed_jobs = replace(config, settings=settings), settings.kueue.managed_jobs
    config = replace(
        config, external_kinds=await definitions.find_external_kinds(http_transport, managed_jobs.external_kinds)
    )
    if ADMISSION in config.settings.controllers:
        discovery = definitions.JobKindDiscovery(http_transport, managed_jobs, report)
        await discovery.search(reads_job_kinds=True)
        config = replace(config, job_kinds=discovery)
    operator = OperatorProcess(config, http_transport, report)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: _handle_loop_exception(operator, loop, context))
    webhook_options = config.webhooks._replace(
        managed_jobs=managed_jobs,
        external_kinds=config.external_kinds,
        job_kinds=() if config.job_kinds is None else config.job_kinds.found_kinds,
        ready_timeout_max=config.settings.kueue.timeout_on_workload_max,
        rules=config.settings.kueue.policy.rules,
    )
    webhook_server = Webhooks(
        webhook_options, config.settings.controllers, http_transport, (config.address, access.namespace)
    ).reporting_to(report)
    operator.are_webhooks_ready, operator.webhook_texts = (lambda: webhook_server.is_ready), webhook_server.texts
    try:
        async with operator_endpoints(operator, (config.address, config.port), report), webhook_server:
            report(f"batchyard: operator at {access.url}")
            async with _run_without_conflicts(
                operator, config, coexistence.WebhookService(access.namespace, config.webhooks.service), end
            ):
                if not end.is_set():
                    await run_unless_ended(end, operator.start())
                await _wait_for_end(end, operator.ended)
    finally:
        await operator.close()
        await http_transport.close()


@contextlib.asynccontextmanager
async def _run_without_conflicts(
    operator: OperatorProcess, config: OperatorConfig, own_service: coexistence.WebhookService, end: asyncio.Event
) -> AsyncIterator[None]:
    """Enter the `with` block when no other controller manages the same objects; end the operator if one appears later.

    Meanwhile, a replica with webhooks serves them, so that objects can still be created. A replica without webhooks
    raises OperatorError instead of waiting. With `config.beside_upstream`, other controllers are ignored.
    """
    if config.beside_upstream:
        yield
        return
    groups, reported_reason = config.settings.controllers, ""
    while not end.is_set() and (
        reason := await run_unless_ended(
            end, coexistence.startup_conflict(operator.http_transport, groups, own_service)
        )
    ):
        if not config.webhooks.port:
            raise OperatorError(reason)
        if reason != reported_reason:
            operator.report(f"batchyard: {reason}. Only the webhooks are served until this is resolved")
        reported_reason = reason
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(end.wait(), coexistence.CHECK_INTERVAL / SECOND)
    conflict_watch = asyncio.create_task(coexistence.watch_for_conflict(operator.http_transport, groups, own_service))
    conflict_watch.add_done_callback(
        lambda ended_task: None if ended_task.cancelled() else operator.fail(OperatorError(ended_task.result()))
    )
    try:
        yield
    finally:
        conflict_watch.cancel()
        await asyncio.gather(conflict_watch, return_exceptions=True)


async def _wait_for_end(end: asyncio.Event, operator_end: asyncio.Future[None]) -> None:
    operator_end.add_done_callback(lambda _: end.set())
    await end.wait()
    if operator_end.done():
        operator_end.result()


def _handle_loop_exception(operator: OperatorProcess, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End the operator after an unhandled exception in batchyard's code; log other errors.

    An OSError in other code is ignored, because a client's broken connection causes it.
    """
    error = context.get("exception")
    if isinstance(error, BaseException) and _is_batchyard_exception(error):
        operator.fail(error)
    elif not isinstance(error, OSError):
        loop.default_exception_handler(context)


def _is_batchyard_exception(error: BaseException) -> bool:
    frames_and_lines = traceback.walk_tb(error.__traceback__)
    return any(frame.f_globals.get("__name__", "").startswith("batchyard.") for frame, _ in frames_and_lines)


def _post_directly(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    def post(work: Callable[[], None]) -> None:
        loop.call_soon(work)

    return post


def operator_endpoints(
    operator: OperatorProcess, address: tuple[str, int], report: Callable[[str], None]
) -> HttpEndpoints:
    """Return the operator's HTTP server for health checks, metrics and the dashboard."""
    program_sources = [("program", lambda: _client_metric_texts(operator)), ("program", operator.webhook_texts)]
    exposition = Exposition([*program_sources, *operator.server_metrics.sources()])
    dashboard_handlers = DashboardHandlers(
        operator.token_reviewer, operator.user_requests, lambda: operator.page_source
    )
    routes = [*health_routes(exposition, lambda: _readiness_delay(operator)), *dashboard_handlers.routes()]
    return HttpEndpoints(routes, address, report)


def _readiness_delay(operator: OperatorProcess) -> str:
    if not operator.are_webhooks_ready():
        return "the certificates of the webhooks"
    if operator.leads and operator.platform is None:
        return ", ".join(kind for kind, informer in operator.client.informers.items() if not informer.is_synced)
    return ""


def _client_metric_texts(operator: OperatorProcess) -> Iterator[str]:
    yield gauge_text(metric("leader_election_master_status"), [(("batchyard",), int(operator.leads))])
    outbox = operator.client.outbox
    counts_by_code = outbox.response_counts
    counter_rows = (((str(code), method), counts_by_code[method, code]) for method, code in sorted(counts_by_code))
    yield gauge_text(metric("rest_client_requests_total"), counter_rows)
    waiting_rows = (((priority.name.lower(),), n) for priority, n in outbox.send_queue.waiting_counts().items())
    yield gauge_text(metric("batchyard_writes_waiting"), waiting_rows)
    yield gauge_text(metric("batchyard_writes_in_flight"), [((), outbox.send_queue.in_flight)])
    yield gauge_text(metric("batchyard_events_dropped_total"), [((), outbox.dropped_event_count)])
    informers = operator.client.informers.items()
    yield gauge_text(metric("batchyard_lists_total"), (((kind,), informer.lists) for kind, informer in informers))
    yield gauge_text(metric("batchyard_watches_total"), (((kind,), informer.watches) for kind, informer in informers))
