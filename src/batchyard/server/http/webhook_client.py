"""HTTPS calls of webhooks: connections, TLS, timeouts and limits, with the error texts of Go's HTTP client.

Connections are kept open for later calls. A limit bounds the calls in flight of each webhook; further calls wait, and
their time limit includes the wait. Sources: k8s.io/apiserver, pkg/util/webhook/client.go; k8s.io/client-go, rest.
"""

import asyncio
import base64
import errno
import ipaddress
import os
import posixpath
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import httptools

from batchyard.apiserver.admission.calls import TimedReply, WebhookCallError, WebhookReply, WebhookRequest
from batchyard.apiserver.service_endpoints import EndpointAddress
from batchyard.interfaces.controller import Work
from batchyard.server.clocks.wall import monotonic_seconds

#: Maximum calls in flight of one webhook.
CALLS_IN_FLIGHT_MAX: Final = 64
#: Maximum idle connections to one server, and the seconds after which an idle connection is closed.
_IDLE_CONNECTIONS_MAX: Final = 16
_IDLE_SECONDS: Final = 30.0
#: Maximum bytes of a response, and of its header.
_RESPONSE_SIZE_MAX: Final = 8 * 1024 * 1024
_HEADER_SIZE_MAX: Final = 64 * 1024
_DEFAULT_PORT: Final = 443
_DEADLINE_EXCEEDED: Final = "context deadline exceeded"
#: The reasons of error responses, as client-go words them.
_TEXT_BY_CODE: Final = {
    400: "the server rejected our request for an unknown reason",
    401: "the server has asked for the client to provide credentials",
    403: "the server does not allow access to the requested resource",
    404: "the server could not find the requested resource",
    405: "the server does not allow this method on the requested resource",
    406: "the server was unable to respond with a content type that the client supports",
    409: "the server reported a conflict",
    415: "the server was not able to accept the content type of the request",
    422: "the server rejected our request due to an error in our request",
    429: "the server has received too many requests and has asked us to try again later",
    503: "the server is currently unable to handle the request",
    504: "the server was unable to return a response in the time allotted, but may still be processing the request",
}

ServiceResolver: TypeAlias = Callable[[str, str, int], EndpointAddress]
"""Returns the address of a Service, from namespace, name and port; raises WebhookCallError if it has none."""
SocketFactory: TypeAlias = Callable[[], socket.socket]
"""Returns a TCP socket in the pod network; raises OSError without one."""


class _Target(NamedTuple):
    """The server of a webhook: how it is named in messages, and what its certificate must match."""

    url: str
    host: str
    port: int
    path: str
    ca_bundle: str
    server_name: str
    service: tuple[str, str] | None


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        #: The time in seconds, by `monotonic_seconds`, at which it became idle.
        self.idle_since = 0.0


