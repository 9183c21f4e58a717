"""An API server over a store in memory, without HTTP: by default, each request comes from the owner."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

import make
from batchyard.admission_chain import AdmissionChain
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.admission.attributes import POLICY_KINDS
from batchyard.apiserver.admission.calls import TimedReply, WebhookRequest
from batchyard.apiserver.admission.gate import AdmissionGate, GateParts
from batchyard.apiserver.admission.registrations import WebhookRegistry
from batchyard.apiserver.api_services import api_service_resource
from batchyard.apiserver.auth.security import build_security
from batchyard.apiserver.auth.tokens import TokenIssuer
from batchyard.apiserver.built_in import built_in_resources
from batchyard.apiserver.certificates.requests import CertificateRequests
from batchyard.apiserver.crd.definitions import CustomResources, definition_resource
from batchyard.apiserver.handlers.prepared_writes import WriteExecutor
from batchyard.apiserver.handlers.read import WatchStream
from batchyard.apiserver.request import (
    ANONYMOUS,
    MASTERS_GROUP,
    AnyResponse,
    ApiRequest,
    DeferredResponse,
    ProxyResponse,
    Response,
    StreamingResponse,
    UpgradeResponse,
    UserInfo,
)
from batchyard.apiserver.resources import Resources
from batchyard.apiserver.server import ApiServer, AuditedRequest
from batchyard.apiserver.subresources import with_subresources
from batchyard.apiserver.virtual_resources import events_resource
from batchyard.base.instant import SECOND, Instant
from batchyard.client.local import LocalClient
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import WatchEvent, Write, WriteResult
from batchyard.kubelet.simulated.containers import SimulatedContainers
from batchyard.metrics.forks import AdmissionWebhookMetrics
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.server.http.dispatcher import encode_body
from batchyard.store.memory import Store

#: The Namespaces that exist from the start.
NAMESPACES = ("default", "team", "team-a", "team-b", "other")
OWNER = UserInfo("owner", (MASTERS_GROUP,))


class ApiStore:
    """The objects and their changes, which are durable at once."""

    def __init__(self, window: int, start: Instant) -> None:
        self.kernel = VirtualEventLoop(start)
        self.store = Store(window=window)
        chain = AdmissionChain(with_nodes=False, with_api=True)
        self.client = LocalClient(self.store, self.kernel, admission=chain.hooks())
        self.store.listen(chain.observe)
        for name in NAMESPACES:
            self.store.put(Key(scheme.NAMESPACE, "", name), make.namespace(name))
            account = make.metadata("default", name)
            self.store.put(
                Key(scheme.SERVICE_ACCOUNT, name, "default"),
                {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
            )
        self._watches: list[WatchStream | SimulatedContainers] = []
        self.store.listen(self._notify)

    @property
    def revision(self) -> int:
        return self.store.revision

    def get(self, key: Key) -> Obj | None:
        return self.store.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        return self.store.list(kind, namespace)

    def attempt(self, write: Write, *, dry_run: bool = False) -> WriteResult:
        result = self.client.attempt(write, dry_run=dry_run)
        self.kernel.run(end_time=self.kernel.now())
        return result

    def events_since(self, revision: int) -> Sequence[WatchEvent]:
        return self.store.changes_since(revision)

    def changes_since(self, revision: int) -> Sequence[WatchEvent]:
        return self.store.changes_since(revision)

    def subscribe(self, watch: WatchStream | SimulatedContainers) -> None:
        self._watches.append(watch)

    def _notify(self, change: WatchEvent) -> None:
        for watch in self._watches:
            watch.process_changes([change])


class NoCaller:
    """A caller of webhooks for an API without any."""

    def seconds(self) -> float:
        return 0.0

    def call(self, request: WebhookRequest, timeout_seconds: float, on_reply: Callable[[TimedReply], None]) -> None:
        raise AssertionError("there are no webhooks")


class DigestSigner:
    """Signs messages with a digest and a secret word."""

    key_id = "of tests"

    def sign(self, message: bytes) -> bytes:
        return hashlib.sha256(b"a word" + message).digest()

    def is_signed(self, message: bytes, signature: bytes) -> bool:
        return signature == self.sign(message)


def body_bytes(response: Response) -> bytes:
    """The body of a response as its client receives it."""
    body = encode_body(response).body
    return body if isinstance(body, bytes) else b"".join(body)


class Api:
    """An API server over a store in memory, with authentication, authorization and admission."""

    #: The user of requests without credentials.
    anybody = ANONYMOUS

    def __init__(self, window: int = 1000, start: Instant = 0) -> None:
        self.stored = ApiStore(window, start)
        self.tokens = TokenIssuer(self.stored, DigestSigner(), self.stored.kernel.now)
        built_in = [events_resource(), *built_in_resources(), definition_resource(), api_service_resource()]
        self.containers = SimulatedContainers(self.stored.client, self.stored.kernel)
        self.stored.subscribe(self.containers)
        self.index = SchedulerCache()
        served = with_subresources(built_in, self.stored, self.containers, self.index, self.stored.kernel.now)
        certificate_requests = CertificateRequests(self.stored, self.stored.kernel.now)
        security = build_security(self.stored, [*served, certificate_requests.resource()], self.tokens)
        certificate_requests.authorizer = security.rbac
        self.stored.store.listen(security.rbac.observe)
        self.audited: list[AuditedRequest] = []
        now, resources = self.stored.kernel.now, Resources(security.resources)
        self.resources = resources
        self.stored.client.set_scope_lookup(resources.is_namespaced)
        self.stored.store.listen(CustomResources(self.stored, resources, self.stored.kernel.now).observe)
        self.server = ApiServer(self.stored, self.stored, now, resources, security.auth_filters, self.audited.append)
        self.stored.store.listen(self.server.observe)
        self.stored.store.listen(self._follow_policies)

    def _follow_policies(self, change: WatchEvent) -> None:
        """Admit writes by policies once one is stored; a test of webhooks sets a gate of its own."""
        if change.key.kind in POLICY_KINDS:
            self.admit_by_policies()

    def admit_by_policies(self, executor: WriteExecutor | None = None) -> None:
        """Admit the later writes by the stored policies; the executor prepares large ones."""
        handler, policies, metrics = self.server.write_handler, self.server.policy_loader, AdmissionWebhookMetrics()
        no_webhooks = WebhookRegistry(self.stored)
        parts = GateParts(self.stored, handler, no_webhooks, metrics, NoCaller(), 1, policies, executor)
        self.server.set_admission_gate(AdmissionGate(parts))

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        user: UserInfo = OWNER,
    ) -> Response:
        """The answer to a request; its path may have a query."""
        answer = self._answer(method, path, body, headers or {}, user)
        assert isinstance(answer, Response)
        return answer

    def get(self, path: str, **headers: str) -> Any:
        """The body of a successful GET."""
        response = self.ask("GET", path, headers=headers)
        assert response.code == 200, response
        return response.body

    def post(self, path: str, obj: Mapping[str, Any]) -> Any:
        """Create an object; the stored object."""
        response = self.ask("POST", path, obj)
        assert response.code == 201, response
        return response.body

    def watch(self, path: str, **headers: str) -> WatchStream:
        """The watch of a path."""
        answer = self._answer("GET", path, None, headers, OWNER)
        assert isinstance(answer, WatchStream), answer
        return answer

    def stream(self, path: str) -> StreamingResponse:
        """The streaming answer of a path."""
        answer = self._answer("GET", path, None, {}, OWNER)
        assert not isinstance(answer, Response | UpgradeResponse | DeferredResponse | ProxyResponse), answer
        return answer

    def answer(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> AnyResponse:
        """The answer to a request of the owner, of any type."""
        return self._answer(method, path, body, {"content-type": content_type}, OWNER)

    def pass_time(self, seconds: int) -> None:
        """Let time pass."""
        kernel = self.stored.kernel
        kernel.call_at(kernel.now() + seconds * SECOND, lambda: None)
        kernel.run(end_time=kernel.now() + seconds * SECOND)

    def _answer(self, method: str, path: str, body: Any, headers: Mapping[str, str], user: UserInfo) -> AnyResponse:
        place, _, text = path.partition("?")
        query = dict(part.partition("=")[::2] for part in text.split("&") if part)
        sent = body if isinstance(body, bytes) else b"" if body is None else msgspec.json.encode(body)
        return self.server.handle(ApiRequest(method, place, query, headers, sent, user))


def config_map(name: str, **data: str) -> dict[str, Any]:
    """A ConfigMap with its data as labels."""
    metadata = {"name": name, "labels": data}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
