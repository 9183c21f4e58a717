"""HTTP endpoints of `batchyard operator` and `batchyard shadow`: health, metrics, and the dashboard.

The dashboard is for users with a token of the API server. An operator serves it only while it leads, because other
replicas have no objects in memory. Actions, logs and Events are requests to the API server with the user's token
(`user_requests.py`).
"""

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Self, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.apiserver import dashboard
from batchyard.apiserver.auth.security import unauthorized_error
from batchyard.apiserver.dashboard_actions import ACTION_BODY_MAX, DashboardActions
from batchyard.apiserver.request import (
    JSON,
    NO_SUCH_PATH_RESPONSE,
    PLAIN_TEXT,
    ApiRequest,
    Response,
    StatusError,
    UserInfo,
)
from batchyard.apiserver.resources import not_found_error
from batchyard.dashboard.models.workload import event_rows
from batchyard.dashboard.static_report import HEADERS, read_asset
from batchyard.interfaces.client import WatchEvent
from batchyard.metrics.exposition import CONTENT_TYPE, GROUPS_PARAMETER, Exposition
from batchyard.server.clocks.wall import monotonic_seconds
from batchyard.server.operator import user_requests
from batchyard.server.operator.token_review import DecisionWatch, TokenReviewer
from batchyard.server.operator.user_requests import UserRequests

#: A dashboard model is computed again until all permissions that it depends on are known, at most this often.
_REVIEW_ROUNDS_MAX: Final = 8
#: The interval in seconds at which the token and permissions of a watching user are checked again.
_ACCESS_RECHECK_INTERVAL: Final = 10.0
#: The time in seconds within which the browser must accept a part of a stream.
_WRITE_TIMEOUT: Final = 60.0
_BEARER_PREFIX: Final = "bearer "
_WHY_PATH: Final = "/apis/kueue.x-k8s.io/{version}/namespaces/{namespace}/workloads/{name}/why"
_LOG_PATH: Final = "/api/v1/namespaces/{namespace}/pods/{name}/log"
#: The time in seconds within which the body of an action must arrive.
_BODY_TIMEOUT: Final = 10.0
#: The headers of responses with data of the API server.
_DATA_HEADERS: Final = (("x-content-type-options", "nosniff"), ("cache-control", "no-store"))
_T = TypeVar("_T")
_encode = msgspec.json.Encoder().encode


class StreamHub:
    """The open streams of dashboard pages, which the hub notifies of changes."""

    def __init__(self) -> None:
        self._streams: dict[dashboard.ModelStream, None] = {}

    def subscribe(self, model_stream: dashboard.ModelStream) -> None:
        """Add a dashboard stream, which is then notified of all changes."""
        self._streams[model_stream] = None

    def unsubscribe(self, model_stream: dashboard.ModelStream) -> None:
        """Remove a dashboard stream, which is then no longer notified."""
        self._streams.pop(model_stream, None)

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Notify all dashboard streams of changes of API objects."""
        for stream in list(self._streams):
            stream.process_changes(events)

    def mark_streams_stale(self) -> None:
        """Mark all dashboard streams as stale, after a change that does not concern an API object."""
        for stream in list(self._streams):
            stream.mark_stale()


#: Returns the explanation of an object, or None if the object does not exist. The function that it gets returns whether
#: the user may list the Workloads of a namespace.
Explain: TypeAlias = Callable[[Key, Callable[[str], bool]], Mapping[str, Any] | None]


class PageSource(NamedTuple):
    """What computes the data of the dashboard's pages."""

    models: dashboard.ModelHandler
    #: The open streams of pages.
    stream_hub: StreamHub
    #: Explains the state of Workloads; None if this program does not decide about them.
    explain: Explain | None = None
    #: Offers and plans actions; None if the page has no actions.
    actions: DashboardActions | None = None


class BearerActionTokens:
    """The action tokens of a server that accepts only bearer tokens.

    Pages of other sites cannot send the bearer token, so no second token is needed against forged requests.
    """

    def issue_action_token(self, _user: UserInfo) -> str:
        """Return '', because no action token is needed."""
        return ""

    def is_action_token(self, _token: str, _user: UserInfo) -> bool:
        """Return True, because the request has a bearer token."""
        return True


