"""The wire: ASGI to requests, responses and watches to ASGI. No logic beyond translation."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl

import msgspec

from batchyard.apiserver.authentication import ANONYMOUS, MASTERS, User, of_certificate
from batchyard.apiserver.request import Refused, Request, Response
from batchyard.apiserver.server import ApiServer
from batchyard.apiserver.watching import WatchStream
from batchyard.live.durability import GroupCommit
from batchyard.live.kernel import LiveKernel

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

OWNER: Final = of_certificate("admin", (MASTERS,))
BODY_MAX: Final = 3 * 1024 * 1024
BOOKMARKS_EVERY: Final = 60.0  # seconds
_T = TypeVar("_T")
_encode = msgspec.json.Encoder().encode


class Wire:
    """An ASGI application in front of an API server."""

    def __init__(self, server: ApiServer, kernel: LiveKernel, commit: GroupCommit, revision: Callable[[], int]) -> None:
        self._server = server
        self._kernel = kernel
        self._commit = commit
        self._revision = revision

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        try:
            body = await _body(receive)
        except Refused as refused:
            await _respond(refused.response(), send)
            return
        answer = await self._asked(_request(scope, body))
        if isinstance(answer, WatchStream):
            await self._stream(answer, scope, receive, send)
        else:
            await _respond(answer, send)

    async def _asked(self, request: Request) -> Response | WatchStream:
        """The answer, once all it rests on is durable."""
        future: asyncio.Future[Response | WatchStream] = asyncio.get_running_loop().create_future()

        def work() -> None:
            answer = self._server.handle(request)
            self._commit.when_durable(self._revision(), partial(_settle, future, answer))

        self._kernel.post(work)
        return await future

    async def _stream(self, watch: WatchStream, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell the events of a watch until its client goes, or its time is over."""
        news = asyncio.Event()
        watch.on_news = news.set
        timeout = _timeout(scope)
        gone = asyncio.ensure_future(_gone(receive))
        loop = asyncio.get_running_loop()
        marked = loop.time()
        end = marked + timeout
        await send(_start(200, "application/json"))
        try:
            while not gone.done() and loop.time() < end:
                lines = b"".join(_encode(event) + b"\n" for event in watch.take())
                if lines:
                    await send({"type": "http.response.body", "body": lines, "more_body": True})
                if watch.is_over:
                    break
                heard = asyncio.ensure_future(news.wait())
                wait = min(end, marked + BOOKMARKS_EVERY) - loop.time()
                await asyncio.wait({heard, gone}, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                heard.cancel()
                news.clear()
                if loop.time() >= marked + BOOKMARKS_EVERY:
                    watch.mark()
                    marked = loop.time()
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._commit.leave(watch)
            gone.cancel()


def _settle(future: asyncio.Future[_T], value: _T) -> None:
    if not future.done():
        future.set_result(value)


async def _body(receive: Receive) -> bytes:
    parts, length = [], 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        length += len(part)
        if length > BODY_MAX:
            raise Refused(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_MAX}")
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def _request(scope: Scope, body: bytes) -> Request:
    query: dict[str, str] = {}
    for name, value in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
        query.setdefault(name, value)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    return Request(scope["method"], scope["path"], query, headers, body, _user(scope))


def _user(scope: Scope) -> User:
    """Whom the client's certificate names; over a wire without TLS, which only the owner may open, the owner."""
    if scope["scheme"] != "https":
        return OWNER
    peer = scope.get("state", {}).get("peer")
    return ANONYMOUS if peer is None else of_certificate(*peer)


async def _respond(response: Response, send: Send) -> None:
    is_text = isinstance(response.body, str)
    body = response.body.encode() if is_text else _encode(response.body)
    start = _start(response.code, response.content_type, len(body))
    start["headers"] += [(b"warning", f'299 - "{warning}"'.encode()) for warning in response.warnings]
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _start(code: int, content_type: str, length: int | None = None) -> dict[str, Any]:
    headers = [(b"content-type", content_type.encode())]
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    return {"type": "http.response.start", "status": code, "headers": headers}


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _timeout(scope: Scope) -> float:
    query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
    text = query.get("timeoutSeconds", "")
    return float(text) if text.isdecimal() and int(text) else 1800.0
