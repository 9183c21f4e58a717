"""HTTP/1.1 protocol of a connection: its requests are answered in order, one at a time.

It only translates, and enforces timeouts. Neither a task nor ASGI is between a connection and the platform; the
reasons are in docs/decisions/0020-http-without-asgi.md.
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

from batchyard.apiserver.request import (
    ANONYMOUS,
    MASTERS,
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
from batchyard.server.http.flow_control import ResponseTurns
from batchyard.server.http.parser import ParsedRequest, RequestParser
from batchyard.server.streaming.pod_streams import serve_upgraded, switched
from batchyard.server.streaming.upgraded_connection import UpgradedConnection

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
