"""The embedded platform: a durable store, all controllers, and an API server, in one process."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from batchyard.admission_chain import AdmissionChain
from batchyard.admission_plugins.built_in import SYSTEM_NAMESPACES, new_namespace
from batchyard.admission_plugins.service_accounts import default_service_account
from batchyard.api import well_known
from batchyard.api.custom_kinds import DEFINITION, FINALIZER
from batchyard.api.meta import Key, Obj, annotation, key_of, with_finalizer, with_metadata, with_path, with_status
from batchyard.api.scheme import CLUSTER, FILES, KINDS, LEASE, SERVICE_ACCOUNT, ServedKind
from batchyard.api.times import parse_time
from batchyard.apiserver.api_services import (
    API_SERVICE,
    api_service_resource,
    own_service,
    provided_services,
    with_availability,
)
from batchyard.apiserver.apply import InProcessFieldManager
from batchyard.apiserver.auth.authorization import bootstrap_roles
from batchyard.apiserver.auth.security import Security, security_of
from batchyard.apiserver.auth.tokens import ISSUER, Tokens
from batchyard.apiserver.built_in import built_in_resources
from batchyard.apiserver.crd.definitions import CustomResources, definition_resource
from batchyard.apiserver.dashboard import FILES as DASHBOARD_FILES
from batchyard.apiserver.dashboard import MODELS, ModelHandler, StaticFileHandler
from batchyard.apiserver.openapi_definitions import provided_definition
from batchyard.apiserver.request import ApiRequest, Response, StatusError
from batchyard.apiserver.resources import Resource, Resources
from batchyard.apiserver.server import ApiServer, AuditedRequest, Auditor, no_audit
from batchyard.apiserver.subresources import with_subresources
from batchyard.apiserver.subresources.queueing import WhyHandler, decisions, with_forecasts
from batchyard.apiserver.virtual_resources import events_resource
from batchyard.base.instant import SECOND, Instant
from batchyard.client.informer import CompositeClient
from batchyard.client.local import LocalClient
from batchyard.cloud.cluster_objects import initial_objects
from batchyard.cloud.simulated import simulated_cloud
from batchyard.controller_runtime.events import EventRecorder
from batchyard.dashboard.history import PlatformHistory
from batchyard.dashboard.static_report import HEADERS, DashboardViews, PlatformTime, asset
from batchyard.housekeeping.controllers import status_of
from batchyard.interfaces.client import (
    Create,
    Delete,
    EventType,
    Reader,
    Update,
    UpdateStatus,
    WatchEvent,
    Write,
    WriteResult,
)
from batchyard.interfaces.containers import Containers
from batchyard.interfaces.controller import Kernel
from batchyard.kubelet.local.errors import InputError
from batchyard.kubelet.simulated.containers import SimulatedContainers
from batchyard.kubelet.simulated.durations import BareWorkloads
from batchyard.kubelet.simulated.kubelet import Kubelets, container_delays_of
from batchyard.kubelet.simulated.pod_status import NodeAgents
from batchyard.nodes.health import LEASE_NAMESPACE
from batchyard.scheduling.kueue_configuration import SIMULATED, parse_kueue_settings
from batchyard.scheduling.workload_traces import WorkloadTracer
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.server import MachineClock
from batchyard.server.clocks.wall import LoopTimers, wall_clock
from batchyard.server.forecasting.service import ForecastEngine, ForecastFunctions
from batchyard.server.http.dispatcher import RequestDispatcher, RequestWatchdog
from batchyard.server.http.forked_writes import ForkedWork
from batchyard.server.local_node.containers import BothContainers
from batchyard.server.local_node.node import LocalNodeParts, local_of
from batchyard.server.logging.ledger import LiveLedger
from batchyard.server.logging.logs import CycleLog, DecisionLog
from batchyard.server.metrics import ObservedPlatform
from batchyard.server.platform.credentials import CertificateAuthority, SigningKey
from batchyard.server.platform.data_dir import FORECASTS, JOURNAL, LEDGER, PlatformOptions
from batchyard.server.platform.decision_throttle import DecisionThrottle
from batchyard.server.platform.group_commit import HISTORY, GroupCommit
from batchyard.server.platform.status_report import STATUS_REPORT_PATH as REPORT
from batchyard.server.platform.status_report import EmbeddedMetrics, StatusReport
from batchyard.store.journal import RevisionJournal
from batchyard.store.journal_file import JournalError
from batchyard.store.memory import Store, changes_reader
from batchyard.wiring import PlatformSettings, Ports, WiredPlatform, build_platform

# --- provided objects ---
#
# Objects that the platform provides: definitions of its own kinds, APIServices, and Kueue's roles.
#
# They are stored like other objects, so that clients can list and watch them. A client can take over such an object by
# creating or applying an object of the same name, which does not change the served kinds. Deleted objects are created
# again.


#: The delay after the start before stored definitions are compared with those of this release.
_REFRESH_AFTER: Final = 5 * SECOND
_KUEUE_ROLES: Final = "kueue-"
_NATIVE: Final = ".k8s.io"


class ProvidedObjectsClient(Reader, Protocol):
    """A client that reads and writes objects."""

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        """Apply writes in order until one is rejected; `done` later gets the result."""


class ProvidedObjects:
    """Creates and updates the definitions and APIServices that the platform provides."""

    def __init__(self, client: ProvidedObjectsClient, kernel: Kernel, served: Callable[[], Sequence[Resource]]) -> None:
        self._client, self._kernel, self._served = client, kernel, served
        self._kinds = {f"{info.plural}.{info.group}": info for info in _defined_kinds()}
        self._is_due = False

    def begin(self) -> None:
        """Create missing objects now, and schedule updates of objects that an earlier release provided."""
        self._synchronize_soon()
        for place, name in enumerate(self._kinds):
            if self._client.get(Key(DEFINITION, "", name)) is None:
                self._soon(partial(self._define, name))
            else:  # staggered, so that requests are served in between
                self._kernel.call_at(self._kernel.now() + _REFRESH_AFTER + place * SECOND, partial(self._refresh, name))

    def observe(self, event: WatchEvent) -> None:
        """Recreate or update provided objects after a change of a definition or an APIService."""
        if event.key.kind == DEFINITION:
            self._synchronize_soon()
            if event.type is EventType.DELETED and event.key.name in self._kinds:
                self._soon(partial(self._define, event.key.name))
        elif event.key.kind == API_SERVICE and not _is_update(event):
            self._synchronize_soon()

    def _define(self, name: str) -> None:
        """Store the CustomResourceDefinition with this name as established, unless it exists."""
        if self._client.get(Key(DEFINITION, "", name)) is not None:
            return
        wanted = with_finalizer(provided_definition(self._kinds[name]), FINALIZER)
        self._write(Create(with_status(wanted, status_of(wanted, self._client, self._kernel.now()))))

    def _refresh(self, name: str) -> None:
        """Update a stored CustomResourceDefinition if an earlier release provided it."""
        stored = self._client.get(Key(DEFINITION, "", name))
        if stored is None or annotation(stored, well_known.PROVIDED) is None:
            return
        spec = provided_definition(self._kinds[name])["spec"]
        if any(stored["spec"].get(field) != value for field, value in spec.items()):
            self._write(Update({**stored, "spec": {**stored["spec"], **spec}}))

    def _synchronize_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._soon(self._synchronize)

    def _synchronize(self) -> None:
        """Create, delete and update APIServices to match the served resources."""
        self._is_due = False
        now = self._kernel.now()
        wanted = {service["metadata"]["name"]: service for service in provided_services(self._served(), now)}
        stored = {key_of(service).name: service for service in self._client.list(API_SERVICE)}
        for write in _differences(wanted, stored, now):
            self._write(write)

    def _soon(self, work: Callable[[], None]) -> None:
        self._kernel.call_at(self._kernel.now(), work)

    def _write(self, write: Write) -> None:
        self._client.submit([write], _ignore)


def provided_role(role: Obj) -> Obj:
    """Return a bootstrap role; a role of Kueue is marked as provided, because Kueue's manifests may take it over."""
    if not role["metadata"]["name"].startswith(_KUEUE_ROLES):
        return role
    return with_metadata(role, annotations={**(role["metadata"].get("annotations") or {}), well_known.PROVIDED: "true"})


