"""Probes and lifecycle hooks of a container: runs their handlers, and evaluates the results of probes.

Each attempt may block, so it runs in a child of the shim. The messages are those of the kubelet (pkg/probe,
pkg/kubelet/lifecycle, the CRI client) and of Go's net packages, which the kubelet passes on.
"""

import errno
import json
import os
import select
import signal
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

from batchyard.shim import container_exec, linux
from batchyard.shim.container_exec import RunningContainer
from batchyard.shim.event_loop import ShimEventLoop
from batchyard.shim.run import ShimRun

# A gRPC health check sends one request of grpc.health.v1.Health over HTTP/2 (RFC 9113).
#
# Only the response's message is read, not its compressed headers. A response without a message is a failure.


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK, _PADDED = 0x1, 0x4, 0x1, 0x8
_STREAM_ID = 1
_VARINT_BYTES_MAX = 10
_HEALTH_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
SERVING = _HEALTH_STATUSES[1]


class NoAnswerError(OSError):
    """Raised when a gRPC server ends the health check without a response message."""


def check_grpc_health(connection: socket.socket, authority: str, service: str, user_agent: str) -> str:
    """Return the gRPC health status of a service ('': the whole server), such as `SERVING`.

    An unknown status is returned as the text of its number. Raises NoAnswerError or another OSError on failure, also
    for an invalid response.
    """
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/grpc.health.v1.Health/Check",
        ":authority": authority,
        "content-type": "application/grpc",
        "user-agent": user_agent,
        "te": "trailers",
    }
    header_block = b"".join(b"\0" + _encode_text(name) + _encode_text(value) for name, value in headers.items())
    name = service.encode()
    message = b"\x0a" + _encode_varint(len(name)) + name if name else b""
    request = _encode_frame(_SETTINGS, 0, 0, b"") + _encode_frame(_HEADERS, _END_HEADERS, _STREAM_ID, header_block)
    connection.sendall(_PREFACE + request + _encode_frame(_DATA, _END_STREAM, _STREAM_ID, _encode_message(message)))
    return _parse_health_status(_read_grpc_response(connection))


