"""The dashboard of an operator and its API server, both as HTTP servers on this machine."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, NamedTuple, Self

import aiohttp
from aiohttp import web
from yarl import URL

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.apiserver.auth.tokens import ISSUER
from batchyard.apiserver.dashboard import DASHBOARD_ACTIONS_PATH, ModelHandler
from batchyard.apiserver.dashboard_actions import DashboardActions
from batchyard.apiserver.request import ANONYMOUS, ApiRequest, Response
from batchyard.base.instant import HOUR, Instant
from batchyard.dashboard.data_source import EVENTS
from batchyard.dashboard.history import PlatformHistory
from batchyard.dashboard.static_report import DashboardViews, PlatformTime
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.server.clocks.wall import LoopTimers
from batchyard.server.kubeconfig.access import ApiServerAccess
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.operator.dashboard import BearerActionTokens, DashboardHandlers, PageSource, StreamHub
from batchyard.server.operator.token_review import TokenReviewer
from batchyard.server.operator.user_requests import UserRequests
from tls_server import listening
from unit.apiserver.api import OWNER, Api, body_bytes
from unit.apiserver.roles import GROUP, account, binding, group, role, rule

KUEUE: Final = "kueue.x-k8s.io"
OPERATOR_TOKEN: Final = "of-the-operator"


class ReceivedRequest(NamedTuple):
    """A request that the API server received."""

    method: str
    path: str
    headers: Mapping[str, str]
    has_certificate: bool

    @property
    def token(self) -> str:
        """The bearer token."""
        return self.headers.get("authorization", "").removeprefix("Bearer ")


class HttpApi:
    """An API server on HTTP, which authorizes by RBAC; the operator's token has all rights."""

    def __init__(self) -> None:
        self.api = Api()
        self_review = rule("create", "selfsubjectreviews", "authentication.k8s.io")
        self._bind("basic-user", group("system:authenticated"), self_review)
        self.received: list[ReceivedRequest] = []
        #: Responds in place of the API server, or returns None.
        self.respond: Callable[[web.Request], Awaitable[web.StreamResponse | None]] = _pass_on
        #: Whether all requests have the operator's rights, as behind a proxy that authenticates itself.
        self.ignores_tokens = False
        self.url = ""

    def grant(self, name: str, *rules: Mapping[str, Any]) -> str:
        """Create a ServiceAccount with these rights in all namespaces; return its token."""
        self._bind(name, account(name, "team"), *rules)
        service_account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
        self.api.post("/api/v1/namespaces/team/serviceaccounts", service_account)
        stored = self.api.stored.get(Key(scheme.SERVICE_ACCOUNT, "team", name))
        assert stored is not None
        return self.api.tokens.issue_account_token(stored, None, [ISSUER], HOUR)

    def _bind(self, name: str, subject: dict[str, Any], *rules: Mapping[str, Any]) -> None:
        self.api.post(f"/apis/{GROUP}/v1/clusterroles", role(name, *map(dict, rules)))
        self.api.post(f"/apis/{GROUP}/v1/clusterrolebindings", binding(name, f"ClusterRole/{name}", subject))

    def revoke(self, name: str) -> None:
        """Delete the rights that `grant` created."""
        assert self.api.ask("DELETE", f"/apis/{GROUP}/v1/clusterrolebindings/{name}").code == 200

    def count_reviews(self, kind: str) -> int:
        """Return the number of received reviews whose path ends with this plural, such as `tokenreviews`."""
        return sum(each.path.endswith(f"/{kind}") for each in self.received)

    def requests_of(self, token: str) -> list[ReceivedRequest]:
        """The received requests with a token, except reviews of the token itself."""
        return [each for each in self.received if each.token == token and "selfsubjectreviews" not in each.path]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request as the API server."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        certificate = request.transport.get_extra_info("peercert") if request.transport else None
        self.received.append(ReceivedRequest(request.method, request.path_qs, headers, bool(certificate)))
        special = await self.respond(request)
        if special is not None:
            return special
        is_operator = self.ignores_tokens or headers.get("authorization") == f"Bearer {OPERATOR_TOKEN}"
        items = tuple(request.query.items())
        user, body = OWNER if is_operator else ANONYMOUS, await request.read()
        api_request = ApiRequest(request.method, request.path, dict(items), headers, body, user, query_items=items)
        response = self.api.server.handle(api_request)
        assert isinstance(response, Response)
        return web.Response(status=response.code, body=body_bytes(response), content_type="application/json")


async def _pass_on(_request: web.Request) -> None:
    return None