def _differences(wanted: Mapping[str, Obj], stored: Mapping[str, Obj], now: Instant) -> Iterator[Write]:
    for name, service in wanted.items():
        if name not in stored:
            yield Create(service)
    for name, service in stored.items():
        if name not in wanted and annotation(service, well_known.PROVIDED) is not None:
            yield Delete(key_of(service))
        elif (updated := with_availability(service, wanted, now)) is not service:
            yield UpdateStatus(updated)


def _defined_kinds() -> Iterator[ServedKind]:
    """Yield the kinds that the platform serves as custom resources, such as Kueue's and JobSet's."""
    for info in KINDS:
        if "." in info.group and not info.group.endswith(_NATIVE) and info.constant not in FILES:
            yield info


def _is_update(event: WatchEvent) -> bool:
    return event.type is EventType.MODIFIED


def _ignore(_result: WriteResult) -> None:
    """Ignore the result of a write: after a conflict, the next change triggers another update."""


# --- pod tokens ---
#
# ServiceAccount tokens for the projected volumes of pods.


def pod_token(tokens: Tokens, reader: Reader, namespace: str, account: str, audience: str, seconds: int) -> str:
    """Issue a token of a ServiceAccount, valid for `seconds`. Raises InputError if the account does not exist."""
    found = reader.get(Key(SERVICE_ACCOUNT, namespace, account))
    if found is None:
        raise InputError(f'failed to fetch token: serviceaccounts "{account}" not found')
    return tokens.issue(found, None, (audience or ISSUER,), tokens.clock() + seconds * SECOND)


