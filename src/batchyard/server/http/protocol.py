"""HTTP/1.1 protocol of a connection: its requests are answered in order, one at a time.

It only translates, and enforces timeouts. Neither a task nor ASGI is between a connection and the platform; the
reasons are in docs/decisions/0020-http-without-asgi.md.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from urllib.parse import parse_qsl, unquote

import httptools
import msgspec

from batchyard.apiserver.request import (
    ANONYMOUS,
    MASTERS,
    SEPARATOR,
    ApiRequest,
    Response,
    StartedResponse,
    StatusError,
    StreamingResponse,
    UpgradeResponse,
    UserInfo,
    flow_of,
    is_exempt,
    of_certificate,
    timeout_of,
)
from batchyard.server.http.connections import ConnectionDeadline, Connections, Peer, peer_of
from batchyard.server.http.dispatcher import PIECE, RequestDispatcher, encoded, shared
from batchyard.server.http.flow_control import ResponseTurns, too_many
from batchyard.server.streaming.pod_streams import serve_upgraded, switched
from batchyard.server.streaming.upgraded_connection import UpgradedConnection

# --- parser ---
#
# Request parser of a connection, on httptools: heads and bodies, with size limits.


#: Maximum bytes of a request line with headers, and of a body.
HEAD_MAX: Final = 64 * 1024
BODY_MAX: Final = 3 * 1024 * 1024
_BAD: Final = (400, "Invalid HTTP request received.")
_LARGE: Final = (431, "Request Header Fields Too Large")
#: Source: Go's net/http, server.go (readRequest), and golang.org/x/net/http/httpguts (ValidHostHeader).
_BAD_HOST: Final = "400 Bad Request: {}"
_HOST: Final = re.compile(r"[A-Za-z0-9!$%&'()*+,\-.:;=\[\]_~]*")


class ParsedRequest(NamedTuple):
    """A complete request, or the reason to reject it."""

    request: ApiRequest
    is_last: bool
    #: Whether the client supports chunked transfer encoding (HTTP/1.1).
    is_chunked: bool
    refused: StatusError | None = None


class RequestSink(Protocol):
    """The receiver of parsed requests."""

    def known(self, request: ApiRequest) -> ApiRequest:
        """Return the request, whose body is not read yet, with its authenticated user. Raises Refused."""

    def take(self, whole: ParsedRequest) -> None:
        """Receive a complete request; requests are answered in order."""

    def refuse(self, code: int, why: str) -> None:
        """Handle invalid input. Nothing more is parsed."""

    def hold(self, length: int) -> bool:
        """Count bytes of a body until its request is answered. Return False if too many are in memory."""

    def invite(self) -> None:
        """Handle a client that waits for 100 Continue."""


class RequestParser:
    """The parser of a connection, and the request that is being received."""

    def __init__(self, taker: RequestSink) -> None:
        #: The receiver of requests and httptools' parser; None after `end`.
        self._taker: Any = taker
        #: The IP address of the client.
        self.source = ""
        self._parser: Any = httptools.HttpRequestParser(self)
        #: Whether the current head must be parsed again without its Upgrade header.
        self._is_read_again = False
        self._url, self._headers = b"", dict[str, str]()
        self._head_bytes = 0
        #: The request whose body is being received; None before its head is complete, or if the body is discarded.
        self._coming: ApiRequest | None = None
        self._body = bytearray()
        self.is_in_body = False
        #: Whether nothing more is parsed.
        self.is_over = False
        #: The bytes that follow an upgrade request.
        self.rest = b""
        self._is_upgrade = False
        #: The number of requests that have begun.
        self.number = 0

    @property
    def is_in_head(self) -> bool:
        """Whether a head is incomplete."""
        return self._head_bytes > 0

    def feed(self, data: bytes) -> None:
        """Parse received bytes, and enforce the size limit of the head."""
        if self.is_over:
            self._keep_rest(data)
            return
        if not self.is_in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._is_read_again:
                self._read_again(data[upgrade.args[0] :])
                return
            self.is_over = self._is_upgrade = True
            self._keep_rest(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(*_BAD)
        if not self.is_in_body and self._head_bytes > HEAD_MAX:
            self._refuse(*_LARGE)

    def end(self) -> None:
        """Stop parsing, and break the reference cycles with the parser and the receiver."""
        self.is_over = True
        self._parser = self._taker = None

    def _keep_rest(self, data: bytes) -> None:
        """Keep the bytes that a client sends between its upgrade request and the response, up to HEAD_MAX."""
        if self._is_upgrade:
            self.rest += data
            if len(self.rest) > HEAD_MAX:
                self._is_upgrade = False
                self._taker.refuse(*_BAD)

    def _read_again(self, rest: bytes) -> None:
        """Parse a head again without its Upgrade header: httptools does not parse the body of an upgrade request."""
        method, version = self._parser.get_method().decode(), self._parser.get_http_version()
        lines = [f"{method} {self._url.decode('latin-1')} HTTP/{version}"]
        for name, values in self._headers.items():
            lines += [f"{name}: {value}" for value in values.split(SEPARATOR) if name != "upgrade"]
        self._parser, self._is_read_again, self.is_in_body = httptools.HttpRequestParser(self), False, False
        self.feed("\r\n".join([*lines, "", ""]).encode("latin-1") + rest)

    def end_late(self, refused: StatusError) -> bool:
        """Stop waiting for a body that timed out. Return whether the client gets a response."""
        request, self._coming, self.is_over = self._coming, None, True
        if request is not None:
            self._take(request, refused)
        return request is not None

    # --- callbacks of httptools ---

    def on_message_begin(self) -> None:
        """Start a request."""
        self.number += 1
        self._url, self._headers = b"", {}

    def on_url(self, url: bytes) -> None:
        """Append a part of the URL."""
        self._url += url

    def on_header(self, raw_name: bytes, raw_value: bytes) -> None:
        """Add a header; ignore trailers, which follow a body."""
        if self.is_in_body:
            return
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers = self._headers
        headers[name] = f"{headers[name]}{SEPARATOR}{value}" if name in headers else value

    def on_headers_complete(self) -> None:
        """Handle a complete head. If authentication fails, the body is not read."""
        if self.is_over:
            return
        self.is_in_body, self._head_bytes = True, 0
        if "upgrade" in self._headers and self._parser.should_upgrade() and _has_body(self._headers):
            self._is_read_again = True
            return
        if len(self._url) + sum([len(name) + len(value) for name, value in self._headers.items()]) > HEAD_MAX:
            self._refuse(*_LARGE)
            return
        if problem := self._host_problem():
            self._refuse(400, _BAD_HOST.format(problem))
            return
        request = self._request()
        if request is None:
            self._refuse(*_BAD)
            return
        try:
            self._coming = self._taker.known(request)
        except StatusError:
            self._take(request)  # the dispatcher rejects it again and audits it
            return
        if self._headers.get("expect", "").lower() == "100-continue":
            self._taker.invite()

    def on_body(self, part: bytes) -> None:
        """Append a part of the body."""
        if self._coming is None or self.is_over:
            return
        self._body += part
        if len(self._body) > BODY_MAX:
            message = f"Request entity too large: limit is {BODY_MAX}"
            self._refuse_body(StatusError(413, "RequestEntityTooLarge", message))
        elif not self._taker.hold(len(part)):
            self._refuse_body(too_many())

    def on_message_complete(self) -> None:
        """Pass on a complete request."""
        self.is_in_body = False
        if self._is_read_again:
            return
        if self._coming is not None and not self.is_over:
            request, self._coming = self._coming, None
            if self._body:
                request, self._body = request.with_body(bytes(self._body)), bytearray()
            self._take(request)

    # --- results ---

    def _refuse_body(self, refused: StatusError) -> None:
        request, self._coming, self._body = self._coming, None, bytearray()
        assert request is not None, "a body belongs to a request"
        self._take(request, refused)

    def _take(self, request: ApiRequest, refused: StatusError | None = None) -> None:
        is_chunked = self._parser.get_http_version() == "1.1"
        self._taker.take(ParsedRequest(request, not self._parser.should_keep_alive(), is_chunked, refused))

    def _refuse(self, code: int, why: str) -> None:
        if not self.is_over:
            self.is_over = True
            self._taker.refuse(code, why)

    def _host_problem(self) -> str:
        """Return the fault of the Host header, which HTTP/1.1 requires; '' if it is valid."""
        host = self._headers.get("host")
        if host is None:
            is_needed = self._parser.get_http_version() == "1.1"
            return "missing required Host header" if is_needed else ""
        if SEPARATOR in host:
            return "too many Host headers"
        return "" if _HOST.fullmatch(host) else "malformed Host header"

    def _request(self) -> ApiRequest | None:
        """Return the request without its body; None if its URL is invalid."""
        try:
            url: Any = httptools.parse_url(self._url)  # its type omits that path and query may be None
            path = unquote(url.path.decode("ascii"))
            if url.host is not None:  # it overrides the header (RFC 9112, 3.2.2)
                self._headers["host"] = _authority(url.host.decode("latin-1"), url.port)
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError):
            return None
        query_items = tuple(parse_qsl(url.query.decode("latin-1"), keep_blank_values=True)) if url.query else ()
        query: dict[str, str] = {}
        for name, value in query_items:
            query.setdefault(name, value)
        method = self._parser.get_method().decode("ascii")
        return ApiRequest(method, path, query, self._headers, source=self.source, query_items=query_items)


def _has_body(headers: Mapping[str, str]) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _authority(host: str, port: int | None) -> str:
    """Format a host and port as a Host header."""
    named = f"[{host}]" if ":" in host else host
    return named if port is None else f"{named}:{port}"


# --- streams ---
#
# Streaming responses: parts are written as they arise, until the client disconnects or the timeout expires.


BOOKMARKS_EVERY: Final = 60.0  # seconds
#: How many seconds before the end of a watch its client gets a bookmark. Source: k8s.io/apiserver,
#: pkg/storage/cacher/cache_watcher.go.
BOOKMARK_BEFORE_END: Final = 2.0  # seconds
_LASTS: Final = 1800.0  # seconds, the default timeout
#: The number of fields of a watch event: its type and its object, in this order.
_EVENT_SIZE: Final = 2
_encode = msgspec.json.Encoder().encode
TakeTurn: TypeAlias = Callable[[Callable[[], None]], None]
"""Calls a function later, after other responses had their turn."""


class StreamSink(Protocol):
    """The connection that a stream writes to."""

    @property
    def takes(self) -> bool:
        """Whether more can be written now. When that becomes true, the stream is notified."""

    def write_part(self, part: bytes) -> None:
        """Write a part of the response."""

    def end_parts(self) -> None:
        """End the response."""

    def abort(self) -> None:
        """Close the connection, because a part could not be produced."""


class ResponseStream:
    """A streaming response on a connection, with its timers and the parts that are not written yet."""

    def __init__(
        self,
        ongoing: StreamingResponse,
        request: ApiRequest,
        sink: StreamSink,
        loop: asyncio.AbstractEventLoop,
        take_turn: TakeTurn,
    ) -> None:
        self.ongoing = ongoing
        self._sink = sink
        self._loop = loop
        self._take_turn = take_turn
        self._timed = [loop.call_later(after, then) for after, then in _timed(ongoing, request)]
        self._mark = loop.call_later(BOOKMARKS_EVERY, self._bookmark)
        #: The parts that are taken but not written yet; None if there are none.
        self._waiting: Iterator[Any] | None = None
        self._has_turn = False
        self._is_stopped = False
        ongoing.on_news = self.write_next

    def write_next(self) -> None:
        """Write the next part, if the connection accepts it."""
        if not self._sink.takes or self._has_turn or self._is_stopped:
            return
        if self._waiting is None and (taken := self.ongoing.take()):
            self._waiting = iter(taken)
        if self._waiting is not None:
            with ExitStack() as defect:
                defect.callback(self._sink.abort)
                part = self._next_part(self._waiting)
                defect.pop_all()
            if part:
                self._sink.write_part(part)
        if self._waiting is not None:
            self._has_turn = True
            self._take_turn(self._take_next_turn)
        elif self.ongoing.is_over:
            self.stop()
            self._sink.end_parts()

    def _take_next_turn(self) -> None:
        self._has_turn = False
        self.write_next()

    def _next_part(self, waiting: Iterator[Any]) -> bytes:
        """Encode up to PIECE bytes of the waiting parts, so that other responses get a turn in between."""
        lines: list[bytes] = []
        length = 0
        for each in waiting:
            lines.append(_line(each))
            length += len(lines[-1])
            if length >= PIECE:
                break
        else:
            self._waiting = None
        return b"".join(lines)

    def stop(self) -> None:
        """Stop writing, and cancel the timers."""
        self._is_stopped = True
        self.ongoing.on_news = _ignore_news
        for call in (*self._timed, self._mark):
            call.cancel()

    def _bookmark(self) -> None:
        self._mark = self._loop.call_later(BOOKMARKS_EVERY, self._bookmark)
        self.ongoing.mark()


class ResponsePieces:
    """A long response in pieces, as a stream."""

    times_out: Final = False

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.content_type = ""  # unused: the head is already written
        self.is_over = False
        self.on_news: Callable[[], None] = _ignore_news
        self._pieces = pieces

    def take(self) -> Iterator[bytes]:
        """Return all pieces, each encoded when it is read. Called once."""
        self.is_over = True
        return self._pieces

    def mark(self) -> None:
        """Do nothing: a response has no bookmarks."""

    def end(self) -> None:
        """Do nothing: it ends with its last piece."""


def _line(part: Any) -> bytes:
    if isinstance(part, bytes):
        return part
    if type(part) is dict and len(part) == _EVENT_SIZE and "type" in part and "object" in part:
        return b'{"type":"%b","object":%b}\n' % (part["type"].encode(), shared(part["object"]))
    return _encode(part) + b"\n"


def _timed(ongoing: StreamingResponse, request: ApiRequest) -> Iterator[tuple[float, Callable[[], None]]]:
    """Yield the actions of a stream, with their delays in seconds: the last bookmark, and the end."""
    if not ongoing.times_out:
        return
    lasts = float(timeout_of(request)) or _LASTS
    yield max(0.0, lasts), ongoing.end
    if lasts > BOOKMARK_BEFORE_END:
        yield lasts - BOOKMARK_BEFORE_END, ongoing.mark


def _ignore_news() -> None:
    pass


#: The user of connections without TLS, which only the owner may enable.
OWNER: Final = of_certificate("admin", (MASTERS,))
#: Timeouts in seconds: for the head of a request, its body, the client reading a response, and an idle connection.
HEAD_WITHIN: Final = 15
BODY_WITHIN: Final = 30
TAKEN_WITHIN: Final = 60
IDLE_WITHIN: Final = 60
#: Maximum characters of a warning and of all warnings, truncated as upstream does: clients limit header sizes.
WARNING_MAX: Final = 256
WARNINGS_MAX: Final = 4096
_AT_LOOPBACK: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
_TEXT: Final = "text/plain; charset=utf-8"
_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_LATE: Final = StatusError(408, "Timeout", f"the request did not come within {BODY_WITHIN} seconds")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpProtocol(asyncio.Protocol):
    """The queued requests of a connection, the response in progress, and the timeout in effect."""

    def __init__(
        self, answers: RequestDispatcher, connections: Connections, turns: ResponseTurns, *, is_secure: bool
    ) -> None:
        self._answers = answers
        self._turns = turns
        self._connections = connections
        self._is_secure = is_secure
        self._loop = asyncio.get_running_loop()
        self._deadline = ConnectionDeadline(self._loop)
        self._transport: Any = None
        #: The user of the client certificate; None without one.
        self.peer: Peer | None = None
        self._waiting: deque[ParsedRequest] = deque()
        self._answering: ParsedRequest | None = None
        self._stream: ResponseStream | None = None
        self._is_lost = False
        self._is_paused = False
        #: The bytes of request bodies in memory, by flow.
        self._held: dict[str, int] = {}
        self._holder = ""
        #: Whether the client reads the responses; False while the write buffer is full.
        self.takes = True

    # --- callbacks of the event loop ---

    def connection_made(self, transport: Any) -> None:
        """Start serving a connection whose TLS handshake is complete."""
        self._transport = transport
        self._requests = RequestParser(self)  # not before: a failed handshake has no connection_lost
        self.peer, self._requests.source = _client_of(transport)
        if not self._connections.enter(self):
            self._requests.is_over = True
            self.refuse(503, "Exceeded concurrency limit.")
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything that belongs to the connection."""
        self._connections.leave(self)
        self._deadline.end()
        self._requests.end()
        self._release()
        self.eof_received()
        self._transport = _GONE  # breaks the reference cycle with the transport

    def eof_received(self) -> None:
        """Close now: a client that half-closes the connection gets no further responses."""
        self._is_lost = True
        self._waiting.clear()
        if self._stream is not None:
            self._stream.stop()
            self._answers.leave(self._stream.ongoing)
            self._stream = None

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        self._requests.feed(data)
        if self._requests.is_over and not self._is_busy:
            self._transport.close()
        self._pause(paused=bool(self._waiting))
        self._wait()

    def pause_writing(self) -> None:
        """Stop writing: the write buffer is full because the client does not read."""
        self.takes = False
        self._wait()

    def resume_writing(self) -> None:
        """Continue writing."""
        self.takes = True
        if self._stream is not None:
            self._stream.write_next()
        self._answer_next()
        self._wait()

    # --- callbacks of the parser ---

    def known(self, request: ApiRequest) -> ApiRequest:
        """Return the request with its authenticated user. Raises Refused if authentication fails."""
        if not self._is_secure:
            _check_local(request)
        known = self._answers.known(request.made_by(_user(self.peer) if self._is_secure else OWNER))
        self._holder = _holder_of(known.user)
        return known

    def take(self, whole: ParsedRequest) -> None:
        """Queue a request; requests are answered in order."""
        self._waiting.append(whole)
        self._answer_next()

    def refuse(self, code: int, why: str) -> None:
        """Reject input that is not a valid request, and close the connection."""
        self._waiting.clear()
        if self._answering is None:
            framing, answer = b"\r\ncontent-length: %d" % len(why), Response(code, why, content_type=_TEXT)
            head = _head(answer, self._connections.date(), framing, is_last=True)
            self._transport.write(head + why.encode())
            self._transport.close()

    def hold(self, length: int) -> bool:
        """Count bytes of a body until its request is answered. Return False if too many are in memory."""
        self._held[self._holder] = self._held.get(self._holder, 0) + length
        return self._connections.hold(self._holder, length)

    def invite(self) -> None:
        """Send 100 Continue, unless another request is being answered: the client then sends the body without it."""
        if not self._is_busy:
            self._transport.write(_CONTINUE)

    # --- responses ---

    def write_part(self, part: bytes) -> None:
        """Write a part of a streaming response."""
        assert self._answering is not None, "a part belongs to a response"
        self._transport.write(b"%x\r\n%b\r\n" % (len(part), part) if self._answering.is_chunked else part)

    def end_parts(self) -> None:
        """End a streaming response."""
        assert self._answering is not None, "a part belongs to a response"
        if self._stream is not None:
            self._answers.leave(self._stream.ongoing)
            self._stream = None
        if self._answering.is_chunked:
            self._transport.write(b"0\r\n\r\n")
        self._end_answer()

    def end(self) -> None:
        """Close the connection after the requests in progress are answered."""
        self._requests.is_over = True
        if not self._is_busy:
            self._transport.close()
            self._wait()

    def abort(self) -> None:
        """Close the connection now."""
        self._transport.abort()

    @property
    def _is_busy(self) -> bool:
        return self._answering is not None or bool(self._waiting)

    def _answer_next(self) -> None:
        """Start answering the next request, unless one is in progress or the client does not read."""
        if self._answering is not None or not self._waiting or not self.takes or self._is_lost:
            return
        self._answering = whole = self._waiting.popleft()
        self._pause(paused=bool(self._waiting))
        if whole.refused is None:
            self._answers.ask(whole.request, self._answered)
        else:
            self._answered(encoded(whole.refused.response()))

    def _answered(self, answer: StartedResponse) -> None:
        """Write a response, or start a stream."""
        if self._is_lost or self._transport.is_closing():
            if not isinstance(answer, Response):
                self._answers.leave(answer)
            return
        whole = self._answering
        assert whole is not None, "a response belongs to a request"
        if isinstance(answer, UpgradeResponse):
            self._hand_over(answer, whole)
            return
        if not isinstance(answer, Response):
            self._begin(answer, Response(200, None, content_type=answer.content_type), whole)
            return
        if not isinstance(answer.body, bytes):
            self._begin(ResponsePieces(answer.body), answer, whole)
            return
        framing, is_last = b"\r\ncontent-length: %d" % len(answer.body), self._is_last(whole)
        head = _head(answer, self._connections.date(), framing, is_last=is_last)
        body = b"" if whole.request.method == "HEAD" else answer.body
        self._transport.write(head + body[:PIECE])
        if len(body) <= PIECE:
            self._end_answer()
        else:
            self._answering = whole._replace(is_chunked=False)
            self._stream_parts(
                ResponsePieces(body[begin : begin + PIECE] for begin in range(PIECE, len(body), PIECE)), whole
            )

    def _begin(self, ongoing: StreamingResponse, answer: Response, whole: ParsedRequest) -> None:
        """Start a streaming response. HTTP/1.0 has no chunked encoding, so there it ends with the connection."""
        framing = b"\r\ntransfer-encoding: chunked" if whole.is_chunked else b""
        self._answering = whole._replace(is_last=self._is_last(whole) or not whole.is_chunked)
        self._transport.write(_head(answer, self._connections.date(), framing, is_last=self._answering.is_last))
        if whole.request.method == "HEAD":
            self._answers.leave(ongoing)
            self._end_answer()
        else:
            self._stream_parts(ongoing, whole)

    def _stream_parts(self, ongoing: StreamingResponse, whole: ParsedRequest) -> None:
        self._stream = ResponseStream(ongoing, whole.request, self, self._loop, self._turns.of(whole.request.user))
        self._stream.write_next()

    def _hand_over(self, answer: UpgradeResponse, whole: ParsedRequest) -> None:
        """Hand the connection over to the upgraded protocol."""
        self._pause(paused=False)
        transport, rest, connections, user = self._transport, self._requests.rest, self._connections, whole.request.user
        self.connection_lost(None)
        transport.write(switched(answer, whole.request, connections.date()))
        upgraded = UpgradedConnection(transport, connections, self.peer, _holder_of(user), self._turns.of(user))
        serve_upgraded(answer, upgraded, rest, partial(self._answers.leave, answer))

    def _release(self) -> None:
        """Release the bodies of the answered request."""
        for holder, length in self._held.items():
            self._connections.hold(holder, -length)
        self._held.clear()

    def _is_last(self, whole: ParsedRequest) -> bool:
        return whole.is_last or (self._requests.is_over and not self._waiting)

    def _end_answer(self) -> None:
        whole, self._answering = self._answering, None
        assert whole is not None, "a response was in progress"
        self._release()
        if self._is_last(whole):
            self._requests.is_over = True
            self._waiting.clear()
            self._transport.close()
            self._wait()
            return
        if self._waiting:
            self._loop.call_soon(self._answer_next)
        self._wait()

    def _pause(self, *, paused: bool) -> None:
        """Pause reading while requests are queued."""
        if paused != self._is_paused and not self._is_lost:
            self._is_paused = paused
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    def _wait(self) -> None:
        """Set the timeout for what the connection waits for next."""
        requests, deadline, transport = self._requests, self._deadline, self._transport
        number = requests.number
        if self._is_lost:
            deadline.stop()
        elif transport.is_closing():
            deadline.wait(("end", number), TAKEN_WITHIN, transport.abort)
        elif not self.takes:
            deadline.wait(("taken", number), TAKEN_WITHIN, transport.abort)
        elif requests.is_in_body:
            deadline.wait(("body", number), BODY_WITHIN, lambda: requests.end_late(_LATE) or transport.abort())
        elif requests.is_in_head or not number:
            deadline.wait(("head", number), HEAD_WITHIN, transport.abort)
        elif not self._is_busy:
            deadline.wait(("idle", number), IDLE_WITHIN, self.end)
        else:
            deadline.stop()