class DashboardHandlers:
    """The HTTP handlers of the operator's dashboard.

    `source` returns None while there is no data, because this replica does not lead or has not read all objects.
    """

    def __init__(
        self, token_reviewer: TokenReviewer, requests: UserRequests, source: Callable[[], PageSource | None]
    ) -> None:
        self._token_reviewer = token_reviewer
        self._requests = requests
        self._source = source
        self._files = dashboard.StaticFileHandler(read_asset, HEADERS)

    def routes(self) -> Iterable[web.RouteDef]:
        """Return the HTTP routes of the dashboard."""
        return [
            web.get(dashboard.DASHBOARD_FILES_PATH, self._serve_file),
            web.get(f"{dashboard.DASHBOARD_FILES_PATH}/{{name:.*}}", self._serve_file),
            web.get(dashboard.DASHBOARD_ACTIONS_PATH, partial(_with_status_errors, self._offer_actions)),
            web.post(dashboard.DASHBOARD_ACTIONS_PATH, partial(_with_status_errors, self._perform_action)),
            web.get(dashboard.DASHBOARD_EVENTS_PATH, partial(_with_status_errors, self._answer_events)),
            web.get(f"{dashboard.DASHBOARD_MODELS_PATH}{{view}}", partial(_with_status_errors, self._answer_model)),
            web.get(_WHY_PATH, partial(_with_status_errors, self._answer_why)),
            web.get(_LOG_PATH, partial(_with_status_errors, self._stream_log), allow_head=False),
        ]

    async def _serve_file(self, request: web.Request) -> web.StreamResponse:
        return _web_response(self._files.respond(ApiRequest("GET", request.path)))

    def _current_source(self) -> PageSource:
        source = self._source()
        if source is None:
            raise StatusError(503, "ServiceUnavailable", "this replica is not the leader; use the leader's dashboard")
        return source

    async def _authenticate(self, request: web.Request) -> tuple[str, UserInfo]:
        """Return the bearer token of a request, and its user."""
        header = request.headers.get("authorization", "")
        token = header[len(_BEARER_PREFIX) :].strip() if header.lower().startswith(_BEARER_PREFIX) else ""
        is_well_formed = bool(token) and token.isascii() and token.isprintable()
        user = await self._token_reviewer.user_of(token) if is_well_formed else None
        if user is None:
            raise unauthorized_error()
        return token, user

    async def _answer_why(self, request: web.Request) -> web.StreamResponse:
        explain = self._current_source().explain
        if explain is None:
            return _web_response(NO_SUCH_PATH_RESPONSE)
        _, user = await self._authenticate(request)
        permissions = dashboard.UserListPermissions(user, self._token_reviewer)
        key = Key(scheme.WORKLOAD, request.match_info["namespace"], request.match_info["name"])

        def respond() -> Response:
            if not permissions.may_list(key.kind, key.namespace):
                problem = f'User "{user.name}" cannot list the Workloads of the namespace "{key.namespace}"'
                raise StatusError(403, "Forbidden", f"{problem}; the ClusterRole view in this namespace allows it")
            explanation = explain(key, partial(permissions.may_list, key.kind))
            if explanation is None:
                raise not_found_error(scheme.kind_info(key.kind), key.name)
            return Response(200, explanation)

        return _web_response(await self._respond_with_reviews(user, respond))

    async def _answer_model(self, request: web.Request) -> web.StreamResponse:
        source = self._current_source()
        models, stream_hub = source.models, source.stream_hub
        token, user = await self._authenticate(request)
        api_request = ApiRequest("GET", request.path, dict(request.query), user=user)
        plain_request = api_request._replace(query={**api_request.query, "watch": "false"})

        async def compute() -> Response:
            return await self._respond_with_reviews(user, lambda: models.respond(plain_request))

        result = await compute()
        if not api_request.has_flag("watch"):
            return _web_response(result)
        data_available = asyncio.Event()
        with self._token_reviewer.watch_decisions(user, data_available.set) as decision_watch:
            model_stream = models.respond(api_request)
            assert isinstance(model_stream, dashboard.ModelStream), "a watch returns a stream"
            model_stream.on_new_data = data_available.set
            stream_hub.subscribe(model_stream)
            try:
                access = _StreamAccess(token, user, decision_watch, compute)
                return await self._stream(request, model_stream, data_available, access)
            finally:
                stream_hub.unsubscribe(model_stream)
                model_stream.end()

    async def _offer_actions(self, request: web.Request) -> web.StreamResponse:
        actions = self._current_source().actions
        if actions is None:
            return _web_response(NO_SUCH_PATH_RESPONSE)
        _, user = await self._authenticate(request)
        api_request = ApiRequest("GET", request.path, dict(request.query), user=user)
        return _web_response(await self._compute_with_reviews(user, lambda: actions.list_allowed_actions(api_request)))

    async def _perform_action(self, request: web.Request) -> web.StreamResponse:
        actions = self._current_source().actions
        if actions is None:
            return _web_response(NO_SUCH_PATH_RESPONSE)
        token, user = await self._authenticate(request)
        headers = {name.lower(): value for name, value in request.headers.items()}
        api_request = ApiRequest("POST", request.path, headers=headers, body=await _read_body(request), user=user)
        planned_action = await self._compute_with_reviews(user, lambda: actions.plan(api_request))
        await self._requests.send(token, user, user_requests.write_request(planned_action.write))
        return _web_response(planned_action.outcome(Response(200, {})))

    async def _answer_events(self, request: web.Request) -> web.StreamResponse:
        self._current_source()
        token, user = await self._authenticate(request)
        event_requests = user_requests.event_requests(list(request.query.items()))
        event_lists = await asyncio.gather(*(self._requests.send(token, user, each) for each in event_requests))
        events = [event for event_list in event_lists for event in user_requests.listed_items(event_list)]
        return _web_response(Response(200, {"events": event_rows(events)}, headers=_DATA_HEADERS))

    async def _stream_log(self, request: web.Request) -> web.StreamResponse:
        self._current_source()
        token, user = await self._authenticate(request)
        names = request.match_info
        log_request = user_requests.log_request(names["namespace"], names["name"], list(request.query.items()))
        response = web.StreamResponse(headers={"content-type": PLAIN_TEXT, **dict(_DATA_HEADERS)})
        checked_at = monotonic_seconds()

        async def deliver(part: bytes) -> bool:
            nonlocal checked_at
            if not response.prepared:
                await response.prepare(request)
            if part:
                await _write(request, response, part)
            if monotonic_seconds() - checked_at < _ACCESS_RECHECK_INTERVAL:
                return True
            checked_at = monotonic_seconds()
            is_connected = request.transport is not None and not request.transport.is_closing()
            return is_connected and await self._is_still_user(token, user)

        try:
            await self._requests.stream_log(token, user, log_request, deliver)
        except StatusError:
            if not response.prepared:
                raise
        return response

    async def _is_still_user(self, token: str, user: UserInfo) -> bool:
        """Return whether a token still authenticates a user; False if that is unknown."""
        try:
            return await self._token_reviewer.user_of(token) == user
        except StatusError:
            return False

    async def _respond_with_reviews(
        self, user: UserInfo, respond: Callable[[], Response | dashboard.ModelStream]
    ) -> Response:
        response = await self._compute_with_reviews(user, respond)
        assert isinstance(response, Response), "a request without watch returns a plain response"
        return response

    async def _compute_with_reviews(self, user: UserInfo, compute: Callable[[], _T]) -> _T:
        """Compute a result, again after each round of reviews during which permissions of the user change.

        Raises StatusError.
        """
        with self._token_reviewer.watch_decisions(user) as decision_watch:
            for _ in range(_REVIEW_ROUNDS_MAX):
                decision_watch.has_changed = False
                error_response: StatusError | None = None
                try:
                    result = compute()
                except StatusError as error:
                    error_response = error
                await self._token_reviewer.send_reviews()
                if not decision_watch.has_changed:
                    break
        if error_response is not None:
            raise error_response
        return result

    async def _stream(
        self,
        request: web.Request,
        stream: dashboard.ModelStream,
        data_available: asyncio.Event,
        access: "_StreamAccess",
    ) -> web.StreamResponse:
        """Send the data of a stream until it ends, or the user loses access.

        Data is sent only if no decision about the user has changed since its computation.
        """
        response = web.StreamResponse(headers={"content-type": JSON, "x-content-type-options": "nosniff"})
        await response.prepare(request)
        checked_at = monotonic_seconds()
        data_available.set()  # the first model
        while not stream.is_over:
            try:
                async with asyncio.timeout(_ACCESS_RECHECK_INTERVAL):
                    await data_available.wait()
            except TimeoutError:
                stream.send_keep_alive()
            data_available.clear()
            if not await self._is_still_user(access.token, access.user):
                break
            if monotonic_seconds() - checked_at >= _ACCESS_RECHECK_INTERVAL:
                checked_at = monotonic_seconds()
                if not await _is_answered(access.compute):
                    break
            await self._token_reviewer.send_reviews()
            if access.decision_watch.has_changed:
                access.decision_watch.has_changed = False
                stream.discard_buffered_data()
            for chunk in stream.take_buffered_data():
                await _write(request, response, chunk)
        await response.write_eof()
        return response