# --- clock control ---
#
# Clock control: the owner of a platform with accelerated time can let it run up to an instant, where it stops.
#
# A client that must act at an instant of the platform's time can therefore be arbitrarily slow. `PUT` takes
# `{"until": INSTANT}`, in microseconds since 1970; null lets time run freely. The responses to `PUT` and `GET` hold the
# current instant, the last revision, and whether time has stopped with all work due by then done.


#: The URL path.
PATH: Final = "/batchyard/clock"
_INVALID: Final = StatusError(
    400, "BadRequest", 'the body must be {"until": INSTANT}, with INSTANT in microseconds since 1970 or null'
)


class ClockControl:
    """Handles HTTP requests that read or control the clock of a platform's event loop."""

    def __init__(self, kernel: LiveKernel, revision: Callable[[], int]) -> None:
        self._kernel = kernel
        self._revision = revision

    def document(self) -> Mapping[str, Any]:
        """Return the response document: the current instant, and whether time has stopped."""
        kernel = self._kernel
        return {
            "instant": kernel.clock(),
            "until": kernel.stops_at,
            "hasStopped": kernel.has_stopped(),
            "revision": self._revision(),
        }

    def put(self, request: ApiRequest) -> Response:
        """Handle a PUT request: let time run until the requested instant."""
        try:
            until = json.loads(request.body)["until"]
        except (ValueError, TypeError, KeyError):
            raise _INVALID from None
        if until is not None and type(until) is not int:
            raise _INVALID
        self._kernel.run_until(until)
        return Response(200, self.document())


if TYPE_CHECKING:
    from batchyard.server.logging.spans import SpanExport

_NO_CERTIFICATE: Final = "# The API is served without TLS.\n"


