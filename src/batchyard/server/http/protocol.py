"""HTTP/1.1 server protocol of a connection: its requests are answered in order, one at a time.

The protocol parses requests, writes responses and streams, and enforces timeouts. It uses asyncio's protocol interface
without ASGI; the reasons are in docs/decisions/0020-http-without-asgi.md.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from batchyard.apiserver.dashboard import DASHBOARD_ACTIONS_PATH
from batchyard.apiserver.request import (
    ANONYMOUS,
    MASTERS_GROUP,
    ApiRequest,
    Response,
    StartedResponse,
    StatusError,
    StreamingResponse,
    UpgradeResponse,
    UserInfo,
    certificate_user,
    flow_of,
    is_exempt_from_limits,
    timeout_seconds,
)
from batchyard.server.http.connections import CertificateUser, ConnectionDeadline, Connections, certificate_user_of
from batchyard.server.http.dispatcher import PIECE_SIZE, RequestDispatcher, encode_body, encode_with_cache
from batchyard.server.http.flow_control import ResponseTurns
from batchyard.server.http.parser import ParsedRequest, RequestParser
from batchyard.server.streaming.http_exchange import ProxiedStream
from batchyard.server.streaming.pod_streams import serve_upgraded, switching_protocols_response
from batchyard.server.streaming.upgraded_connection import UpgradedConnection

# Streaming responses: parts are written as they become available, until the client disconnects or a timeout expires.


BOOKMARK_INTERVAL: Final = 60.0  # seconds
#: How many seconds before the end of a watch its client gets a bookmark. Source: k8s.io/apiserver,
#: pkg/storage/cacher/cache_watcher.go.
BOOKMARK_BEFORE_END: Final = 2.0  # seconds
_DEFAULT_STREAM_TIMEOUT: Final = 1800.0  # seconds, the default timeout
#: The number of fields of a watch event: its type and its object, in this order.
_WATCH_EVENT_FIELD_COUNT: Final = 2
_encode = msgspec.json.Encoder().encode
TakeTurn: TypeAlias = Callable[[Callable[[], None]], None]
"""Schedules a function call after the pending parts of other users' responses."""


class StreamSink(Protocol):
    """The connection to which a streaming response is written."""

    @property
    def accepts_data(self) -> bool:
        """Whether the connection accepts data now. If not, the connection calls `write_next` once it accepts data."""

    def write_response_part(self, body_part: bytes) -> None:
        """Write a part of the streaming response."""

    def end_streaming_response(self) -> None:
        """End the streaming response."""

    def abort(self) -> None:
        """Close the connection, because a part of the response could not be encoded."""


class ResponseStream:
    """Writes a streaming response (such as a watch) to a connection: its parts, periodic bookmarks, and its end."""

    def __init__(
        self,
        response: StreamingResponse,
        request: ApiRequest,
        sink: StreamSink,
        loop: asyncio.AbstractEventLoop,
        take_turn: TakeTurn,
    ) -> None:
        self.response = response
        self._sink = sink
        self._loop = loop
        self._take_turn = take_turn
        self._timers = [loop.call_later(delay, action) for delay, action in _timed_actions(response, request)]
        self._bookmark_timer = loop.call_later(BOOKMARK_INTERVAL, self._send_bookmark)
        #: The parts that were taken from the response but not written yet; None if there are none.
        self._queued_parts: Iterator[Any] | None = None
        self._is_turn_scheduled = False
        #: Whether the response got data after its buffered data was taken.
        self._has_new_data = False
        self._is_stopped = False
        #: Whether `write_next` runs: taking data may make the response report new data.
        self._is_writing = False
        response.on_new_data = self._process_new_data

    def _process_new_data(self) -> None:
        self._has_new_data = True
        if not self._is_writing:
            self.write_next()

    def write_next(self) -> None:
        """Write the next parts of the response, about PIECE_SIZE bytes, if the connection accepts data.

        After the last part, end the response. If a part cannot be encoded, close the connection.
        """
        if not self._sink.accepts_data or self._is_turn_scheduled or self._is_stopped:
            return
        if self._queued_parts is None:
            self._has_new_data, self._is_writing = False, True
            if parts := self.response.take_buffered_data():
                self._queued_parts = iter(parts)
            self._is_writing = False
        if self._queued_parts is not None:
            with ExitStack() as on_exception:
                on_exception.callback(self._sink.abort)
                part = self._encode_next_parts(self._queued_parts)
                on_exception.pop_all()
            if part:
                self._sink.write_response_part(part)
        if self._queued_parts is not None or self._has_new_data:
            self._is_turn_scheduled = True
            self._take_turn(self._take_next_turn)
        elif self.response.is_over:
            self.stop()
            self._sink.end_streaming_response()

    def _take_next_turn(self) -> None:
        self._is_turn_scheduled = False
        self.write_next()

    def _encode_next_parts(self, parts: Iterator[Any]) -> bytes:
        """Return the next parts as bytes, up to the part that reaches PIECE_SIZE bytes in total.

        The remaining parts follow later, so that other responses are written in between.
        """
        lines: list[bytes] = []
        length = 0
        for part in parts:
            lines.append(_encode_part(part))
            length += len(lines[-1])
            if length >= PIECE_SIZE:
                break
        else:
            self._queued_parts = None
        return b"".join(lines)

    def stop(self) -> None:
        """Stop writing the response, and cancel its bookmark and timeout timers."""
        self._is_stopped = True
        self.response.on_new_data = _ignore_new_data
        for timer in (*self._timers, self._bookmark_timer):
            timer.cancel()

    def _send_bookmark(self) -> None:
        self._bookmark_timer = self._loop.call_later(BOOKMARK_INTERVAL, self._send_bookmark)
        self.response.send_keep_alive()