class WebhookClient:
    """Calls webhooks over HTTPS; replies are delivered on the event loop of the controllers."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        post: Callable[[Work], None],
        resolve_service: ServiceResolver,
        create_pod_socket: SocketFactory,
    ) -> None:
        self._loop = loop
        self._post = post
        self._resolve_service = resolve_service
        self._create_pod_socket = create_pod_socket
        self._slots_by_webhook: dict[str, asyncio.Semaphore] = {}
        self._idle_connections: dict[tuple[Any, ...], list[_Connection]] = {}
        self._idle_timers: dict[tuple[Any, ...], asyncio.TimerHandle] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def seconds(self) -> float:
        """Return the seconds of a monotonic clock."""
        return monotonic_seconds()

    def call(self, request: WebhookRequest, timeout_seconds: float, on_reply: Callable[[TimedReply], None]) -> None:
        """Call a webhook; `on_reply` later gets the reply and the duration, on the event loop of the controllers."""
        task = self._loop.create_task(self._call(request, timeout_seconds, on_reply))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def close(self) -> None:
        """Cancel the calls in flight, and close all connections."""
        for task in self._tasks:
            task.cancel()
        for connections in self._idle_connections.values():
            for connection in connections:
                connection.writer.transport.abort()
        self._idle_connections.clear()
        for timer in self._idle_timers.values():
            timer.cancel()
        self._idle_timers.clear()

    async def _call(
        self, request: WebhookRequest, timeout_seconds: float, on_reply: Callable[[TimedReply], None]
    ) -> None:
        began_at = monotonic_seconds()
        target = target_of(request.client_config, timeout_seconds)
        slots = self._slots_by_webhook.setdefault(request.name, asyncio.Semaphore(CALLS_IN_FLIGHT_MAX))
        reply: WebhookReply
        try:
            async with asyncio.timeout(timeout_seconds), slots:
                reply = await self._send(target, request.body)
        except TimeoutError:
            reply = _post_error(target, _DEADLINE_EXCEEDED)
        except WebhookCallError as error:
            reply = error
        self._post(partial(on_reply, TimedReply(reply, monotonic_seconds() - began_at)))

    async def _send(self, target: _Target, body: bytes) -> bytes:
        head = (
            f"POST {target.path} HTTP/1.1\r\nHost: {_host_header(target)}\r\nUser-Agent: kube-apiserver-admission\r\n"
            f"Content-Length: {len(body)}\r\nAccept: application/json, */*\r\nContent-Type: application/json\r\n\r\n"
        )
        message = head.encode("latin-1", "replace") + body
        try:
            address = self._address_of(target)
            key = (address, target.ca_bundle, target.server_name)
            for connection in self._take_idle_connections(key):
                try:
                    return await self._exchange(connection, key, message)
                except (ConnectionError, asyncio.IncompleteReadError):
                    continue  # the server closed the idle connection: another one is used
            connection = await self._connect(target, address)
            return await self._exchange(connection, key, message)
        except (asyncio.IncompleteReadError, ConnectionResetError, BrokenPipeError) as error:
            text = "EOF" if isinstance(error, asyncio.IncompleteReadError) else "read: connection reset by peer"
            raise _post_error(target, text) from error
        except asyncio.LimitOverrunError as error:
            raise _post_error(target, "net/http: HTTP/1.x transport connection broken: header too long") from error

    def _address_of(self, target: _Target) -> EndpointAddress:
        if target.service is None:
            return EndpointAddress(target.host, target.port)
        try:
            return self._resolve_service(*target.service, target.port)
        except WebhookCallError as error:
            raise _post_error(target, str(error)) from error

    # --- connections ---

    def _take_idle_connections(self, key: tuple[Any, ...]) -> list[_Connection]:
        """Return at most one idle connection: after it fails, a new one is opened."""
        connections = self._idle_connections.get(key)
        while connections:
            connection = connections.pop()
            if not connection.reader.at_eof() and not connection.writer.is_closing():
                return [connection]
            connection.writer.close()
        return []

    def _keep_connection(self, key: tuple[Any, ...], connection: _Connection) -> None:
        connections = self._idle_connections.setdefault(key, [])
        if len(connections) >= _IDLE_CONNECTIONS_MAX:
            connection.writer.transport.abort()
            return
        connection.idle_since = monotonic_seconds()
        connections.append(connection)
        if key not in self._idle_timers:
            self._idle_timers[key] = self._loop.call_later(_IDLE_SECONDS, self._close_idle, key)

    def _close_idle(self, key: tuple[Any, ...]) -> None:
        """Close the connections to a webhook that were idle too long; look at the others again later."""
        connections, now = self._idle_connections[key], monotonic_seconds()
        while connections and now - connections[0].idle_since >= _IDLE_SECONDS:  # the last ones are used first
            connections.pop(0).writer.close()
        del self._idle_timers[key]
        if connections:
            delay = connections[0].idle_since + _IDLE_SECONDS - now
            self._idle_timers[key] = self._loop.call_later(delay, self._close_idle, key)
        else:
            del self._idle_connections[key]

    async def _connect(self, target: _Target, address: EndpointAddress) -> _Connection:
        try:
            context = tls_context(target.ca_bundle)
        except ssl.SSLError as error:
            message = "could not get REST client: unable to load root certificates: unable to parse bytes as PEM block"
            raise WebhookCallError(message, 500) from error
        try:
            if address.in_pod_network:
                pod_socket = self._create_pod_socket()
                pod_socket.setblocking(False)
                try:
                    await self._loop.sock_connect(pod_socket, (address.host, address.port))
                except OSError:
                    pod_socket.close()
                    raise
                return _Connection(
                    *await asyncio.open_connection(
                        sock=pod_socket, ssl=context, server_hostname=target.server_name, limit=_HEADER_SIZE_MAX
                    )
                )
            return _Connection(
                *await asyncio.open_connection(
                    address.host, address.port, ssl=context, server_hostname=target.server_name, limit=_HEADER_SIZE_MAX
                )
            )
        except OSError as error:
            raise _post_error(target, connection_error_text(error, target.server_name, address)) from error

    async def _exchange(self, connection: _Connection, key: tuple[Any, ...], message: bytes) -> bytes:
        response = ResponseReader(connection.reader)
        try:
            connection.writer.write(message)
            await connection.writer.drain()
            await response.read()
        finally:
            response.close()
            if response.is_reusable:
                self._keep_connection(key, connection)
            else:
                connection.writer.transport.abort()
        if not 200 <= response.code < 300:
            raise _status_error(response.code, response.headers, bytes(response.body))
        return bytes(response.body)


def target_of(client_config: Mapping[str, Any], timeout_seconds: float) -> _Target:
    """Return the server of a webhook from its client configuration, with the timeout in the query of the URL."""
    ca_bundle, service = client_config.get("caBundle") or "", client_config.get("service")
    timeout_query = f"timeout={-int(-timeout_seconds // 1)}s"
    if service:
        namespace, name, port = service["namespace"], service["name"], service.get("port") or _DEFAULT_PORT
        server_name = f"{name}.{namespace}.svc"
        path = f"{_clean_path(service.get('path') or '')}?{timeout_query}"
        url = f"https://{server_name}:{port}{path}"
        return _Target(url, server_name, port, path, ca_bundle, server_name, (namespace, name))
    parts = urlsplit(client_config.get("url") or "")
    host = parts.hostname or ""
    path = f"{_clean_path(parts.path)}?{timeout_query}"
    url = f"https://{parts.netloc}{path}"
    return _Target(url, host, parts.port or _DEFAULT_PORT, path, ca_bundle, host, None)


def _clean_path(path: str) -> str:
    """Return a path as Go's `path.Join` does: absolute, without empty, `.` and `..` segments and a final slash."""
    return "/" + posixpath.normpath(f"/{path}").lstrip("/")


