"""The embedded platform (`batchyard up`): a durable store, controllers, and an API server, in one process."""

import asyncio
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from batchyard.admission_chain import AdmissionChain
from batchyard.api.meta import Obj, key_of
from batchyard.api.scheme import CLUSTER, LEASE, WORKLOAD
from batchyard.api.times import parse_time
from batchyard.apiserver.api_services import api_service_resource, kubernetes_service_objects
from batchyard.apiserver.apply import InProcessFieldManager
from batchyard.apiserver.auth.security import ServerSecurity, build_security
from batchyard.apiserver.auth.tokens import ExternalTokens, TokenIssuer
from batchyard.apiserver.built_in import built_in_resources
from batchyard.apiserver.certificates.controller import CertificateController
from batchyard.apiserver.certificates.requests import CertificateRequests
from batchyard.apiserver.crd.definitions import CustomResources, definition_resource
from batchyard.apiserver.dashboard import DASHBOARD_ACTIONS_PATH, DASHBOARD_MODELS_PATH, ModelHandler, StaticFileHandler
from batchyard.apiserver.dashboard import DASHBOARD_FILES_PATH as DASHBOARD_FILES
from batchyard.apiserver.dashboard_actions import DashboardActions
from batchyard.apiserver.flow_schemas import FlowSchemaController, flow_attributes
from batchyard.apiserver.policies.type_checking import PolicyStatusController
from batchyard.apiserver.resources import Resource, Resources
from batchyard.apiserver.server import AdmissionSwitch, ApiServer, AuditedRequest, Auditor, discard_audit
from batchyard.apiserver.subresources import with_subresources
from batchyard.apiserver.subresources.queueing import WhyHandler, decisions_resource, with_forecasts
from batchyard.apiserver.virtual_resources import events_resource
from batchyard.base.instant import Instant
from batchyard.client.informer import CompositeClient
from batchyard.client.local import LocalClient, create_or_replace
from batchyard.cloud.cluster_pools import ClusterPoolsController
from batchyard.cloud.simulated import simulated_cloud
from batchyard.controller_groups import ADMISSION, VOLUMES
from batchyard.controller_runtime.events import EventRecorder
from batchyard.dashboard.history import PlatformHistory
from batchyard.dashboard.static_report import HEADERS, DashboardViews, PlatformTime, read_asset
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.interfaces.containers import Containers
from batchyard.kubelet.simulated.containers import SimulatedContainers
from batchyard.kubelet.simulated.durations import BareWorkloads
from batchyard.kubelet.simulated.kubelet import SimulatedKubelets, container_delays_of
from batchyard.kubelet.simulated.pod_status import NodeAgents
from batchyard.nodes.health import LEASE_NAMESPACE
from batchyard.scheduling.kueue_configuration import KueueSettings, platform_kueue_settings
from batchyard.scheduling.workload_traces import WorkloadTracer
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.server import MachineClock
from batchyard.server.clocks.wall import LoopTimers, wall_clock
from batchyard.server.forecasting.service import ForecastEngine, ForecastFunctions
from batchyard.server.http.dispatcher import RequestDispatcher, RequestWatchdog
from batchyard.server.http.flow_control import PriorityAndFairness
from batchyard.server.http.forked_writes import ForkedWork
from batchyard.server.local_node.containers import CombinedContainers
from batchyard.server.local_node.network import PodNetworkListeners
from batchyard.server.local_node.node import LocalNodeComponents, local_node_settings
from batchyard.server.logging.ledger import LiveLedger
from batchyard.server.logging.logs import CycleLog, DecisionLog
from batchyard.server.metrics import ObservedPlatform
from batchyard.server.platform.aggregation import Aggregation
from batchyard.server.platform.clock_control import CLOCK_PATH, ClockControl
from batchyard.server.platform.credentials import CertificateAuthority, SigningKey, issue_pod_token
from batchyard.server.platform.data_dir import (
    DEFAULT_KUEUE_VERSION,
    FORECASTS_FILE,
    JOURNAL_FILE,
    KUEUE_VERSION_SETTING,
    LEDGER_FILE,
    UPSTREAM_SETTING,
    PlatformOptions,
)
from batchyard.server.platform.decision_throttle import DecisionThrottle
from batchyard.server.platform.group_commit import HISTORY_REVISIONS, GroupCommit
from batchyard.server.platform.provided_objects import (
    ProvidedObjects,
    check_cluster_option,
    check_success,
    create_missing,
    required_objects,
    store_cluster,
)
from batchyard.server.platform.status_report import STATUS_REPORT_PATH as REPORT
from batchyard.server.platform.status_report import EmbeddedMetrics, StatusReport
from batchyard.store.journal import RevisionJournal
from batchyard.store.journal_file import JournalError
from batchyard.store.memory import Store, changes_reader
from batchyard.wiring import PlatformPorts, PlatformSettings, WiredPlatform, build_platform