class ResponsePieces:
    """A long plain response as a stream of encoded pieces."""

    times_out: Final = False

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.content_type = ""  # unused: the head is already written
        self.is_over = False
        self.on_new_data: Callable[[], None] = _ignore_new_data
        self._pieces = pieces

    def take_buffered_data(self) -> Iterator[bytes]:
        """Return the iterator over all encoded pieces of the response, and mark the response as taken completely."""
        self.is_over = True
        return self._pieces

    def send_keep_alive(self) -> None:
        """Do nothing: only the responses of watches have bookmarks."""

    def end(self) -> None:
        """Do nothing: the response ends with its last piece."""


def _encode_part(part: Any) -> bytes:
    if isinstance(part, bytes):
        return part
    if type(part) is dict and len(part) == _WATCH_EVENT_FIELD_COUNT and "type" in part and "object" in part:
        return b'{"type":"%b","object":%b}\n' % (part["type"].encode(), encode_with_cache(part["object"]))
    return _encode(part) + b"\n"


def _timed_actions(response: StreamingResponse, request: ApiRequest) -> Iterator[tuple[float, Callable[[], None]]]:
    """Yield (delay in seconds, function) for the timeout of a stream, if it has one, and a keep-alive before it."""
    if not response.times_out:
        return
    stream_seconds = float(timeout_seconds(request)) or _DEFAULT_STREAM_TIMEOUT
    yield max(0.0, stream_seconds), response.end
    if stream_seconds > BOOKMARK_BEFORE_END:
        yield stream_seconds - BOOKMARK_BEFORE_END, response.send_keep_alive


def _ignore_new_data() -> None:
    pass


