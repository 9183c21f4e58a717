"""One HTTP/1.1 exchange with another server on a byte stream: sends a request, and passes its response on.

The byte stream leads to a port of a pod, or to the server of an aggregated API.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Final

import httptools

from batchyard.apiserver.request import HOP_BY_HOP_HEADERS, ProxyResponse, Response, StreamingResponse
from batchyard.interfaces.containers import ByteStream, SessionClient, SessionEnd

#: Seconds within which the connection must be open, and the response must begin.
CONNECT_TIMEOUT: Final = 10.0
RESPONSE_TIMEOUT: Final = 60.0
#: A response of at most so many bytes, with a known length, is sent as a whole.
_WHOLE_BODY_MAX: Final = 256 * 1024
#: The maximum bytes of a response that is not streamed.
_COLLECTED_BODY_MAX: Final = 4 * 1024 * 1024
#: The bytes of a response in memory above which the server is not read.
_BUFFERED_MAX: Final = 512 * 1024
_HEAD_BYTES_MAX: Final = 64 * 1024
_DROPPED_HEADERS: Final = HOP_BY_HOP_HEADERS | {"content-length", "content-type", "date"}
_BINARY: Final = "application/octet-stream"
_KNOWN_CODES: Final = frozenset(status.value for status in HTTPStatus)


class ProxiedStream:
    """A response of another server that is passed on as it arrives: its head, and its body as a stream."""

    times_out: Final = False

    def __init__(self, head: Response, on_taken: Callable[[], None], on_end: Callable[[], None]) -> None:
        """Create the stream. `on_taken` is called when all data is taken, and `on_end` when the client ends it."""
        self.head = head
        self.content_type = head.content_type
        self.is_over = False
        self.on_new_data: Callable[[], None] = _ignore_data
        self._data: list[bytes] = []
        self._on_taken, self._on_end = on_taken, on_end
        #: The bytes that are not taken yet.
        self.buffered_size = 0

    def add(self, data: bytes) -> None:
        """Add a part of the body."""
        self._data.append(data)
        self.buffered_size += len(data)
        self.on_new_data()

    def complete(self) -> None:
        """End the response after the data that is not taken yet."""
        self.is_over = True
        self.on_new_data()

    def take_buffered_data(self) -> list[bytes]:
        """Remove and return the parts of the body that have arrived."""
        data, self._data, self.buffered_size = self._data, [], 0
        self._on_taken()
        return data

    def send_keep_alive(self) -> None:
        """Do nothing: the other server sends its own bookmarks."""

    def end(self) -> None:
        """Close the connection to the other server."""
        self.is_over = True
        self._on_end()


def _ignore_data() -> None:
    pass


def forward_request(
    proxy_response: ProxyResponse, respond: Callable[[Response | StreamingResponse], None], *, streams: bool = True
) -> None:
    """Send the request of a proxy response to its server; `respond` later gets the response of that server.

    Without `streams`, the response is a whole Response also if its length is unknown.
    """
    HttpExchange(proxy_response, respond, streams=streams).start()


class HttpExchange:
    """A request to another server on its own connection, and the response of the server."""

    def __init__(
        self, proxy_response: ProxyResponse, respond: Callable[[Response | StreamingResponse], None], *, streams: bool
    ) -> None:
        self._streams = streams
        self._proxied = proxy_response
        self._respond: Callable[[Response | StreamingResponse], None] | None = respond
        self._parser = httptools.HttpResponseParser(self)
        self._bytes: ByteStream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._headers: list[tuple[str, str]] = []
        #: The bytes since the start, or since the last part of the body: of the headers, or of the trailers.
        self._head_length = 0
        self._code = 0
        self._body = bytearray()
        self._stream: ProxiedStream | None = None
        self._ends_with_connection = False
        self._is_over = False

    def start(self) -> None:
        """Connect to the server, and send the request."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._proxied.timeout or RESPONSE_TIMEOUT, self._fail, "the response timed out")
        self._bytes = self._proxied.connect(self)
        self._bytes.write(self._proxied.request)

    # --- callbacks of the byte stream ---

    def process_output(self, stream_name: str, data: bytes) -> None:
        """Parse bytes of the server."""
        if self._is_over:
            return
        self._head_length += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"malformed HTTP response: {error}")
        except httptools.HttpParserUpgrade:
            self._fail("the server switched to another protocol")
        if self._head_length > _HEAD_BYTES_MAX:
            self._fail("the headers of the response are too large")

    def set_accepts_input(self, *, accepts_input: bool) -> None:
        """Do nothing: the request is sent as a whole."""

    def process_end(self, session_end: SessionEnd) -> None:
        """Process the end of the connection: of the response, if its length is not known otherwise."""
        if self._is_over:
            return
        if self._ends_with_connection and not session_end.failure:
            self._complete()
        else:
            self._fail(session_end.failure or "the connection was closed before the response was complete")

    # --- callbacks of the parser ---

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; ignore trailers, which follow the body."""
        if not self._code:
            self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Begin the response, unless it is informational or so short that it is sent as a whole."""
        code = self._parser.get_status_code()
        if code < 200:
            self._headers.clear()
            return
        self._code = code
        names = {name for name, _ in self._headers}
        has_body = self._proxied.method != "HEAD" and code not in (204, 304)
        self._ends_with_connection = has_body and not names & {"content-length", "transfer-encoding"}
        length = next((value for name, value in self._headers if name == "content-length"), "")
        if not has_body:
            self._complete()
        elif self._streams and not (length.isdecimal() and int(length) <= _WHOLE_BODY_MAX):
            self._begin_stream()

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on."""
        self._head_length = 0
        if self._is_over:
            return
        if self._stream is None:
            self._body += body
            if len(self._body) > _COLLECTED_BODY_MAX:
                self._fail("the response is too large")
        else:
            self._stream.add(bytes(body))
            if self._stream.buffered_size > _BUFFERED_MAX and self._bytes is not None:
                self._bytes.set_reading(is_reading=False)

    def on_message_complete(self) -> None:
        """Complete the response."""
        if self._code and not self._is_over:
            self._complete()

    # --- the response ---

    def _begin_stream(self) -> None:
        self._stop_timer()
        self._stream = ProxiedStream(self._head(None), self._resume, self._close)
        self._send(self._stream)

    def _complete(self) -> None:
        self._close()
        if self._stream is None:
            self._send(self._head(bytes(self._body)))
        else:
            self._stream.complete()

    def _fail(self, problem: str) -> None:
        if self._is_over:
            return
        self._close()
        if self._stream is None:
            self._send(self._proxied.failure(problem))
        else:
            self._stream.complete()

    def _head(self, body: bytes | None) -> Response:
        code = self._code if self._code in _KNOWN_CODES else 502
        content_type = next((value for name, value in self._headers if name == "content-type"), _BINARY)
        headers = (*_passed_headers(self._headers), *self._proxied.added_headers)
        return Response(code, body, content_type=content_type, headers=headers)

    def _send(self, response: Response | StreamingResponse) -> None:
        respond, self._respond = self._respond, None
        if respond is not None:
            respond(response)

    def _resume(self) -> None:
        if self._bytes is not None and not self._is_over:
            self._bytes.set_reading(is_reading=True)

    def _close(self) -> None:
        self._is_over = True
        self._stop_timer()
        if self._bytes is not None:
            self._bytes.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _passed_headers(headers: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    named_headers = {
        each.strip() for name, value in headers if name == "connection" for each in value.lower().split(",")
    }
    return ((name, value) for name, value in headers if name not in _DROPPED_HEADERS and name not in named_headers)


class TcpStream(asyncio.Protocol):
    """A byte stream to a TCP port, with TLS if a context is given."""

    def __init__(
        self,
        address: tuple[str, int],
        tls: tuple[ssl.SSLContext, str] | None,
        client: SessionClient,
        create_socket: Callable[[], socket.socket | None] | None = None,
    ) -> None:
        """Start to connect. `tls` is the TLS context with the expected name of the server; None for plain TCP.

        `create_socket` returns a socket of another network, such as that of the pods; None for this machine's network.
        """
        self._client = client
        self._create_socket = create_socket
        self._early_data = bytearray()
        self._transport: Any = None
        self._is_closed = False
        self._is_reading = True
        self._task = asyncio.get_running_loop().create_task(self._connect(address, tls))

    def connection_made(self, transport: Any) -> None:
        """Send the data that was written before the connection was open."""
        self._transport = transport
        if self._is_closed:
            transport.abort()
            return
        transport.write(bytes(self._early_data))
        if not self._is_reading:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """Pass bytes on."""
        if not self._is_closed:
            self._client.process_output("stdout", data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection."""
        self._end(SessionEnd(failure="" if exc is None else str(exc) or type(exc).__name__))

    def write(self, data: bytes) -> None:
        """Send bytes, or keep them until the connection is open."""
        if self._transport is None:
            self._early_data += data
        else:
            self._transport.write(data)

    def end_input(self) -> None:
        """Do nothing: the server knows the length of the request."""

    def set_reading(self, *, is_reading: bool) -> None:
        """Resume or pause reading."""
        if is_reading != self._is_reading:
            self._is_reading = is_reading
            if self._transport is not None and not self._is_closed:
                (self._transport.resume_reading if is_reading else self._transport.pause_reading)()

    def close(self) -> None:
        """Close the connection."""
        self._is_closed = True
        if self._transport is None:
            self._task.cancel()
        else:
            self._transport.abort()

    async def _connect(self, address: tuple[str, int], tls: tuple[ssl.SSLContext, str] | None) -> None:
        loop = asyncio.get_running_loop()
        tls_context, server_name = tls or (None, None)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                opened = None if self._create_socket is None else self._create_socket()
                if opened is not None:
                    await _connect_socket(loop, opened, address)
                place: dict[str, Any] = dict(zip(("host", "port"), address, strict=True))
                place = place if opened is None else {"sock": opened}
                await loop.create_connection(lambda: self, ssl=tls_context, server_hostname=server_name, **place)
        except (OSError, TimeoutError) as error:
            self._end(SessionEnd(failure=_connection_problem(address, error)))

    def _end(self, session_end: SessionEnd) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._client.process_end(session_end)


async def _connect_socket(loop: asyncio.AbstractEventLoop, opened: socket.socket, address: tuple[str, int]) -> None:
    try:
        opened.setblocking(False)
        await loop.sock_connect(opened, address)
    except (OSError, asyncio.CancelledError):
        opened.close()
        raise


def _connection_problem(address: tuple[str, int], error: BaseException) -> str:
    host, port = address
    reason = "i/o timeout"
    if isinstance(error, ssl.SSLError):
        reason = f"tls: {getattr(error, 'verify_message', '') or error.reason or error}"
    elif isinstance(error, socket.gaierror):
        reason = "no such host"
    elif isinstance(error, OSError) and error.errno:
        reason = f"connect: {os.strerror(error.errno).lower()}"
    return f"dial tcp {f'[{host}]' if ':' in host else host}:{port}: {reason}"
