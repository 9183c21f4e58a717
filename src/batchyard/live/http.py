"""The wire: ASGI to requests, responses and watches to ASGI. No logic beyond translation."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from batchyard.apiserver.authentication import MASTERS, User, of_certificate
from batchyard.apiserver.request import SEPARATOR, Refused, Request, Response, bad_request
from batchyard.apiserver.server import ApiServer
from batchyard.apiserver.watching import WatchStream
from batchyard.live.durability import GroupCommit
from batchyard.live.kernel import LiveKernel
from batchyard.live.overload import Load
from batchyard.store.mark import JournalError

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

OWNER: Final = of_certificate("admin", (MASTERS,))
BODY_MAX: Final = 3 * 1024 * 1024
#: Seconds in which a body has to come, and in which a client has to take what it is sent.
BODY_WITHIN: Final = 30
TAKEN_WITHIN: Final = 60
BOOKMARKS_EVERY: Final = 60.0  # seconds
_UNKEPT: Final = Refused(
    500, "InternalError", "Internal error occurred: the journal cannot be written, nothing is kept"
)
_encode = msgspec.json.Encoder().encode
_LOG: Final = logging.getLogger("batchyard")


class Wire:
    """An ASGI application in front of an API server."""

    def __init__(self, server: ApiServer, kernel: LiveKernel, commit: GroupCommit, revision: Callable[[], int]) -> None:
        self._server = server
        self._kernel = kernel
        self._commit = commit
        self._revision = revision
        self._load = Load()
        self._defects = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; a client that does not take its answer is left."""
        if scope["type"] == "http":
            with suppress(TimeoutError):
                await self._serve(scope, receive, partial(_taken, send))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answered(_request(scope), receive)
        except Refused as refused:
            answer = refused.response()
        if isinstance(answer, WatchStream):
            await self._stream(answer, scope, receive, send)
        else:
            await _respond(answer, send)

    async def _answered(self, request: Request, receive: Receive) -> Response | WatchStream:
        """The answer; of those who are not known no body is taken."""
        try:
            known = self._server.known(request)
        except Refused:
            return await self._asked(request)  # where it is refused again, and written down
        with self._load.of(known.user.name):
            return await self._asked(replace(known, body=await _body(receive)))

    async def _asked(self, request: Request) -> Response | WatchStream:
        """The answer, once all it rests on is durable."""
        future: asyncio.Future[Response | WatchStream] = asyncio.get_running_loop().create_future()

        def work() -> None:
            answer = self._answer(request)
            self._commit.when_durable(self._revision(), partial(_settle, future, answer))

        self._kernel.post(work)
        return await future

    def _answer(self, request: Request) -> Response | WatchStream:
        """The answer; a defect of ours stops nobody else, and what it was is for the log alone."""
        try:
            return self._server.handle(request)
        except Exception:  # noqa: BLE001 - whatever it is
            self._defects += 1
            name = f"{self._kernel.clock():x}-{self._defects}"
            _LOG.exception("defect %s in the answer to %s %s", name, request.method, request.path)
            told = f"Internal error occurred: defect {name}; the log of the server says what it is"
            return Refused(500, "InternalError", told).response()

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


async def _taken(send: Send, message: MutableMapping[str, Any]) -> None:
    async with asyncio.timeout(TAKEN_WITHIN):
        await send(message)


def _settle(
    future: asyncio.Future[Response | WatchStream], answer: Response | WatchStream, failure: JournalError | None
) -> None:
    if not future.done():
        future.set_result(answer if failure is None else _UNKEPT.response())


async def _body(receive: Receive) -> bytes:
    """The body of a request; Refused if it is too large or does not come."""
    try:
        async with asyncio.timeout(BODY_WITHIN):
            return await _received(receive)
    except TimeoutError as error:
        raise Refused(408, "Timeout", f"the request did not come within {BODY_WITHIN} seconds") from error


async def _received(receive: Receive) -> bytes:
    parts, length = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise bad_request("the request ended before its body")  # half of one may say something else
        part = message.get("body", b"")
        length += len(part)
        if length > BODY_MAX:
            raise Refused(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_MAX}")
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


def _request(scope: Scope) -> Request:
    """A request without its body."""
    query: dict[str, str] = {}
    for name, value in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
        query.setdefault(name, value)
    headers: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}{SEPARATOR}{value}" if name in headers else value
    client = scope.get("client")
    return Request(scope["method"], scope["path"], query, headers, b"", _user(scope), client[0] if client else "")


def _user(scope: Scope) -> User:
    """Whom the client's certificate names; over a wire without TLS, which only the owner may open, the owner."""
    if scope["scheme"] != "https":
        return OWNER
    user: User = scope["state"]["user"]
    return user


async def _respond(response: Response, send: Send) -> None:
    is_text = isinstance(response.body, str)
    body = response.body.encode() if is_text else _encode(response.body)
    start = _start(response.code, response.content_type, len(body))
    if response.retry_after is not None:
        start["headers"].append((b"retry-after", str(response.retry_after).encode()))
    start["headers"] += [(b"warning", f'299 - "{_quoted(warning)}"'.encode()) for warning in response.warnings]
    await send(start)
    await send({"type": "http.response.body", "body": body})


def _quoted(warning: str) -> str:
    """A warning as the text of a header."""
    return "".join(filter(str.isprintable, warning.replace("\\", "\\\\").replace('"', '\\"')))


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
