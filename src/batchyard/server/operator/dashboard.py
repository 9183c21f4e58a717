"""HTTP endpoints of the operator and of the shadow: health, metrics, and the dashboard.

The dashboard is for users with a token of the API server. Only the leader serves it, because other replicas have no
objects in memory.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

import msgspec
from aiohttp import web

from batchyard.apiserver.auth.security import unauthorized
from batchyard.apiserver.dashboard import FILES, MODELS, ModelHandler, ModelStream, StaticFileHandler
from batchyard.apiserver.request import JSON, ApiRequest, Response, StatusError
from batchyard.dashboard.static_report import HEADERS, asset
from batchyard.interfaces.client import WatchEvent
from batchyard.metrics.exposition import CHOICE, CONTENT_TYPE, Exposition
from batchyard.server.operator.token_review import TokenReviewer

#: A dashboard model is computed again until all permissions that it depends on are known, at most this often.
_ROUNDS_MAX: Final = 8
#: The interval in seconds at which the token and permissions of a watching user are checked again.
_AGAIN: Final = 20.0
_SCHEME: Final = "bearer "
_encode = msgspec.json.Encoder().encode


class StreamHub:
    """The open streams of dashboard models, which are notified of changes."""

    def __init__(self) -> None:
        self._streams: dict[ModelStream, None] = {}

    def join(self, watch: ModelStream) -> None:
        """Add a stream, which is then notified of all changes."""
        self._streams[watch] = None

    def leave(self, watch: ModelStream) -> None:
        """Remove a stream, which is then no longer notified."""
        self._streams.pop(watch, None)

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Notify all streams of changes of objects."""
        for stream in list(self._streams):
            stream.feed(events)

    def touch(self) -> None:
        """Refresh all streams after a change that is not a change of an object."""
        for stream in list(self._streams):
            stream.touch()


class OperatorPage:
    """The HTTP handlers of the dashboard. `models` returns None until the operator leads."""

    def __init__(self, reviewed: TokenReviewer, models: Callable[[], tuple[ModelHandler, StreamHub] | None]) -> None:
        self._reviewed = reviewed
        self._models = models
        self._files = StaticFileHandler(asset, HEADERS)

    def routes(self) -> Iterable[web.RouteDef]:
        """Return the HTTP routes of the dashboard."""
        return [
            web.get(FILES, self._file),
            web.get(f"{FILES}/{{name:.*}}", self._file),
            web.get(f"{MODELS}{{view}}", self._model),
        ]

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return _sent(self._files.answer(ApiRequest("GET", request.path)))

    async def _model(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answered(request)
        except StatusError as refused:
            return _sent(refused.response())

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        there = self._models()
        if there is None:
            raise StatusError(503, "ServiceUnavailable", "this replica is not the leader; use the leader's dashboard")
        models, hub = there
        header = request.headers.get("authorization", "")
        token = header[len(_SCHEME) :].strip() if header.lower().startswith(_SCHEME) else ""
        user = await self._reviewed.user_of(token) if token else None
        if user is None:
            raise unauthorized()
        asked = ApiRequest("GET", request.path, dict(request.query), user=user)
        answer = await self._settled(models, asked._replace(query={**asked.query, "watch": "false"}))
        if not asked.flag("watch"):
            return _sent(answer)
        stream = models.answer(asked)
        assert isinstance(stream, ModelStream), "a watch returns a stream"
        hub.join(stream)
        try:
            return await self._follow(request, stream, token)
        finally:
            hub.leave(stream)
            stream.end()

    async def _settled(self, models: ModelHandler, asked: ApiRequest) -> Response:
        """Compute a model's response, repeatedly until all permissions that it depends on are known."""
        for _ in range(_ROUNDS_MAX):
            refused: StatusError | None = None
            try:
                answer = models.answer(asked)
            except StatusError as error:
                refused = error
            if not await self._reviewed.settle():
                break
        if refused is not None:
            raise refused
        assert isinstance(answer, Response), "a request without watch returns a plain response"
        return answer

    async def _follow(self, request: web.Request, stream: ModelStream, token: str) -> web.StreamResponse:
        """Stream the changes of a model to its user while the user's token is valid."""
        response = web.StreamResponse(headers={"content-type": JSON, "x-content-type-options": "nosniff"})
        await response.prepare(request)
        news = asyncio.Event()
        stream.on_news = news.set
        while not stream.is_over:
            news.clear()
            for part in stream.take():
                await response.write(part)
            try:
                async with asyncio.timeout(_AGAIN):
                    await news.wait()
            except TimeoutError:
                stream.mark()
            if await self._reviewed.user_of(token) is None:
                break
            if await self._reviewed.settle():
                stream.touch()
        await response.write_eof()
        return response


def _sent(answer: Response) -> web.Response:
    body = answer.body if isinstance(answer.body, bytes) else _text(answer.body)
    headers = dict(answer.headers) | {"content-type": answer.content_type}
    return web.Response(status=answer.code, body=body, headers=headers)


def _text(body: object) -> bytes:
    return body.encode() if isinstance(body, str) else _encode(body)


# --- http endpoints ---
#
# HTTP endpoints of the operator and the shadow: health, metrics and the dashboard.


_ENDS_WITHIN: Final = 1.0  # seconds


class HttpEndpoints:
    """An HTTP server that runs while its context manager is entered; with port 0 it does not listen."""

    def __init__(self, routes: Iterable[web.RouteDef], place: tuple[str, int], report: Callable[[str], None]) -> None:
        self._routes = routes
        self._place = place
        self._report = report
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        address, port = self._place
        if port:
            app = web.Application()
            app.add_routes(self._routes)
            self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_ENDS_WITHIN)
            await self._runner.setup()
            await web.TCPSite(self._runner, address, port).start()
            self._report(f"batchyard: health and metrics at http://{address}:{port}, dashboard at /ui/")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


def health_routes(exposition: Exposition, waits_for: Callable[[], str]) -> list[web.RouteDef]:
    """Return the routes /healthz, /readyz and /metrics. `waits_for` returns what delays readiness, '' when ready."""

    async def alive(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_request: web.Request) -> web.Response:
        missing = waits_for()
        return web.Response(status=503, text=f"waiting for {missing}") if missing else web.Response(text="ok")

    async def metrics(request: web.Request) -> web.StreamResponse:
        """Respond with the metrics in parts, so that the controllers run in between."""
        try:
            parts = exposition.parts(request.query.getall(CHOICE, []))
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        answer = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        await answer.prepare(request)
        for part in parts:
            await (answer.write(part.encode()) if part else _yield_to_loop())
        await answer.write_eof()
        return answer

    return [web.get("/healthz", alive), web.get("/readyz", ready), web.get("/metrics", metrics)]


async def _yield_to_loop() -> None:
    """Let the asyncio loop run one iteration."""
    turn = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turn.set_result, None)
    await turn