@lru_cache(maxsize=64)
def tls_context(ca_bundle: str) -> ssl.SSLContext:
    """Return the TLS context that trusts a CA bundle (PEM in base64), or the CAs of the system if it is empty.

    Raises ssl.SSLError if the bundle has no certificate.
    """
    if not ca_bundle:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # Go also trusts certificates that are no CA
    try:
        context.load_verify_locations(cadata=base64.b64decode(ca_bundle).decode("ascii"))
    except ValueError as error:
        raise ssl.SSLError(str(error)) from error
    return context


def connection_error_text(error: OSError, server_name: str, address: EndpointAddress) -> str:
    """Return the text of Go's error for a connection that could not be opened."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"tls: failed to verify certificate: x509: {_certificate_error_text(error, server_name)}"
    if isinstance(error, ssl.SSLError):
        is_plain_http = error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}
        if is_plain_http:
            return "http: server gave HTTP response to HTTPS client"
        return f"remote error: tls: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, socket.gaierror):
        return f"dial tcp: lookup {address.host}: no such host"
    host = f"[{address.host}]" if ":" in address.host else address.host
    if error.errno is None:
        return f"dial tcp {host}:{address.port}: {error}"
    if error.errno == errno.ETIMEDOUT:
        return f"dial tcp {host}:{address.port}: connect: connection timed out"
    if isinstance(error, ConnectionResetError):
        return "read: connection reset by peer"
    return f"dial tcp {host}:{address.port}: connect: {os.strerror(error.errno).lower()}"


def _certificate_error_text(error: ssl.SSLCertVerificationError, server_name: str) -> str:
    match error.verify_code:
        case 9 | 10:
            return "certificate has expired or is not yet valid"
        case 62 | 64:
            if _is_address(server_name):
                return f"cannot validate certificate for {server_name} because it doesn't contain any IP SANs"
            return f"certificate is not valid for {server_name}"
    return "certificate signed by unknown authority"


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _host_header(target: _Target) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    return host if target.port == _DEFAULT_PORT else f"{host}:{target.port}"


def _post_error(target: _Target, text: str) -> WebhookCallError:
    return WebhookCallError(f'Post "{target.url}": {text}')


def _status_error(code: int, headers: Mapping[str, str], body: bytes) -> WebhookCallError:
    text = _TEXT_BY_CODE.get(code)
    if text is None:
        is_text = headers.get("content-type", "").startswith("text/") and body.strip()
        shown_body = body[:2048].decode("utf-8", "replace").strip() if is_text else "unknown"
        quoted_body = shown_body.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        text = f'an error on the server ("{quoted_body}") has prevented the request from succeeding'
    return WebhookCallError(text, code)


class ResponseReader:
    """Reads one response: its status code, headers and body, and whether the connection can be used again."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._head = bytearray()
        #: 0 before the end of the headers.
        self.code = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.is_reusable = False
        self._is_complete = False

    async def read(self) -> None:
        """Read the response. Raises WebhookCallError if it is malformed or too long, and IncompleteReadError."""
        while not self._is_complete:
            data = await self._reader.read(_HEADER_SIZE_MAX - (0 if self.code else len(self._head)))
            if data:
                self._feed(data)
            elif self.code and not {"content-length", "transfer-encoding"} & self.headers.keys():
                return  # the response ends with the connection
            else:
                raise asyncio.IncompleteReadError(bytes(self.body), None)

    def close(self) -> None:
        """Drop the parser, which refers to this object: a reference cycle would keep the body in memory."""
        del self._parser

    def _feed(self, data: bytes) -> None:
        if not self.code:
            self._head += data
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.is_reusable = False
            if not self._is_complete:
                raise self._parser_error() from error
        if not self.code and len(self._head) >= _HEADER_SIZE_MAX:
            raise asyncio.LimitOverrunError("header too long", len(self._head))
        if max(len(self.body), int(self.headers.get("content-length", 0))) > _RESPONSE_SIZE_MAX:
            raise WebhookCallError(f"the response is longer than {_RESPONSE_SIZE_MAX} bytes")

    def _parser_error(self) -> WebhookCallError:
        if self.code:
            return WebhookCallError("net/http: malformed chunked encoding")
        status_line = self._head.partition(b"\r\n")[0].decode("latin-1")
        return WebhookCallError(
            f'net/http: HTTP/1.x transport connection broken: malformed HTTP response "{status_line}"'
        )

    # --- callbacks of the parser ---

    def on_message_begin(self) -> None:
        """Reject bytes after the response; informational responses may precede it."""
        if self._is_complete:
            raise ValueError("bytes after the response")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; trailers are not used."""
        if not self.code:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Store the status code, unless the response is informational."""
        code = self._parser.get_status_code()
        if code < 200:
            self.headers.clear()
        else:
            self.code = code

    def on_body(self, body: bytes) -> None:
        """Add a part of the body."""
        self.body += body

    def on_message_complete(self) -> None:
        """Complete the response, unless it is informational."""
        self._is_complete = bool(self.code)
        self.is_reusable = self._is_complete and self._parser.should_keep_alive()