#: The user of connections without TLS, which serve only the platform's owner.
OWNER_USER: Final = certificate_user("admin", (MASTERS_GROUP,))
#: Timeouts in seconds: for the head of a request, its body, the client reading a response, and an idle connection.
HEAD_TIMEOUT: Final = 15
BODY_TIMEOUT: Final = 30
READ_TIMEOUT: Final = 60
IDLE_TIMEOUT: Final = 60
#: Maximum characters of a warning and of all warnings, truncated as upstream does: clients limit header sizes.
WARNING_LENGTH_MAX: Final = 256
WARNINGS_LENGTH_MAX: Final = 4096
_LOOPBACK_HOST: Final = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?")
_TEXT_CONTENT_TYPE: Final = "text/plain; charset=utf-8"
_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_LATE_BODY: Final = StatusError(408, "Timeout", f"the request body was not received within {BODY_TIMEOUT} seconds")
_CONTINUE_RESPONSE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HttpProtocol(asyncio.Protocol):
    """The asyncio protocol of one connection: queues its requests, writes the responses, and enforces timeouts."""

    def __init__(
        self, dispatcher: RequestDispatcher, connections: Connections, response_turns: ResponseTurns, *, is_secure: bool
    ) -> None:
        self._dispatcher = dispatcher
        self._turns = response_turns
        self._connections = connections
        self._is_secure = is_secure
        self._loop = asyncio.get_running_loop()
        self._deadline = ConnectionDeadline(self._loop)
        self._transport: Any = None
        #: The user of the client certificate; None without one.
        self.peer: CertificateUser | None = None
        self._queued_requests: deque[ParsedRequest] = deque()
        self._current_request: ParsedRequest | None = None
        self._stream: ResponseStream | None = None
        self._is_lost = False
        self._is_paused = False
        #: The bytes of request bodies in memory, by flow.
        self._body_bytes: dict[str, int] = {}
        self._holder = ""
        #: Whether the client reads the responses; False while the write buffer is full.
        self.accepts_data = True

    # --- callbacks of asyncio ---

    def connection_made(self, transport: Any) -> None:
        """Start to serve a new connection, after its TLS handshake; refuse it with 503 if too many are open."""
        self._transport = transport
        self._requests = RequestParser(self)  # not before: a failed handshake has no connection_lost
        self.peer, self._requests.client_address = _client_identity(transport)
        if not self._connections.enter(self):
            self._requests.is_over = True
            self.refuse(503, "Exceeded concurrency limit.")
        self._set_timeout()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release all resources of the closed connection."""
        self._connections.remove(self)
        self._deadline.end()
        self._requests.end()
        self._release_bodies()
        self.eof_received()
        self._transport = _CLOSED_TRANSPORT  # breaks the reference cycle with the transport

    def eof_received(self) -> None:
        """Drop the requests and the stream of a connection that the client half-closed; asyncio then closes it."""
        self._is_lost = True
        self._queued_requests.clear()
        if self._stream is not None:
            self._stream.stop()
            self._dispatcher.end_stream(self._stream.response)
            self._stream = None

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and pause reading from the client while requests are queued."""
        self._requests.feed(data)
        if self._requests.is_over and not self._is_busy:
            self._transport.close()
        self._set_reading_paused(is_paused=bool(self._queued_requests))
        self._set_timeout()

    def pause_writing(self) -> None:
        """Stop writing responses: the write buffer is full because the client does not read."""
        self.accepts_data = False
        self._set_timeout()

    def resume_writing(self) -> None:
        """Continue to write responses: the write buffer has room again."""
        self.accepts_data = True
        if self._stream is not None:
            self._stream.write_next()
        self._answer_next_request()
        self._set_timeout()

    # --- callbacks of the parser ---

    def authenticate(self, request: ApiRequest) -> ApiRequest:
        """Authenticate a request whose headers have arrived; return it with its user. Raises StatusError on failure."""
        if not self._is_secure:
            _reject_browser_request(request)
        user = _user_of_certificate(self.peer) if self._is_secure else OWNER_USER
        authenticated_request = self._dispatcher.authenticate(request.with_user(user))
        self._holder = _holder_name_of(authenticated_request.user)
        return authenticated_request

    def queue_request(self, parsed_request: ParsedRequest) -> None:
        """Queue a received request; the requests of a connection are answered in the order of their arrival."""
        self._queued_requests.append(parsed_request)
        self._answer_next_request()

    def refuse(self, code: int, message: str) -> None:
        """Discard the queued requests, respond with an error, and close the connection.

        If a request is in progress, its own response is still sent, instead of the error.
        """
        self._queued_requests.clear()
        if self._current_request is None:
            length_header, response = (
                b"\r\ncontent-length: %d" % len(message),
                Response(code, message, content_type=_TEXT_CONTENT_TYPE),
            )
            head = _encode_head(response, self._connections.date_header(), length_header, is_last=True)
            self._transport.write(head + message.encode())
            self._transport.close()

    def count_body_bytes(self, length: int) -> bool:
        """Count received body bytes until their request is answered. Return False if they exceed a limit."""
        self._body_bytes[self._holder] = self._body_bytes.get(self._holder, 0) + length
        return self._connections.count_body_bytes(self._holder, length)

    def send_continue(self) -> None:
        """Send 100 Continue, unless another request is in progress: after a while the client sends the body anyway."""
        if not self._is_busy:
            self._transport.write(_CONTINUE_RESPONSE)

    # --- responses ---

    def write_response_part(self, body_part: bytes) -> None:
        """Write a part of the streaming response in progress."""
        assert self._current_request is not None, "a part is written only while a response is in progress"
        self._transport.write(
            b"%x\r\n%b\r\n" % (len(body_part), body_part) if self._current_request.is_chunked else body_part
        )

    def end_streaming_response(self) -> None:
        """End the streaming response in progress."""
        assert self._current_request is not None, "a part is written only while a response is in progress"
        if self._stream is not None:
            self._dispatcher.end_stream(self._stream.response)
            self._stream = None
        if self._current_request.is_chunked:
            self._transport.write(b"0\r\n\r\n")
        self._end_response()

    def end(self) -> None:
        """Close the connection after its requests in progress are answered."""
        self._requests.is_over = True
        if not self._is_busy:
            self._transport.close()
            self._set_timeout()

    def abort(self) -> None:
        """Close the connection now, without answering its requests in progress."""
        self._transport.abort()

    @property
    def _is_busy(self) -> bool:
        return self._current_request is not None or bool(self._queued_requests)

    def _answer_next_request(self) -> None:
        if self._current_request is not None or not self._queued_requests or not self.accepts_data or self._is_lost:
            return
        self._current_request = parsed_request = self._queued_requests.popleft()
        self._set_reading_paused(is_paused=bool(self._queued_requests))
        if parsed_request.rejection is None:
            self._dispatcher.submit(parsed_request.request, self._write_response)
        else:
            self._write_response(encode_body(parsed_request.rejection.response()))

    def _write_response(self, response: StartedResponse) -> None:
        if self._is_lost or self._transport.is_closing():
            if not isinstance(response, Response):
                self._dispatcher.end_stream(response)
            return
        parsed_request = self._current_request
        assert parsed_request is not None, "a response arrives only while a request is in progress"
        if isinstance(response, UpgradeResponse):
            self._upgrade_connection(response, parsed_request)
            return
        if not isinstance(response, Response):
            headers = self._dispatcher.headers_of(response)
            plain_head = Response(200, None, content_type=response.content_type, headers=headers)
            stream_head = response.head if isinstance(response, ProxiedStream) else plain_head
            self._begin_stream(response, stream_head, parsed_request)
            return
        if not isinstance(response.body, bytes):
            self._begin_stream(ResponsePieces(response.body), response, parsed_request)
            return
        length_header, is_last = b"\r\ncontent-length: %d" % len(response.body), self._is_last(parsed_request)
        head = _encode_head(response, self._connections.date_header(), length_header, is_last=is_last)
        body = b"" if parsed_request.request.method == "HEAD" else response.body
        self._transport.write(head + body[:PIECE_SIZE])
        if len(body) <= PIECE_SIZE:
            self._end_response()
        else:
            self._current_request = parsed_request._replace(is_chunked=False)
            self._stream_parts(
                ResponsePieces(body[begin : begin + PIECE_SIZE] for begin in range(PIECE_SIZE, len(body), PIECE_SIZE)),
                parsed_request,
            )

    def _begin_stream(self, stream: StreamingResponse, response: Response, parsed_request: ParsedRequest) -> None:
        encoding_header = b"\r\ntransfer-encoding: chunked" if parsed_request.is_chunked else b""
        is_last = self._is_last(parsed_request) or not parsed_request.is_chunked
        self._current_request = parsed_request._replace(is_last=is_last)
        self._transport.write(_encode_head(response, self._connections.date_header(), encoding_header, is_last=is_last))
        if parsed_request.request.method == "HEAD":
            self._dispatcher.end_stream(stream)
            self._end_response()
        else:
            self._stream_parts(stream, parsed_request)

    def _stream_parts(self, stream: StreamingResponse, parsed_request: ParsedRequest) -> None:
        self._stream = ResponseStream(
            stream, parsed_request.request, self, self._loop, self._turns.scheduler_for(parsed_request.request.user)
        )
        self._stream.write_next()

    def _upgrade_connection(self, response: UpgradeResponse, parsed_request: ParsedRequest) -> None:
        self._set_reading_paused(is_paused=False)
        transport, connections = self._transport, self._connections
        unparsed_data, user = self._requests.unparsed_data, parsed_request.request.user
        self.connection_lost(None)
        transport.write(switching_protocols_response(response, parsed_request.request, connections.date_header()))
        connection = UpgradedConnection(
            transport, connections, self.peer, _holder_name_of(user), self._turns.scheduler_for(user)
        )
        serve_upgraded(response, connection, unparsed_data, partial(self._dispatcher.end_stream, response))

    def _release_bodies(self) -> None:
        for holder, length in self._body_bytes.items():
            self._connections.count_body_bytes(holder, -length)
        self._body_bytes.clear()

    def _is_last(self, parsed_request: ParsedRequest) -> bool:
        return parsed_request.is_last or (self._requests.is_over and not self._queued_requests)

    def _end_response(self) -> None:
        parsed_request, self._current_request = self._current_request, None
        assert parsed_request is not None, "a response ends only while a request is in progress"
        self._release_bodies()
        if self._is_last(parsed_request):
            self._requests.is_over = True
            self._queued_requests.clear()
            self._transport.close()
            self._set_timeout()
            return
        if self._queued_requests:
            self._loop.call_soon(self._answer_next_request)
        self._set_timeout()

    def _set_reading_paused(self, *, is_paused: bool) -> None:
        if is_paused != self._is_paused and not self._is_lost:
            self._is_paused = is_paused
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()

    def _set_timeout(self) -> None:
        requests, deadline, transport = self._requests, self._deadline, self._transport
        number = requests.request_count
        if self._is_lost:
            deadline.stop()
        elif transport.is_closing():
            deadline.start(("end", number), READ_TIMEOUT, transport.abort)
        elif not self.accepts_data:
            deadline.start(("taken", number), READ_TIMEOUT, transport.abort)
        elif requests.is_in_body:
            deadline.start(
                ("body", number), BODY_TIMEOUT, lambda: requests.reject_late_request(_LATE_BODY) or transport.abort()
            )
        elif requests.is_in_head or not number:
            deadline.start(("head", number), HEAD_TIMEOUT, transport.abort)
        elif not self._is_busy:
            deadline.start(("idle", number), IDLE_TIMEOUT, self.end)
        else:
            deadline.stop()