def _read_grpc_response(connection: socket.socket) -> bytes:
    response_body = b""
    while True:
        payload_length, kind, flags, stream = struct.unpack(">IBBI", b"\0" + _receive_exactly(connection, 9))
        payload = _receive_exactly(connection, payload_length)
        if kind in {_SETTINGS, _PING} and not flags & _ACK:
            connection.sendall(_encode_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        if kind == _DATA and stream == _STREAM_ID:
            response_body += _without_padding(payload) if flags & _PADDED else payload
            message_end = 5 + int.from_bytes(response_body[1:5], "big")
            if len(response_body) >= message_end:
                return response_body[5:message_end]
        is_end = stream == _STREAM_ID and (kind == _RST_STREAM or (flags & _END_STREAM and kind in {_DATA, _HEADERS}))
        if is_end or kind == _GOAWAY:
            raise NoAnswerError("the server has ended the request without an answer")


def _without_padding(payload: bytes) -> bytes:
    if not payload or payload[0] >= len(payload):
        raise OSError("the server has sent an invalid frame")
    return payload[1 : len(payload) - payload[0]]


def _parse_health_status(message: bytes) -> str:
    status_number = _decode_varint(message[1:]) if message[:1] == b"\x08" else 0
    return _HEALTH_STATUSES[status_number] if status_number < len(_HEALTH_STATUSES) else str(status_number)


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    received_data = b""
    while len(received_data) < size:
        data = connection.recv(size - len(received_data))
        if not data:
            raise NoAnswerError("EOF")
        received_data += data
    return received_data


def _encode_frame(frame_kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", frame_kind, flags, stream_id) + payload


def _encode_message(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def _encode_text(value: str) -> bytes:
    data = value.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    return b"\x7f" + _encode_varint(len(data) - 127) + data


def _encode_varint(number: int) -> bytes:
    encoded_bytes = b""
    while number > 127:
        encoded_bytes += bytes([number & 127 | 128])
        number >>= 7
    return encoded_bytes + bytes([number])


def _decode_varint(data: bytes) -> int:
    number = 0
    for index, byte in enumerate(data[:_VARINT_BYTES_MAX]):
        number |= (byte & 127) << 7 * index
        if byte < 128:
            return number
    raise OSError("grpc: failed to unmarshal the received message")


ProbeResultKind: TypeAlias = Literal["success", "warning", "failure", "unknown"]
_USER_AGENT = "kube-probe/1.36"
_BODY_BYTES_MAX = 10 * 1024
_REDIRECTS_MAX = 10
_REDIRECT_CODES = frozenset({301, 302, 303, 307, 308})


class ProbeOutcome(NamedTuple):
    """The result and output of one attempt of a probe or hook; `unknown` means that the attempt had no result."""

    result: ProbeResultKind
    text: str


def run_handler(handler: Mapping[str, Any], container: RunningContainer, timeout: float | None) -> ProbeOutcome:
    """Run the exec, httpGet, tcpSocket, grpc or sleep handler of a probe or hook; return the outcome.

    `timeout` is in seconds (None for no limit) and does not apply to sleep. This process may enter namespaces of the
    container or its network, which it cannot leave again.
    """
    if "exec" in handler:
        return _run_exec(handler["exec"].get("command") or [], container, timeout)
    if "sleep" in handler:
        select.select([], [], [], handler["sleep"]["seconds"])
        return ProbeOutcome("success", "")
    if container.network_fd is not None:
        linux.enter_namespaces(container.network_fd, linux.NEWNET)
    if "httpGet" in handler:
        return _run_http_check(handler["httpGet"], container.address, timeout)
    if "tcpSocket" in handler:
        action = handler["tcpSocket"]
        return _run_tcp_check(action.get("host") or container.address, int(action["port"]), timeout)
    if "grpc" in handler:
        action = handler["grpc"]
        return _run_grpc_check(container.address, int(action["port"]), action.get("service") or "", timeout)
    return ProbeOutcome("unknown", f"missing probe handler for {container.name}")


def _run_exec(argv: list[str], container: RunningContainer, timeout: float | None) -> ProbeOutcome:
    try:
        exit_code, output = container_exec.execute(argv, container, timeout)
    except (OSError, ValueError) as failure:
        return ProbeOutcome("unknown", str(failure))
    if exit_code is None:
        return ProbeOutcome("failure", f'command timed out: "{" ".join(argv)}" timed out after {timeout:g}s')
    return ProbeOutcome("failure" if exit_code else "success", output[:_BODY_BYTES_MAX].decode(errors="replace"))


def _run_tcp_check(host: str, port: int, timeout: float | None) -> ProbeOutcome:
    try:
        _open_connection(host, port, timeout).close()
    except TimeoutError:
        return ProbeOutcome("failure", f"dial tcp {_join_host_port(host, port)}: i/o timeout")
    except OSError as failure:
        return ProbeOutcome("failure", _describe_connect_error(host, port, failure))
    return ProbeOutcome("success", "")


def _run_grpc_check(host: str, port: int, service: str, timeout: float | None) -> ProbeOutcome:
    """Run the gRPC health check of a probe. The timeout covers the connection and the response."""
    deadline = None if timeout is None else linux.monotonic() + timeout
    address = _join_host_port(host, port)
    try:
        connection = _open_connection(host, port, timeout)
    except OSError:
        time_limit_text = f"within {timeout:g}s" if timeout is not None else "at all"
        message = f'timeout: failed to connect service "{address}" {time_limit_text}: context deadline exceeded'
        return ProbeOutcome("failure", message)
    with connection:
        try:
            connection.settimeout(_remaining_seconds(deadline))
            status = check_grpc_health(connection, address, service, _USER_AGENT)
        except TimeoutError:
            return ProbeOutcome("failure", f"timeout: health rpc did not complete within {timeout or 0:g}s")
        except OSError as failure:
            return ProbeOutcome("failure", f"error: health rpc probe failed: {failure}")
    if status != SERVING:
        return ProbeOutcome("failure", f'service unhealthy (responded with "{status}")')
    return ProbeOutcome("success", "service healthy")


def _run_http_check(http_get: Mapping[str, Any], address: str, timeout: float | None) -> ProbeOutcome:
    """Run an httpGet probe or hook, and follow redirects to the same host.

    A redirect to another host counts as success, with a warning.
    """
    host, port = http_get.get("host") or address, int(http_get["port"])
    scheme, path = (http_get.get("scheme") or "HTTP").lower(), "/" + (http_get.get("path") or "").removeprefix("/")
    deadline = None if timeout is None else linux.monotonic() + timeout
    url = f"{scheme}://{_join_host_port(host, port)}{path}"
    for _ in range(_REDIRECTS_MAX):
        try:
            code, headers, body = _send_http_get(scheme, host, port, path, http_get.get("httpHeaders") or [], deadline)
        except TimeoutError:
            text = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            return ProbeOutcome("failure", f'Get "{url}": {text}')
        except OSError as failure:
            return ProbeOutcome("failure", f'Get "{url}": {_describe_read_error(host, port, failure)}')
        redirect = _parse_location(headers.get("location", ""), scheme, host, port) if code in _REDIRECT_CODES else None
        if redirect is None or redirect[1] != host:
            return _evaluate_http_response(code, body)
        scheme, host, port, path = redirect
    return ProbeOutcome("failure", f'Get "{path}": stopped after {_REDIRECTS_MAX} redirects')


def _evaluate_http_response(status_code: int, body: str) -> ProbeOutcome:
    if 300 <= status_code < 400:
        return ProbeOutcome("warning", f"Probe terminated redirects, Response body: {body}")
    if 200 <= status_code < 300:
        return ProbeOutcome("success", body)
    return ProbeOutcome("failure", f"HTTP probe failed with statuscode: {status_code}")


def _send_http_get(
    scheme: str, host: str, port: int, path: str, headers: list[dict[str, str]], deadline: float | None
) -> tuple[int, dict[str, str], str]:
    defaults = {"Host": _join_host_port(host, port), "User-Agent": _USER_AGENT, "Accept": "*/*", "Connection": "close"}
    probe_headers = {header["name"].title(): header["value"] for header in headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in (defaults | probe_headers).items() if value)
    with _open_connection(host, port, _remaining_seconds(deadline)) as tcp_connection:
        connection = _wrap_tls(tcp_connection, host) if scheme == "https" else tcp_connection
        connection.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        response = b""
        while len(response) < 2 * _BODY_BYTES_MAX:
            connection.settimeout(_remaining_seconds(deadline))
            data = connection.recv(65536)
            response += data
            if not data or _is_response_complete(response):
                break
    response_head, _, body = response.partition(b"\r\n\r\n")
    status_line, *header_lines = response_head.decode("latin-1").split("\r\n")
    version, _, status = status_line.partition(" ")
    if not response:
        raise OSError("EOF")
    if not version.startswith("HTTP/") or not status[:3].isdigit():
        raise OSError(f'net/http: HTTP/1.x transport connection broken: malformed HTTP response "{status_line}"')
    header_pairs = (line.partition(":") for line in header_lines)
    response_headers = {name.strip().lower(): value.strip() for name, _, value in header_pairs}
    return int(status[:3]), response_headers, body[:_BODY_BYTES_MAX].decode(errors="replace")


def _open_connection(host: str, port: int, timeout: float | None) -> socket.socket:
    """Open a TCP connection to a host, encoded as bytes so that Python does not load the IDNA codec."""
    family, socket_kind, protocol, _, address = socket.getaddrinfo(host.encode(), port, 0, socket.SOCK_STREAM)[0]
    connection = socket.socket(family, socket_kind, protocol)
    try:
        connection.settimeout(timeout)
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _is_response_complete(response: bytes) -> bool:
    response_head, separator, body = response.partition(b"\r\n\r\n")
    for line in response_head.lower().split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name == b"content-length" and value.strip().isdigit():
            return bool(separator) and len(body) >= int(value)
    return response_head.split(b" ")[1:2] in ([b"204"], [b"304"]) and bool(separator)


def _wrap_tls(connection: socket.socket, host: str) -> socket.socket:
    """Wrap a connection in TLS without verifying the certificate, as the kubelet does for probes."""
    ssl = import_module("ssl")
    tls_context = ssl.create_default_context()
    tls_context.check_hostname = False
    tls_context.verify_mode = ssl.CERT_NONE
    tls_connection: socket.socket = tls_context.wrap_socket(connection, server_hostname=host)
    return tls_connection


def _parse_location(location: str, scheme: str, host: str, port: int) -> tuple[str, str, int, str] | None:
    if location.startswith("/") and not location.startswith("//"):
        return scheme, host, port, location
    target_scheme, separator, host_and_path = location.partition("://")
    if not separator:
        return None
    authority, _, path = host_and_path.partition("/")
    target_host, _, port_text = authority.partition(":")
    target_port = int(port_text) if port_text.isdigit() else 443 if target_scheme == "https" else 80
    return target_scheme, target_host, target_port, f"/{path}"


def _remaining_seconds(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    remaining_seconds = deadline - linux.monotonic()
    if remaining_seconds <= 0:
        raise TimeoutError
    return remaining_seconds


def _describe_read_error(host: str, port: int, failure: OSError) -> str:
    if failure.errno == errno.ECONNRESET:
        return "read: connection reset by peer"
    return _describe_connect_error(host, port, failure) if failure.errno else str(failure)


def _describe_connect_error(host: str, port: int, failure: OSError) -> str:
    if isinstance(failure, socket.gaierror):
        return f"dial tcp: lookup {host}: no such host"
    return f"dial tcp {_join_host_port(host, port)}: connect: {os.strerror(failure.errno or 0).lower()}"


def _join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# Attempts run in child processes, so that they do not block the shim.


#: Seconds from the timeout of an attempt until it is killed; in this time it can report the timeout itself.
_ATTEMPT_KILL_DELAY_SECONDS = 5.0
_LOST_ATTEMPT_OUTCOME = ProbeOutcome("unknown", "the attempt was ended")


class ProbeWorkers:
    """The child processes that run the probe and hook attempts of one container."""

    def __init__(self, run: ShimRun, loop: ShimEventLoop) -> None:
        self._run = run
        self._loop = loop
        self._children: dict[int, int] = {}

    def start(
        self,
        container: RunningContainer,
        handler: Mapping[str, Any],
        timeout_seconds: float | None,
        callback: Callable[[ProbeOutcome], None],
    ) -> None:
        """Run the handler of a probe or hook in a child process; call `callback` with the outcome.

        `timeout_seconds` is None for no timeout.
        """
        result_reader, result_writer = os.pipe2(os.O_CLOEXEC)
        child_pid = os.fork()
        if child_pid == 0:
            self._run_handler_in_child(container, handler, timeout_seconds, result_writer)
        os.close(result_writer)
        self._children[result_reader] = child_pid
        self._loop.when_readable(result_reader, partial(self._read_outcome, result_reader, b"", callback))
        if timeout_seconds is not None:
            self._loop.call_later(
                timeout_seconds + _ATTEMPT_KILL_DELAY_SECONDS, partial(self._kill, result_reader, child_pid)
            )

    def kill_attempts(self) -> None:
        """Kill all running attempts of probes and hooks."""
        for reader, child in list(self._children.items()):
            self._kill(reader, child)

    def _run_handler_in_child(
        self, container: RunningContainer, handler: Mapping[str, Any], timeout: float | None, writer: int
    ) -> NoReturn:
        try:
            linux.die_with_parent(signal.SIGKILL)
            linux.reset_signal_handlers()
            self._run.close_lock()
            outcome = run_handler(handler, container, timeout)
            os.write(writer, json.dumps(outcome).encode())
        except (OSError, ValueError, KeyError) as failure:
            os.write(writer, json.dumps(ProbeOutcome("unknown", repr(failure))).encode())
        finally:
            os._exit(0)

    def _read_outcome(self, reader: int, received_data: bytes, callback: Callable[[ProbeOutcome], None]) -> None:
        data = os.read(reader, 65536)
        if data:
            self._loop.when_readable(reader, partial(self._read_outcome, reader, received_data + data, callback))
            return
        self._loop.unregister(reader)
        os.close(reader)
        del self._children[reader]
        callback(ProbeOutcome(*json.loads(received_data)) if received_data else _LOST_ATTEMPT_OUTCOME)

    def _kill(self, result_reader: int, child_pid: int) -> None:
        if self._children.get(result_reader) == child_pid:
            with suppress(ProcessLookupError):
                os.kill(child_pid, signal.SIGKILL)


# Evaluation of startup, liveness and readiness probes, as in the kubelet (pkg/kubelet/prober/worker.go).
#
# A result takes effect when it occurred `successThreshold` or `failureThreshold` times in a row. The other probes wait
# for the startup probe. After a failure, a liveness or startup probe no longer runs.


_PROBE_ATTEMPTS_MAX = 3
_PROBE_NAMES = {"startup": "Startup", "liveness": "Liveness", "readiness": "Readiness"}

#: Starts a handler with a timeout in seconds, and calls back with its outcome.
StartAttempt: TypeAlias = Callable[[Mapping[str, Any], float | None, Callable[[ProbeOutcome], None]], None]


class ContainerHealth:
    """The probes of one container, and the fields `started` and `ready` of its status."""

    def __init__(
        self, probes: Mapping[str, Any], loop: ShimEventLoop, start_attempt: StartAttempt, callbacks: "ProbeCallbacks"
    ) -> None:
        self.started = "startup" not in probes
        self._is_ready = "readiness" not in probes
        self._callbacks = callbacks
        self._workers = {kind: _ProbeWorker(kind, probe, loop, start_attempt, self) for kind, probe in probes.items()}
        self._is_terminating = False

    @property
    def ready(self) -> bool:
        """Whether the container has started and its readiness probe, if any, succeeds."""
        return self.started and self._is_ready

    def start_probes(self) -> None:
        """Start the probes of the container, which now runs."""
        for worker in self._workers.values():
            worker.start()

    def stop_for_termination(self) -> None:
        """Stop the liveness and startup probes, because the container is terminating."""
        self._is_terminating = True

    def should_run(self, kind: str) -> bool:
        """Return whether the probe `kind` (startup, liveness or readiness) applies in the container's current state."""
        if kind == "startup":
            return not self.started and not self._is_terminating
        return self.started and not (kind == "liveness" and self._is_terminating)

    def warn(self, reason: str, message: str) -> None:
        """Report a warning of a probe, which the kubelet records as an Event."""
        self._callbacks.warn(reason, message)

    def apply_result(self, kind: str, has_succeeded: bool, message: str) -> bool:
        """Apply a probe result that has reached its threshold; return whether the probe continues."""
        if kind == "readiness":
            self._is_ready = has_succeeded
        elif not has_succeeded:
            self._callbacks.report_failure({"probe": kind, "message": message})
            return False
        elif kind == "startup":
            self.started = True
            if "readiness" in self._workers:
                self._workers["readiness"].run_attempt_early()
        self._callbacks.report_change()
        return True


class ProbeCallbacks:
    """The shim's reactions to probe results: callbacks for a warning, a failed probe, and a changed status."""

    def __init__(
        self,
        warn: Callable[[str, str], None],
        on_failure: Callable[[Mapping[str, str]], None],
        on_change: Callable[[], None],
    ) -> None:
        self.warn = warn
        self.report_failure = on_failure
        self.report_change = on_change


class _ProbeWorker:
    def __init__(
        self,
        kind: str,
        probe: Mapping[str, Any],
        loop: ShimEventLoop,
        start_attempt: StartAttempt,
        health: ContainerHealth,
    ) -> None:
        self._kind = kind
        self._probe = probe
        self._loop = loop
        self._start_attempt = start_attempt
        self._health = health
        self._last_result: bool | None = None
        self._equal_result_count = 0
        self._attempt_number = 0
        self._turn_number = 0

    def start(self) -> None:
        self._loop.call_later(self._probe.get("initialDelaySeconds", 0), partial(self._run_scheduled_attempt, 0))

    def run_attempt_early(self) -> None:
        """Run the probe now instead of at the end of its period, unless its initial delay has not ended."""
        if self._turn_number:
            self._run_scheduled_attempt(self._turn_number)

    def _run_scheduled_attempt(self, turn: int) -> None:
        """Run the probe if it applies now, else wait another period; do nothing if `turn` is outdated."""
        if turn != self._turn_number:
            return
        self._turn_number += 1
        if self._health.should_run(self._kind):
            self._attempt_number = 1
            self._start_attempt(self._probe, self._probe["timeoutSeconds"], self._handle_outcome)
        else:
            self._schedule_next_attempt()

    def _schedule_next_attempt(self) -> None:
        self._loop.call_later(self._probe["periodSeconds"], partial(self._run_scheduled_attempt, self._turn_number))

    def _handle_outcome(self, outcome: ProbeOutcome) -> None:
        """Count a probe attempt's outcome; an unknown one is retried at once, up to three attempts per period."""
        name = _PROBE_NAMES[self._kind]
        if outcome.result == "unknown":
            if self._attempt_number < _PROBE_ATTEMPTS_MAX:
                self._attempt_number += 1
                self._start_attempt(self._probe, self._probe["timeoutSeconds"], self._handle_outcome)
                return
            self._health.warn("Unhealthy", f"{name} probe errored and resulted in unknown state: {outcome.text}")
            self._schedule_next_attempt()
            return
        if outcome.result == "failure":
            self._health.warn("Unhealthy", f"{name} probe failed: {outcome.text}")
        elif outcome.result == "warning":
            self._health.warn("ProbeWarning", f"{name} probe warning: {outcome.text}")
        if self._count_probe_result(outcome.result != "failure", f"{name} probe failed: {outcome.text}"):
            self._schedule_next_attempt()

    def _count_probe_result(self, succeeded: bool, message: str) -> bool:
        """Count equal probe results in a row; apply the result at the threshold. Return whether the probe continues."""
        self._equal_result_count = self._equal_result_count + 1 if self._last_result == succeeded else 1
        self._last_result = succeeded
        threshold = self._probe["successThreshold" if succeeded else "failureThreshold"]
        return self._equal_result_count < threshold or self._health.apply_result(self._kind, succeeded, message)