class _StreamAccess(NamedTuple):
    """What the data of a stream depends on: the user of a token, and the decisions about the user."""

    token: str
    user: UserInfo
    decision_watch: DecisionWatch
    #: Computes the model, with reviews of all decisions that it depends on; raises StatusError if it is hidden.
    compute: Callable[[], Awaitable[Response]]


async def _is_answered(compute: Callable[[], Awaitable[Response]]) -> bool:
    try:
        await compute()
    except StatusError:
        return False
    return True


async def _write(request: web.Request, response: web.StreamResponse, part: bytes) -> None:
    """Send a part of a stream; close the connection and raise ConnectionResetError if the browser does not read."""
    try:
        async with asyncio.timeout(_WRITE_TIMEOUT):
            await response.write(part)
    except TimeoutError as error:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the browser does not read the stream") from error


_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _read_body(request: web.Request) -> bytes:
    """Return the body of an action; raise StatusError if it is too large, or does not arrive in time."""
    if (request.content_length or 0) > ACTION_BODY_MAX:
        raise StatusError(413, "RequestEntityTooLarge", f"the body has more than {ACTION_BODY_MAX} bytes")
    try:
        async with asyncio.timeout(_BODY_TIMEOUT):
            return await request.read()
    except TimeoutError as error:
        problem = f"the body did not arrive within {_BODY_TIMEOUT:g} seconds"
        raise StatusError(408, "Timeout", f"{problem}: try again") from error