def _client_identity(transport: asyncio.BaseTransport) -> tuple[CertificateUser | None, str]:
    certificate, address = transport.get_extra_info("peercert"), transport.get_extra_info("peername")
    return certificate_user_of(certificate) if certificate else None, str(address[0]) if address else ""


class _ClosedTransport:
    """A placeholder for the asyncio transport of a closed connection, which breaks a reference cycle."""

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None:
        """Do nothing: the connection is already closed."""


_CLOSED_TRANSPORT: Final = _ClosedTransport()


def _encode_head(response: Response, date: bytes, header: bytes, *, is_last: bool) -> bytes:
    """Encode a response head; `header` is empty, or CRLF followed by Content-Length or Transfer-Encoding."""
    lines = [
        _STATUS_LINES[response.code],
        b"date: ",
        date,
        b"\r\ncontent-type: ",
        response.content_type.encode(),
        header,
    ]
    if response.retry_after is not None:
        lines.append(b"\r\nretry-after: %d" % response.retry_after)
    lines += [f'\r\nwarning: 299 - "{text}"'.encode() for text in _quote_warnings(response.warnings)]
    lines += [f"\r\n{name}: {value}".encode() for name, value in response.headers]
    if is_last:
        lines.append(b"\r\nconnection: close")
    lines.append(b"\r\n\r\n")
    return b"".join(lines)