class OperatorPage:
    """The dashboard of an operator, with a Job's Workload in the namespace team, and a ClusterQueue."""

    def __init__(self) -> None:
        self.server = HttpApi()
        api = self.server.api
        api.post(f"/apis/{KUEUE}/v1beta2/workloadpriorityclasses", make.workload_priority_class("urgent", 9))
        self.job = api.post("/apis/batch/v1/namespaces/team/jobs", make.job("train"))
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": self.job["metadata"]["uid"]}
        workload = make.workload("w")
        workload = {**workload, "metadata": {**workload["metadata"], "ownerReferences": [owner]}}
        self.workload = api.post(f"/apis/{KUEUE}/v1beta2/namespaces/team/workloads", workload)
        self.queue = api.post(f"/apis/{KUEUE}/v1beta2/clusterqueues", make.cluster_queue("gpus"))
        self.editor = self.server.grant(
            "editor",
            rule("get list patch", "workloads clusterqueues", KUEUE),
            rule("delete", "jobs", "batch"),
            rule("list", "events"),
        )
        self.reader = self.server.grant("reader", rule("get list", "workloads clusterqueues", KUEUE))
        self._stack = AsyncExitStack()
        self.url = ""
        #: The time of the operator's caches.
        self.now: Instant = 0
        self.stream_hub = StreamHub()

    async def __aenter__(self) -> Self:
        enter = self._stack.enter_async_context
        port = await enter(listening([web.route("*", "/{path:.*}", self.server.answer)]))
        self.server.url = f"http://127.0.0.1:{port}"
        access = ApiServerAccess(self.server.url, True, f"Bearer {OPERATOR_TOKEN}", None, "", "default")

        async def renew() -> ApiServerAccess:
            return access

        self.transport = HttpTransport(access, renew)
        self._stack.push_async_callback(self.transport.close)
        self.url = f"http://127.0.0.1:{await enter(listening(self._handlers().routes()))}"
        self._client = await enter(aiohttp.ClientSession())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def _handlers(self) -> DashboardHandlers:
        def now() -> Instant:
            return self.now

        self.reviewer = reviewer = TokenReviewer(self.transport, now)
        hub, index = self.stream_hub, SchedulerCache()
        history = PlatformHistory(_zero, index.cluster_queue_of)
        views = DashboardViews(self.server.api.stored.client, index, history, PlatformTime(_zero, 1.0))
        views.extra_documents = (EVENTS,)
        models = ModelHandler(views, reviewer, hub, LoopTimers(asyncio.get_running_loop()))
        actions = DashboardActions(self.server.api.stored, reviewer, BearerActionTokens())
        source = PageSource(models, hub, None, actions)
        return DashboardHandlers(reviewer, UserRequests(self.transport.user_transport, now), lambda: source)

    async def ask(
        self, method: str, path: str, token: str = "", *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """The code and the document or text of a response to a request of the browser."""
        async with self.open(method, path, token, body=body, headers=headers) as response:
            is_json = response.content_type == "application/json"
            return response.status, await (response.json() if is_json else response.text())

    def open(
        self, method: str, path: str, token: str = "", *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Any:
        """Open a request of the browser, as a context manager."""
        sent = {**({"Authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        url = URL(f"{self.url}{path}", encoded=True)
        return self._client.request(method, url, json=body, headers=sent, allow_redirects=False)

    async def offered(self, obj: Obj, token: str) -> list[str]:
        """The names of the offered actions on an object."""
        metadata = obj["metadata"]
        query = f"kind={obj['kind']}&name={metadata['name']}&namespace={metadata.get('namespace', '')}"
        code, document = await self.ask("GET", f"{DASHBOARD_ACTIONS_PATH}?{query}", token)
        assert code == 200, document
        return [action["name"] for action in document["actions"]]

    async def perform(
        self, obj: Obj, action: str, token: str, value: str = "", headers: Mapping[str, str] | None = None, **other: Any
    ) -> tuple[int, Any]:
        """The code and the document of the response to an action."""
        metadata = obj["metadata"]
        body = {"action": action, "kind": obj["kind"], "namespace": metadata.get("namespace", ""), "value": value}
        body |= {"name": metadata["name"], "uid": metadata["uid"], **other}
        sent = {"Origin": self.url, "Sec-Fetch-Site": "same-origin", **(headers or {})}
        return await self.ask("POST", DASHBOARD_ACTIONS_PATH, token, body=body, headers=sent)

    def stored(self, obj: Obj) -> Any:
        """An object as the API server has stored it, or None."""
        kind = scheme.find_kind(obj["apiVersion"], obj["kind"])
        assert kind is not None
        metadata = obj["metadata"]
        return self.server.api.stored.get(Key(kind.constant, metadata.get("namespace", ""), metadata["name"]))


async def wait_until(is_reached: Callable[[], bool]) -> None:
    """Wait until a condition holds; raise TimeoutError if it does not hold soon."""
    async with asyncio.timeout(20):
        while not is_reached():
            await pause()


async def pause() -> None:
    """Wait for a moment."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()


def _zero() -> int:
    return 0


def run_page(act: Callable[[OperatorPage], Awaitable[None]]) -> None:
    """Run a test against a served dashboard."""

    async def whole() -> None:
        async with OperatorPage() as page:
            await act(page)

    asyncio.run(whole())