class EmbeddedPlatform:
    """An embedded platform: creates and connects its components.

    It must be created within the asyncio loop that runs it.
    """

    def __init__(
        self,
        place: PlatformOptions,
        cluster: Obj | None,
        speed: float,
        audit: Auditor = no_audit,
        foresight: ForecastFunctions | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._journal = RevisionJournal(place.folder / JOURNAL, place.sync, accept_loss=place.accept_loss)
        self._store = Store(window=2 * HISTORY, recovered=self._journal.recover())
        self._kernel = LiveKernel(loop, max(wall_clock(), _last_instant(self._store)), speed)
        #: Called when the journal can no longer be written.
        self.on_failure: Callable[[], None] = _ignore_failure
        self._commit = GroupCommit(self._store, self._journal, loop, self._failed)
        self._kernel.is_held = self._commit.is_behind
        report = StatusReport(self._store, place, wall_clock(), speed)
        self._figures = EmbeddedMetrics(report, self._kernel, speed)
        self._commit.on_commit = self._figures.committed
        known = self._store.list(CLUSTER)
        nodes = bool(known) or cluster is not None
        described = cluster or (known[0] if known else None)
        local = local_of(described)
        root = _root_certificate(place, is_mounted=local is not None)
        kueue = SIMULATED if place.configuration is None else parse_kueue_settings(place.configuration)
        settings = PlatformSettings(kueue, with_nodes=nodes, with_api=True, root_certificate=root)
        settings = replace(settings, controllers=place.controllers, with_costs=nodes, is_endless=True)
        self._is_fair = kueue.policy.fair_sharing
        built_in = [events_resource(), *built_in_resources(), definition_resource(), api_service_resource()]
        claimed = InProcessFieldManager(built_in, self._kernel.now).claimed
        chain = AdmissionChain(with_nodes=nodes, with_api=True, managed_namespaces=kueue.managed_namespaces)
        self._client = LocalClient(self._store, self._kernel, admission=chain.rules(), assign_manager=claimed)
        self._store.listen(chain.observe)
        tokens = Tokens(self._client, SigningKey(place.folder), wall_clock)
        token = partial(pod_token, tokens, self._client)
        self._ledger = LiveLedger(place.folder / LEDGER, loop)
        self._decisions = DecisionLog(
            EventRecorder(self._client, socket.gethostname()), self._ledger.keep, self._ledger.last
        )
        self._spans = _exported(place.traces_to, loop) if place.traces_to else None
        if self._spans is not None:
            self._client.subscribe(WorkloadTracer(self._kernel.now, self._spans.emit).observe)
            self._figures.figures.also.append(self._spans.texts)
        self._local = None if local is None else LocalNodeParts(local, place.folder, self._kernel, self._client, token)
        self._runtime = place.runtime
        self.platform = self._wired(settings, described, speed)
        self._apart = ForkedWork(loop, self._kernel.post)
        self._futures = None
        if foresight is not None:
            self._futures = ForecastEngine(foresight, self._store, self._kernel.clock, loop, place.folder / FORECASTS)
        self._figures.figures.also += [self._ledger.texts, *([] if self._futures is None else [self._futures.texts])]
        self._server, security = self._served(built_in, tokens, _both(self._figures.requests.note, audit))
        self._server.add_document(REPORT, lambda: self._status_document(report))
        timers = LoopTimers(loop)
        self._serve_page(security, timers, speed)
        self._begin_time(timers, speed)
        self._begin(cluster)

    def _served(self, built_in: Sequence[Resource], tokens: Tokens, audit: Auditor) -> tuple[ApiServer, Security]:
        """Create the API server, and its authorization, with all built-in, custom and virtual resources."""
        client, now, index = self._client, self._kernel.now, self.platform.index
        served = with_subresources(built_in, client, self._containers(), index, now)
        if self._futures is not None:
            served = with_forecasts(served, client, self._futures)
        why = WhyHandler(self.platform.explainer, now)
        security = security_of(client, why.with_parts(served), tokens, self._pods_denial)
        why.authorizer = security.rbac
        self._store.listen(security.rbac.observe)
        resources = Resources(security.resources)
        client.judge_owners(resources.is_namespaced)
        resources.serve_always(decisions(self._ledger, security.rbac, now))
        self._store.listen(CustomResources(client, resources, now).observe)
        self._provided = ProvidedObjects(client, self._kernel, resources.all)
        self._store.listen(self._provided.observe)
        server = ApiServer(client, self._commit, self._kernel.clock, resources, security.access, audit)
        server.set_write_executor(self._apart)
        if self._futures is not None:
            self._futures.authorizer = security.rbac
            server.set_dry_run_forecast(self._futures.foreseen)
        return server, security

    def _pods_denial(self) -> str:
        """Return why only the owner may start pods; '' if this machine isolates pods or is not a node."""
        return "" if self._local is None else self._local.pods_denial

    def _serve_page(self, security: Security, timers: LoopTimers, speed: float) -> None:
        """Serve the dashboard, and start to record its history."""
        index, clock = self.platform.index, self._kernel.clock
        self._history = PlatformHistory(clock, index.cluster_queue_of)
        self._client.subscribe(self._history.observe)
        pages = DashboardViews(self._client, index, self._history, PlatformTime(clock, speed))
        self._server.add_prefix(DASHBOARD_FILES, StaticFileHandler(asset, HEADERS).answer)
        self._server.add_prefix(MODELS, ModelHandler(pages, security.rbac, self._commit, timers).answer)

    def _status_document(self, report: StatusReport) -> Mapping[str, Any]:
        local = None if self._local is None else self._local.status()
        return report.document(wall=wall_clock(), clock=self._kernel.clock(), local=local)

    def _begin_time(self, timers: LoopTimers, speed: float) -> None:
        """Synchronize with the machine's clock, or serve the clock control if time is accelerated."""
        if speed == 1:
            MachineClock(self._kernel, timers, wall_clock).follow()
            return
        control = ClockControl(self._kernel, lambda: self._store.revision)
        self._server.add_document(PATH, control.document)
        self._server.add_put_handler(PATH, control.put)

    def answers(self, guard: RequestWatchdog | None = None) -> RequestDispatcher:
        """Create the dispatcher of HTTP requests, supervised by a watchdog if one is given."""
        figures = self._figures
        revision = lambda: self._store.revision  # noqa: E731 - reads one field
        answers = RequestDispatcher(self._server, self._kernel, self._commit, revision, figures.requests, guard)
        figures.watches = lambda: answers.watches
        return answers

    @property
    def failure(self) -> JournalError | None:
        """The error because of which the journal is no longer written; None while it is written."""
        return self._commit.failure

    def end_watches(self) -> None:
        """End all watches, and kill the child processes of large requests, at shutdown."""
        self._apart.close()
        self._commit.end_watches()

    async def close(self) -> None:
        """Stop all components, write the remaining changes, and close the journal."""
        self._kernel.stop()
        self._apart.close()
        if self._futures is not None:
            self._futures.close()
        if self._local is not None:
            self._local.close()
        if self._spans is not None:
            await self._spans.close()
        self._ledger.close()
        await self._commit.close()
        self._journal.close()

    def _failed(self) -> None:
        self.on_failure()

    def _wired(self, settings: PlatformSettings, cluster: Obj | None, speed: float) -> WiredPlatform:
        nodes, local = settings.with_nodes, self._local
        name = "" if local is None else local.name
        kubelets = Kubelets(container_delays_of(cluster, 0), with_nodes=nodes, local=name, runtime=self._runtime)
        runtime = (BareWorkloads(), kubelets, *((NodeAgents(name),) if nodes else ()))
        pace = DecisionThrottle(self._kernel.clock, speed, lambda: self._kernel.stops_at is not None)
        self._figures.figures.also.append(pace.texts)
        ports = Ports(
            self._kernel,
            self._client if local is None else CompositeClient(self._client, local.machine),
            runtime if local is None else (*runtime, *local.controllers),
            simulated_cloud(0) if nodes else (),
            self._decisions,
            self._figures.figures.cycles.loop,
            pace,
            self._figures.defect,
            CycleLog(self._figures.figures.cycles, None if self._spans is None else self._spans.emit),
            changes_reader(self._store),
        )
        return build_platform(ports, settings)

    def _containers(self) -> Containers:
        """Return access to the containers of all pods, simulated and local, for logs, exec and port-forward."""
        simulated = SimulatedContainers(self._client, self._kernel, self._runtime)
        self._commit.join(simulated)
        if self._local is None:
            return simulated
        self._commit.join(self._local.containers)
        return BothContainers(simulated, self._local.containers, self._local.name)

    def _begin(self, cluster: Obj | None) -> None:
        """Replay the stored objects to the controllers, and create missing namespaces, roles and Cluster objects."""
        found = [obj for kind in self._store.kinds() for obj in self._store.list(kind)]
        events = [WatchEvent(EventType.ADDED, key_of(o), o, None, int(o["metadata"]["resourceVersion"])) for o in found]
        self._client.recall(events)
        self.platform.runner.observe(events)
        if self._local is not None:
            self._figures.local, self._figures.local_gpus = self._local.name, self._local.gpu_states
        watched = ObservedPlatform(self.platform, self._client, self._kernel.now, fair_sharing=self._is_fair)
        self._figures.begin(watched, events, self._server)
        self._history.observe(events)
        # Default ServiceAccounts too: their controller runs late at startup, and pods without one are rejected.
        wanted = [*map(new_namespace, SYSTEM_NAMESPACES), *map(default_service_account, SYSTEM_NAMESPACES)]
        wanted += map(provided_role, bootstrap_roles())
        if cluster is not None:
            wanted += initial_objects(cluster)
            self._kernel.post(lambda: self._remember_local(cluster))
        self._kernel.post(lambda: self._make(wanted))
        self._provided.begin()

    def _remember_local(self, cluster: Obj) -> None:
        """Store `spec.local` of the given Cluster, so that the next start uses it if no Cluster is given."""
        stored, local = self._client.get(key_of(cluster)), cluster["spec"].get("local")
        if stored is not None and stored["spec"].get("local") != local:
            self._client.submit([Update(with_path(stored, ("spec", "local"), local))], _must_succeed)

    def listener_among_pods(self) -> tuple[str, socket.socket] | None:
        """Return the address and the bound socket at which pods with their own network reach the platform, or None."""
        return None if self._local is None else self._local.listener_among_pods()

    def reached_at(self, address: str, port: int, *, is_secure: bool, among_pods: str = "") -> None:
        """Publish the platform's address in the Service `kubernetes`, with the address for pods if there is one."""
        wanted = own_service(address, port, is_secure=is_secure, among_pods=among_pods)
        self._kernel.post(lambda: self._put(wanted))

    def _put(self, wanted: Iterable[Obj]) -> None:
        """Create objects, or overwrite existing ones."""
        for obj in wanted:
            found = self._client.get(key_of(obj))
            write = Create(obj) if found is None else Update({**found, **obj, "metadata": found["metadata"]})
            self._client.submit([write], _must_succeed)

    def _make(self, wanted: Iterable[Obj]) -> None:
        for obj in wanted:
            if self._client.get(key_of(obj)) is None:
                self._client.submit([Create(obj)], _must_succeed)


def _exported(url: str, loop: asyncio.AbstractEventLoop) -> "SpanExport":
    from batchyard.server.logging.spans import SpanExport  # noqa: PLC0415 - loading the HTTP client takes 0.1 s

    return SpanExport(url, loop)


def _root_certificate(place: PlatformOptions, *, is_mounted: bool) -> str:
    """Return the CA certificate of the server as PEM; without TLS a comment if pods mount it, else ''."""
    if place.is_insecure:
        return _NO_CERTIFICATE if is_mounted else ""
    return CertificateAuthority(place.folder, wall_clock()).certificate_file.read_text("ascii")


def _last_instant(store: Store) -> Instant:
    """Return the latest instant in the store, before which the platform's time must not start.

    It is a creation time of an object or a renew time of a node's Lease. Other Leases are written by any client.
    """
    born = [obj["metadata"]["creationTimestamp"] for kind in store.kinds() for obj in store.list(kind)]
    renewed = [(obj.get("spec") or {}).get("renewTime") for obj in store.list(LEASE, LEASE_NAMESPACE)]
    return max((parse_time(text) for text in (*born, *renewed) if text), default=0)


def _both(one: Auditor, other: Auditor) -> Auditor:
    """Return an auditor that passes each audited request to both auditors."""

    def note(audited: AuditedRequest) -> None:
        one(audited)
        other(audited)

    return note


def _ignore_failure() -> None:
    pass


def _must_succeed(result: WriteResult) -> None:
    if result.error is not None:
        raise result.error