def _user_of_certificate(peer: CertificateUser | None) -> UserInfo:
    return ANONYMOUS if peer is None else peer.current_user()


def _holder_name_of(user: UserInfo) -> str:
    """Return the key under which the body bytes and ports of a user are counted; '' for a user without such limits."""
    return "" if is_exempt_from_limits(user) else flow_of(user)


def _quote_warnings(warnings: Sequence[str]) -> Iterator[str]:
    remaining_length = WARNINGS_LENGTH_MAX
    for warning in warnings:
        text = "".join(filter(str.isprintable, warning))[:WARNING_LENGTH_MAX]
        remaining_length -= len(text)
        if remaining_length < 0:
            return
        yield text.replace("\\", "\\\\").replace('"', '\\"')


def _reject_browser_request(request: ApiRequest) -> None:
    """Reject a request without TLS that may come from a web page in the owner's browser. Raises StatusError (403).

    Without TLS, requests need no credentials. Browsers send `Origin` for pages of other sites, and for actions of the
    dashboard. An unknown `Host` may be DNS rebinding.
    """
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    is_own_page = request.path == DASHBOARD_ACTIONS_PATH and origin == f"http://{host}"
    if not _LOOPBACK_HOST.fullmatch(host):
        problem = "without TLS (--insecure-loopback), only requests to localhost are served"
        raise StatusError(403, "Forbidden", f"{problem}: use http://localhost or http://127.0.0.1 with the port")
    if not (origin is None or is_own_page):
        problem = "without TLS (--insecure-loopback), requests with an Origin header are rejected"
        raise StatusError(403, "Forbidden", f"{problem}: remove the header, or send the request from outside a browser")