if TYPE_CHECKING:
    from batchyard.server.logging.spans import SpanExport
    from batchyard.server.platform.webhooks import PlatformWebhooks
    from batchyard.server.replication.primary import PrimaryReplication

_NO_CERTIFICATE: Final = "# The API is served without TLS.\n"


class LazyWebhooks:
    """The webhooks of a platform, which are loaded when they are used first."""

    def __init__(self) -> None:
        self._parts: tuple[Any, ...] = ()
        self._loaded: PlatformWebhooks | None = None

    def connect(self, *parts: Any) -> None:
        """Set the fields of the GatePlatform that the webhooks use."""
        self._parts = parts

    def get(self) -> "PlatformWebhooks":
        """Return the webhooks."""
        if self._loaded is None:
            from batchyard.server.platform.webhooks import GatePlatform, PlatformWebhooks  # noqa: PLC0415 - rarely used

            self._loaded = PlatformWebhooks(GatePlatform(*self._parts))
        return self._loaded

    def observe_conversion(self, *measurement: Any) -> None:
        """Count a call of a conversion webhook."""
        self.get().observe_conversion(*measurement)

    def close(self) -> None:
        """Cancel the calls in flight, and close all connections."""
        if self._loaded is not None:
            self._loaded.close()


class EmbeddedPlatform:
    """The components of a running platform: the store, the controllers, the API server, and optionally a local node.

    It must be created within the asyncio loop that runs it.
    """

    def __init__(
        self,
        options: PlatformOptions,
        cluster: Obj | None,
        speed: float,
        audit: Auditor = discard_audit,
        forecast_functions: ForecastFunctions | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._journal = _open_journal(options)
        self._store = Store(window=2 * HISTORY_REVISIONS, contents=self._journal.recover())
        self._kernel = LiveKernel(loop, max(wall_clock(), _last_instant(self._store)), speed)
        #: Called when the journal can no longer be written.
        self.on_failure: Callable[[], None] = _ignore_journal_failure
        self._commit = GroupCommit(self._store, self._journal, loop, self._process_failure)
        self._kernel.must_pause = self._commit.is_behind
        status_report = StatusReport(self._store, options, wall_clock(), speed)
        self._metrics = EmbeddedMetrics(status_report, self._kernel, speed)
        self._commit.on_commit = self._metrics.observe_commit
        stored_clusters = self._store.list(CLUSTER)
        check_cluster_option(cluster, stored_clusters, options)
        has_nodes = bool(stored_clusters) or cluster is not None
        effective_cluster = cluster or (stored_clusters[0] if stored_clusters else None)
        local_settings = local_node_settings(effective_cluster)
        self._signer = None if options.is_insecure else CertificateAuthority(options.folder, wall_clock())
        root_pem = _root_certificate(self._signer, is_mounted=local_settings is not None)
        version = options.kueue_version or DEFAULT_KUEUE_VERSION
        self._journal.record_setting(KUEUE_VERSION_SETTING, version, DEFAULT_KUEUE_VERSION)
        self._journal.record_setting(UPSTREAM_SETTING, ",".join(options.upstream), "")
        kueue = _kueue_settings(options, version)
        settings, self._kueue = _platform_settings(options, kueue, root_pem, has_nodes=has_nodes), kueue
        base_resources = _resources(kueue, options.custom_groups)
        claim_fields = InProcessFieldManager(base_resources, self._kernel.now).claim_fields
        admission = _admission_chain(options, kueue, has_nodes=has_nodes)
        self._client = LocalClient(self._store, self._kernel, admission=admission.hooks(), assign_manager=claim_fields)
        self._store.listen(admission.observe)
        token_issuer = TokenIssuer(self._client, SigningKey(options.folder), wall_clock)
        issue_token = partial(issue_pod_token, token_issuer, self._client)
        self._ledger = LiveLedger(options.folder / LEDGER_FILE, loop)
        self.metric_sources = self._metrics.server_metrics.additional_sources = [self._ledger.texts]
        event_recorder = EventRecorder(self._client, socket.gethostname())
        self._decisions = DecisionLog(event_recorder, self._ledger.add_entry, self._ledger.last_number)
        self._spans = self._export_spans(options.traces_to, loop) if options.traces_to else None
        node_parts = options.folder, self._kernel, self._client, issue_token
        self._local = None if local_settings is None else LocalNodeComponents(local_settings, *node_parts)
        self._runtime, self._options = options.runtime, options
        self.platform = self._build_platform(settings, effective_cluster, speed)
        self._forked_work = ForkedWork(loop, self._kernel.post)
        self._forecast_engine = self._create_forecast_engine(forecast_functions, options.folder, loop)
        audit = _combine_auditors(self._metrics.requests.count_response, audit)
        self._server, server_security = self._create_server(base_resources, token_issuer, audit)
        #: The replication to a standby; None if no standby may connect.
        self.replication = self._connect_replication(options) if options.standby else None
        self._server.add_document(REPORT, lambda: self._status_document(status_report))
        timers = LoopTimers(loop)
        self._serve_dashboard(server_security, timers, speed)
        self._serve_actions(server_security, token_issuer)
        self._start_clock(timers, speed)
        self._replay_stored_objects(cluster)

    def _connect_replication(self, options: PlatformOptions) -> "PrimaryReplication":
        from batchyard.server.replication.primary import ReplicatedPlatform, connect_replication  # noqa: PLC0415

        parts = ReplicatedPlatform(options, self._store, self._commit, self._journal, self._kernel, self._client)
        if self._local is not None:
            raise JournalError("pods that run on this machine cannot move to a standby; remove --standby")
        return connect_replication(parts, self._server)

    def _export_spans(self, collector_url: str, loop: asyncio.AbstractEventLoop) -> "SpanExport":
        span_export = _create_span_export(collector_url, loop)
        self._client.subscribe(WorkloadTracer(self._kernel.now, span_export.emit).observe)
        self._metrics.server_metrics.additional_sources.append(span_export.texts)
        return span_export

    def _create_forecast_engine(
        self, forecast_functions: ForecastFunctions | None, folder: Path, loop: asyncio.AbstractEventLoop
    ) -> ForecastEngine | None:
        if forecast_functions is None:
            return None
        engine = ForecastEngine(forecast_functions, self._store, self._kernel.clock, loop, folder / FORECASTS_FILE)
        self._metrics.server_metrics.additional_sources.append(engine.texts)
        return engine

    def _create_server(
        self, base_resources: Sequence[Resource], tokens: TokenIssuer, audit: Auditor
    ) -> tuple[ApiServer, ServerSecurity]:
        client, now, scheduler_cache = self._client, self._kernel.now, self.platform.index
        self._containers = self._create_containers()
        all_resources = with_subresources(base_resources, client, self._containers, scheduler_cache, now)
        if self._forecast_engine is not None:
            all_resources = with_forecasts(all_resources, client, self._forecast_engine)
        why_handler, certificate_requests = WhyHandler(self.platform.explainer, now), CertificateRequests(client, now)
        if ADMISSION in self._options.controllers:  # otherwise, the index that explains Workloads is empty
            all_resources = why_handler.with_why_subresource(all_resources)
        node, offered = self._local, [*all_resources, certificate_requests.resource()]
        security = build_security(client, offered, tokens, lambda: "" if node is None else node.pods_denial_reason)
        why_handler.authorizer = certificate_requests.authorizer = security.rbac
        self._store.listen(security.rbac.observe)
        self._resources = resources = Resources(security.resources)
        client.set_scope_lookup(resources.is_namespaced)
        resources.serve_always(decisions_resource(self._ledger, security.rbac, now))
        self._webhooks = LazyWebhooks()
        self._store.listen(CustomResources(client, resources, now, self._webhooks.observe_conversion).observe)
        provided = self._options.custom_groups, self._options.job_controllers
        self._provided_objects = ProvidedObjects(client, self._kernel, resources.all, *provided)
        self._store.listen(self._provided_objects.observe)
        server = ApiServer(client, self._commit, self._kernel.clock, resources, security.auth_filters, audit)
        self._store.listen(server.observe)
        server.set_write_executor(self._forked_work)
        self._aggregation = Aggregation(client, self._kernel, resources, self._options.folder, node)
        self._store.listen(self._aggregation.observe)
        server.set_aggregation(self._aggregation.apis)
        parts = server, client, resources, self._kernel, self._local, self._options.controllers
        self._webhooks.connect(*parts, self._metrics, self._forked_work)
        server.set_conversions(lambda: self._webhooks.get().conversions)
        self._store.listen(AdmissionSwitch(server, client, lambda: self._webhooks.get().gate).observe)
        if self._forecast_engine is not None:
            self._forecast_engine.authorizer = security.rbac
            server.set_dry_run_forecast(self._forecast_engine.with_effect_warnings)
        return server, security

    def _serve_dashboard(self, security: ServerSecurity, timers: LoopTimers, speed: float) -> None:
        scheduler_cache, clock = self.platform.index, self._kernel.clock
        self._history = PlatformHistory(clock, scheduler_cache.cluster_queue_of)
        self._client.subscribe(self._history.observe)
        views = DashboardViews(self._client, scheduler_cache, self._history, PlatformTime(clock, speed))
        self._server.add_prefix_handler(DASHBOARD_FILES, StaticFileHandler(read_asset, HEADERS).respond)
        self._server.add_prefix_handler(
            DASHBOARD_MODELS_PATH, ModelHandler(views, security.rbac, self._commit, timers).respond
        )

    def _serve_actions(self, security: ServerSecurity, token_issuer: TokenIssuer) -> None:
        actions = DashboardActions(self._client, security.auth_filters.authorizer, token_issuer)
        self._server.add_get_handler(DASHBOARD_ACTIONS_PATH, actions.list_allowed_actions)
        self._server.add_post_handler(
            DASHBOARD_ACTIONS_PATH, lambda request: actions.perform(request, self._server.handle)
        )

    def _status_document(self, status_report: StatusReport) -> Mapping[str, Any]:
        node_status = None if self._local is None else self._local.status()
        return status_report.document(wall=wall_clock(), clock=self._kernel.clock(), node_status=node_status)

    def _start_clock(self, timers: LoopTimers, speed: float) -> None:
        if speed == 1:
            MachineClock(self._kernel, timers, wall_clock).follow()
            return
        clock_control = ClockControl(self._kernel, lambda: self._store.revision)
        self._server.add_document(CLOCK_PATH, clock_control.document)
        self._server.add_put_handler(CLOCK_PATH, clock_control.put)

    def create_dispatcher(self, watchdog: RequestWatchdog | None = None) -> RequestDispatcher:
        """Create the dispatcher of HTTP requests, and count its watches in the metrics.

        The watchdog, if given, is notified when the execution of a request begins and ends.
        """
        metrics = self._metrics
        revision = lambda: self._store.revision  # noqa: E731 - reads one field
        flows = PriorityAndFairness(partial(flow_attributes, self._resources, self._server.impersonate), self._client)
        self._store.listen(flows.observe)
        self._metrics.server_metrics.api_sources.append(flows.texts)
        dispatcher = RequestDispatcher(self._server, self._kernel, self._commit, revision, metrics.requests, watchdog)
        dispatcher.set_flows(flows)
        metrics.watch_count = lambda: dispatcher.watch_count
        return dispatcher

    @property
    def failure(self) -> JournalError | None:
        """The error that ended all writes to the journal; None while the journal can be written."""
        return self._commit.failure

    def set_external_tokens(self, external_tokens: ExternalTokens) -> None:
        """Set the authenticator of tokens of other issuers."""
        self._server.set_external_tokens(external_tokens)

    def end_watches(self) -> None:
        """End all watches, and kill the child processes of large requests, because the platform shuts down."""
        self._forked_work.close()
        self._commit.end_watches()

    async def close(self) -> None:
        """Stop the components, wait for the remaining writes to the journal, and close the journal."""
        self._kernel.stop()
        self._aggregation.checks.close()
        self._forked_work.close()
        if self._forecast_engine is not None:
            self._forecast_engine.close()
        if self._local is not None:
            self._local.close()
        if self._spans is not None:
            await self._spans.close()
        self._webhooks.close()
        self._ledger.close()
        await self._commit.close()
        self._journal.close()

    def _process_failure(self) -> None:
        self.on_failure()

    def _build_platform(self, settings: PlatformSettings, cluster: Obj | None, speed: float) -> WiredPlatform:
        has_nodes, local_node = settings.with_nodes, self._local
        name = "" if local_node is None else local_node.name
        delays, with_volumes = container_delays_of(cluster, 0), VOLUMES in settings.controllers
        kubelets = SimulatedKubelets(
            delays, with_nodes=has_nodes, local_node=name, runtime=self._runtime, awaits_volumes=with_volumes
        )
        bare_workloads = (BareWorkloads(),) if self._options.serves(WORKLOAD) else ()
        runtime_controllers = (*bare_workloads, kubelets, *((NodeAgents(name),) if has_nodes else ()))
        throttle = DecisionThrottle(self._kernel.clock, speed, lambda: self._kernel.stops_at is not None)
        self._metrics.server_metrics.additional_sources.append(throttle.texts)
        platform_ports = PlatformPorts(
            self._kernel,
            self._client if local_node is None else CompositeClient(self._client, local_node.container_runtime),
            runtime_controllers if local_node is None else (*runtime_controllers, *local_node.controllers),
            (ClusterPoolsController(), *simulated_cloud(0)) if has_nodes else (),
            self._decisions,
            self._metrics.server_metrics.cycles.count_preemption_loop,
            throttle,
            self._metrics.server_metrics.record_defect,
            CycleLog(self._metrics.server_metrics.cycles, None if self._spans is None else self._spans.emit),
            changes_reader(self._store),
            has_volume_folders=local_node is not None,
            pod_usage=lambda pod: self._containers.usage(pod),  # noqa: PLW0108 - created later
            api_controllers=(
                PolicyStatusController(lambda: self._resources),
                FlowSchemaController(),
                *(() if self._signer is None else (CertificateController(self._signer),)),
            ),
        )
        return build_platform(platform_ports, settings)

    def _create_containers(self) -> Containers:
        simulated_containers = SimulatedContainers(self._client, self._kernel, self._runtime)
        self._commit.subscribe(simulated_containers)
        if self._local is None:
            return simulated_containers
        self._commit.subscribe(self._local.containers)
        return CombinedContainers(simulated_containers, self._local.containers, self._local.name)

    def _replay_stored_objects(self, cluster: Obj | None) -> None:
        objects = [obj for kind in self._store.kinds() for obj in self._store.list(kind)]
        events = [
            WatchEvent(EventType.ADDED, key_of(o), o, None, int(o["metadata"]["resourceVersion"])) for o in objects
        ]
        self._client.observe_existing(events)
        self.platform.runner.observe(events)
        if self._local is not None:
            self._metrics.local_node_name, self._metrics.read_local_gpus = self._local.name, self._local.gpu_states
        observed_platform = ObservedPlatform(
            *(self.platform, self._client, self._kernel.now),
            fair_sharing=self._kueue.policy.fair_sharing,
            selection=self._kueue.metrics,
        )
        self._metrics.begin(observed_platform, events, self._server)
        self._history.observe(events)
        if cluster is not None:
            self._kernel.post(lambda: store_cluster(self._client, cluster))
        self._kernel.post(partial(create_missing, self._client, required_objects(self._options.custom_groups)))
        self._provided_objects.begin()
        self._aggregation.begin()

    def pod_network_listeners(self, service_cidr: str) -> PodNetworkListeners | None:
        """Return the bound sockets for serving the API in the pod network; None without a local node."""
        return None if self._local is None else self._local.pod_network_listeners(service_cidr)

    def publish_address(self, address: str, port: int, *, is_secure: bool, cluster_ip: str) -> None:
        """Publish the API's address and cluster IP in the Service `kubernetes`; '' makes the Service headless."""
        service_objects = kubernetes_service_objects(address, port, is_https=is_secure, cluster_ip=cluster_ip)
        self._kernel.post(partial(create_or_replace, self._client, service_objects, check_success))


def _open_journal(options: PlatformOptions) -> RevisionJournal:
    """Return the journal; with an archive, it records the times of its transactions."""
    path = options.folder / JOURNAL_FILE
    journal = RevisionJournal(path, options.sync, accept_loss=options.accept_loss)
    if options.archive:
        from batchyard.store.commit_times import CommitTimes  # noqa: PLC0415 - rarely used

        journal.on_written = CommitTimes(path, wall_clock).record
    return journal


def _create_span_export(url: str, loop: asyncio.AbstractEventLoop) -> "SpanExport":
    from batchyard.server.logging.spans import SpanExport  # noqa: PLC0415 - loading the HTTP client takes 0.1 s

    return SpanExport(url, loop)


def _kueue_settings(options: PlatformOptions, version: str) -> KueueSettings:
    kueue = platform_kueue_settings(options.configuration, version).with_own_job_kinds()
    return kueue.without_jobs() if "kueue" in options.upstream else kueue


def _admission_chain(options: PlatformOptions, kueue: KueueSettings, *, has_nodes: bool) -> AdmissionChain:
    return AdmissionChain(
        with_nodes=has_nodes,
        with_api=True,
        kueue=kueue,
        service_cidr=options.service_cidr,
        upstream=options.upstream,
        job_controllers=options.job_controllers,
    )


def _platform_settings(
    options: PlatformOptions, kueue: KueueSettings, root_certificate: str, *, has_nodes: bool
) -> PlatformSettings:
    return PlatformSettings(
        kueue,
        with_nodes=has_nodes,
        with_topology=has_nodes and kueue.is_topology_aware,
        with_api=True,
        root_certificate=root_certificate,
        with_costs=has_nodes,
        is_endless=True,
        controllers=options.controllers,
        custom_groups=options.custom_groups,
        job_controllers=options.job_controllers,
    )


def _resources(kueue: KueueSettings, custom_groups: Collection[str]) -> list[Resource]:
    """Return the resources that are served without CustomResourceDefinitions."""
    built_ins = built_in_resources(kueue.policy.rules.disabled_validation_gates, custom_groups)
    return [events_resource(), *built_ins, definition_resource(custom_groups), api_service_resource()]


def _root_certificate(authority: CertificateAuthority | None, *, is_mounted: bool) -> str:
    """Return the API server's CA certificate as PEM; without TLS, a comment if pods mount the file, else ''."""
    if authority is None:
        return _NO_CERTIFICATE if is_mounted else ""
    return authority.certificate_file.read_text("ascii")


def _last_instant(store: Store) -> Instant:
    """Return the latest time in the stored objects, before which the platform's time must not start.

    It is the latest creation time of an object or renew time of a node's Lease. Other Leases are ignored, because any
    client may write them.
    """
    creation_times = [obj["metadata"]["creationTimestamp"] for kind in store.kinds() for obj in store.list(kind)]
    renewal_times = [(obj.get("spec") or {}).get("renewTime") for obj in store.list(LEASE, LEASE_NAMESPACE)]
    return max((parse_time(text) for text in (*creation_times, *renewal_times) if text), default=0)


def _combine_auditors(first_auditor: Auditor, second_auditor: Auditor) -> Auditor:
    def audit(audited_request: AuditedRequest) -> None:
        first_auditor(audited_request)
        second_auditor(audited_request)

    return audit


def _ignore_journal_failure() -> None:
    pass