def _client_of(transport: asyncio.BaseTransport) -> tuple[Peer | None, str]:
    """Return the user of the client certificate, or None, and the IP address of the client, or ''."""
    certificate, address = transport.get_extra_info("peercert"), transport.get_extra_info("peername")
    return peer_of(certificate) if certificate else None, str(address[0]) if address else ""


class _Gone:
    """The transport of a lost connection."""

    def is_closing(self) -> bool:
        """Return True: nothing can be written."""
        return True

    def abort(self) -> None:
        """Do nothing: the connection is already closed."""


_GONE: Final = _Gone()


def _head(response: Response, date: bytes, framing: bytes, *, is_last: bool) -> bytes:
    """Encode the head of a response; `framing` is the header line that determines the length of the body."""
    lines = [_LINES[response.code], b"date: ", date, b"\r\ncontent-type: ", response.content_type.encode(), framing]
    if response.retry_after is not None:
        lines.append(b"\r\nretry-after: %d" % response.retry_after)
    lines += [f'\r\nwarning: 299 - "{text}"'.encode() for text in _quoted(response.warnings)]
    lines += [f"\r\n{name}: {value}".encode() for name, value in response.headers]
    if is_last:
        lines.append(b"\r\nconnection: close")
    lines.append(b"\r\n\r\n")
    return b"".join(lines)


def _user(peer: Peer | None) -> UserInfo:
    return ANONYMOUS if peer is None else peer.now()


def _holder_of(user: UserInfo) -> str:
    """Return the user whose limits of bodies and ports apply; '' for none."""
    return "" if is_exempt(user) else flow_of(user)


def _quoted(warnings: Sequence[str]) -> Iterator[str]:
    """Yield warnings as quoted header values, truncated to the limits."""
    left = WARNINGS_MAX
    for warning in warnings:
        text = "".join(filter(str.isprintable, warning))[:WARNING_MAX]
        left -= len(text)
        if left < 0:
            return
        yield text.replace("\\", "\\\\").replace('"', '\\"')


def _check_local(request: ApiRequest) -> None:
    """Reject requests that may come from a web page in the owner's browser: without TLS they need no credentials.

    Browsers send `Origin` for pages of other sites. A foreign `Host` may be DNS rebinding. Raises Refused.
    """
    if not _AT_LOOPBACK.fullmatch(request.headers.get("host", "")) or "origin" in request.headers:
        raise StatusError(403, "Forbidden", "without TLS only programs on this machine are served, at its loopback")
