"""HTTPS calls of webhooks: connections, TLS, timeouts and limits, with the error texts of Go's HTTP client.

Connections are kept open for later calls. A limit bounds the calls in flight of each webhook; further calls wait, and
their time limit includes the wait. Sources: k8s.io/apiserver, pkg/util/webhook/client.go; k8s.io/client-go, rest.
"""

import asyncio
import base64
import errno
import ipaddress
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from batchyard.apiserver.admission.pipeline import TimedReply
from batchyard.apiserver.admission.reviews import WebhookCallError, WebhookReply, WebhookRequest
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


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


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
        connections.append(connection)
        self._loop.call_later(_IDLE_SECONDS, self._close_idle, key, connection)

    def _close_idle(self, key: tuple[Any, ...], connection: _Connection) -> None:
        connections = self._idle_connections.get(key, [])
        if connection in connections:
            connections.remove(connection)
            connection.writer.close()
        if not connections:
            self._idle_connections.pop(key, None)

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
        is_reusable = False
        try:
            connection.writer.write(message)
            await connection.writer.drain()
            code, headers = await _read_head(connection.reader)
            body = await _read_body(connection.reader, headers)
            is_reusable = headers.get("connection", "").lower() != "close" and _has_length(headers)
        finally:
            if is_reusable:
                self._keep_connection(key, connection)
            else:
                connection.writer.transport.abort()
        if not 200 <= code < 300:
            raise _status_error(code, headers, body)
        return body


def target_of(client_config: Mapping[str, Any], timeout_seconds: float) -> _Target:
    """Return the server of a webhook from its client configuration, with the timeout in the query of the URL."""
    ca_bundle, service = client_config.get("caBundle") or "", client_config.get("service")
    timeout_query = f"timeout={-int(-timeout_seconds // 1)}s"
    if service:
        namespace, name, port = service["namespace"], service["name"], service.get("port") or _DEFAULT_PORT
        server_name = f"{name}.{namespace}.svc"
        path = f"/{(service.get('path') or '').lstrip('/')}?{timeout_query}"
        url = f"https://{server_name}:{port}{path}"
        return _Target(url, server_name, port, path, ca_bundle, server_name, (namespace, name))
    parts = urlsplit(client_config.get("url") or "")
    host = parts.hostname or ""
    path = f"{parts.path or '/'}?{timeout_query}"
    url = f"https://{parts.netloc}{path}"
    return _Target(url, host, parts.port or _DEFAULT_PORT, path, ca_bundle, host, None)


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


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = await reader.readuntil(b"\r\n\r\n")
    status_line, *header_lines = head.decode("latin-1").split("\r\n")
    version, _, rest = status_line.partition(" ")
    code_text = rest[:3]
    if not version.startswith("HTTP/1.") or not code_text.isdecimal():
        raise WebhookCallError(
            f'net/http: HTTP/1.x transport connection broken: malformed HTTP response "{status_line}"'
        )
    headers: dict[str, str] = {"http-version": version}
    for line in header_lines:
        name, separator, value = line.partition(":")
        if separator:
            headers[name.strip().lower()] = value.strip()
    return int(code_text), headers


def _has_length(headers: Mapping[str, str]) -> bool:
    return headers["http-version"] == "HTTP/1.1" and ("content-length" in headers or _is_chunked(headers))


def _is_chunked(headers: Mapping[str, str]) -> bool:
    return "chunked" in headers.get("transfer-encoding", "").lower()


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if _is_chunked(headers):
        return await _read_chunks(reader)
    length_text = headers.get("content-length", "")
    if length_text.isdecimal():
        if int(length_text) > _RESPONSE_SIZE_MAX:
            raise WebhookCallError(f"the response is longer than {_RESPONSE_SIZE_MAX} bytes")
        return await reader.readexactly(int(length_text))
    body = await reader.read(_RESPONSE_SIZE_MAX + 1)
    while len(body) <= _RESPONSE_SIZE_MAX and (more := await reader.read(_RESPONSE_SIZE_MAX)):
        body += more
    return body


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        size_text = (await reader.readuntil(b"\r\n")).partition(b";")[0].strip()
        try:
            size = int(size_text, 16)
        except ValueError as error:
            raise WebhookCallError("net/http: malformed chunked encoding") from error
        if size + len(body) > _RESPONSE_SIZE_MAX:
            raise WebhookCallError(f"the response is longer than {_RESPONSE_SIZE_MAX} bytes")
        if size == 0:
            while (await reader.readuntil(b"\r\n")).strip():
                pass  # trailers
            return bytes(body)
        body += await reader.readexactly(size)
        await reader.readexactly(2)