async def _with_status_errors(handler: _Handler, request: web.Request) -> web.StreamResponse:
    try:
        return await handler(request)
    except StatusError as refused:
        return _web_response(refused.response())


def _web_response(response: Response) -> web.Response:
    encoded_body = response.body if isinstance(response.body, bytes) else _encode_body(response.body)
    headers = dict(response.headers) | {"content-type": response.content_type}
    return web.Response(status=response.code, body=encoded_body, headers=headers)


def _encode_body(body: object) -> bytes:
    return body.encode() if isinstance(body, str) else _encode(body)


# HTTP endpoints of the operator and the shadow: health, metrics and the dashboard.


_SHUTDOWN_TIMEOUT: Final = 1.0  # seconds


class HttpEndpoints:
    """An HTTP server that runs within its `async with` block; with port 0 it does not listen."""

    def __init__(self, routes: Iterable[web.RouteDef], address: tuple[str, int], report: Callable[[str], None]) -> None:
        self._routes = routes
        self._listen_address = address
        self._report = report
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        address, port = self._listen_address
        if port:
            app = web.Application()
            app.add_routes(self._routes)
            self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT)
            await self._runner.setup()
            await start_site(web.TCPSite(self._runner, address, port), address, port, "--port")
            self._report(f"batchyard: health and metrics at http://{address}:{port}, dashboard at /ui/")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


async def start_site(site: web.TCPSite, address: str, port: int, port_option: str) -> None:
    """Start to listen; raise OSError, with a message that names `port_option` or --listen, if that is impossible."""
    try:
        await site.start()
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL or (error.errno or 0) < 0:  # negative: an error of getaddrinfo
            problem = f"{address} is not an address of this machine"
            raise OSError(f"{problem}; set another address with --listen") from error
        reason = os.strerror(error.errno) if error.errno else str(error)
        problem = f"cannot listen on {address}, port {port}: {reason}"
        raise OSError(f"{problem}; set another port with {port_option}") from error


def health_routes(exposition: Exposition, readiness_delay: Callable[[], str]) -> list[web.RouteDef]:
    """Return the routes /healthz, /readyz and /metrics. `readiness_delay` returns what readiness waits for, or ''."""

    async def handle_healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def handle_readyz(_request: web.Request) -> web.Response:
        reason = readiness_delay()
        return web.Response(status=503, text=f"waiting for {reason}") if reason else web.Response(text="ok")

    async def handle_metrics(request: web.Request) -> web.StreamResponse:
        """Respond with the metrics in parts, so that the controllers run in between."""
        try:
            exposition_parts = exposition.text_chunks(request.query.getall(GROUPS_PARAMETER, []))
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        await response.prepare(request)
        for part in exposition_parts:
            await (response.write(part.encode()) if part else _yield_to_event_loop())
        await response.write_eof()
        return response

    return [web.get("/healthz", handle_healthz), web.get("/readyz", handle_readyz), web.get("/metrics", handle_metrics)]


async def _yield_to_event_loop() -> None:
    next_iteration = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(next_iteration.set_result, None)
    await next_iteration
