"""Probes and lifecycle hooks of a container: the handlers, their execution, and the evaluation of probe results.

Each attempt runs in a child of the shim, which may block. The messages are those of the kubelet (pkg/probe,
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
from batchyard.shim.event_loop import Loop
from batchyard.shim.run import ShimRun

# --- grpc health ---
# A gRPC health check sends one request of grpc.health.v1.Health over HTTP/2 (RFC 9113).
#
# Only the response's message is read, not its compressed headers. A response without a message is a failure.


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK, _PADDED = 0x1, 0x4, 0x1, 0x8
_STREAM = 1
_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
SERVING = _STATUSES[1]


class NoAnswerError(OSError):
    """Raised when a gRPC server ends the health check without a response message."""


def check(connection: socket.socket, authority: str, service: str, agent: str) -> str:
    """Request the gRPC health status of a service ('' for the whole server). NoAnswerError, TimeoutError, OSError."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/grpc.health.v1.Health/Check",
        ":authority": authority,
        "content-type": "application/grpc",
        "user-agent": agent,
        "te": "trailers",
    }
    fields = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
    name = service.encode()
    message = b"\x0a" + _varint(len(name)) + name if name else b""
    request = _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS, _STREAM, fields)
    connection.sendall(_PREFACE + request + _frame(_DATA, _END_STREAM, _STREAM, _message(message)))
    return _status(_answer(connection))


def _answer(connection: socket.socket) -> bytes:
    """Read HTTP/2 frames until the response message is complete; return the message."""
    body = b""
    while True:
        length, kind, flags, stream = struct.unpack(">IBBI", b"\0" + _exactly(connection, 9))
        payload = _exactly(connection, length)
        if kind in {_SETTINGS, _PING} and not flags & _ACK:
            connection.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        if kind == _DATA and stream == _STREAM:
            body += payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
            if len(body) >= 5 and len(body) - 5 >= int.from_bytes(body[1:5], "big"):
                return body[5:]
        is_over = stream == _STREAM and (kind == _RST_STREAM or (flags & _END_STREAM and kind in {_DATA, _HEADERS}))
        if is_over or kind == _GOAWAY:
            raise NoAnswerError("the server has ended the request without an answer")


def _status(message: bytes) -> str:
    """Return the field `status` of an encoded HealthCheckResponse."""
    number = message[1] if message[:1] == b"\x08" else 0
    return _STATUSES[number] if number < len(_STATUSES) else str(number)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        data = connection.recv(size - len(found))
        if not data:
            raise NoAnswerError("EOF")
        found += data
    return found


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _message(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def _text(value: str) -> bytes:
    """Encode a string for HPACK (HTTP/2 headers) without compression."""
    data = value.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    return b"\x7f" + _varint(len(data) - 127) + data


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])


Result: TypeAlias = Literal["success", "warning", "failure", "unknown"]
_AGENT = "kube-probe/1.32"
_BODY_BYTES = 10 * 1024
_REDIRECTS_MAX = 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class ProbeOutcome(NamedTuple):
    """The result of a probe or hook attempt, and its output; `unknown` means that the attempt could not be made."""

    result: Result
    text: str


def run_handler(handler: Mapping[str, Any], container: RunningContainer, timeout: float | None) -> ProbeOutcome:
    """Run an exec, httpGet, tcpSocket, grpc or sleep handler. `timeout` is in seconds, None for no limit."""
    if "exec" in handler:
        return _execute(handler["exec"].get("command") or [], container, timeout)
    if "sleep" in handler:
        select.select([], [], [], handler["sleep"]["seconds"])
        return ProbeOutcome("success", "")
    if container.network is not None:
        linux.enter(container.network, linux.NEWNET)
    if "httpGet" in handler:
        return _get(handler["httpGet"], container.address, timeout)
    if "tcpSocket" in handler:
        action = handler["tcpSocket"]
        return _connect(action.get("host") or container.address, int(action["port"]), timeout)
    if "grpc" in handler:
        action = handler["grpc"]
        return _check(container.address, int(action["port"]), action.get("service") or "", timeout)
    return ProbeOutcome("unknown", f"missing probe handler for {container.name}")


def _execute(argv: list[str], container: RunningContainer, timeout: float | None) -> ProbeOutcome:
    try:
        code, output = container_exec.execute(argv, container, timeout)
    except (OSError, ValueError) as failure:
        return ProbeOutcome("unknown", str(failure))
    if code is None:
        return ProbeOutcome("failure", f'command timed out: "{" ".join(argv)}" timed out after {timeout:g}s')
    return ProbeOutcome("failure" if code else "success", output[:_BODY_BYTES].decode(errors="replace"))


def _connect(host: str, port: int, timeout: float | None) -> ProbeOutcome:
    try:
        _connection(host, port, timeout).close()
    except TimeoutError:
        return ProbeOutcome("failure", f"dial tcp {_joined(host, port)}: i/o timeout")
    except OSError as failure:
        return ProbeOutcome("failure", _not_connected(host, port, failure))
    return ProbeOutcome("success", "")


def _check(host: str, port: int, service: str, timeout: float | None) -> ProbeOutcome:
    """Run a gRPC health check. The timeout covers the connection and the response."""
    end = None if timeout is None else linux.monotonic() + timeout
    place = _joined(host, port)
    try:
        connection = _connection(host, port, timeout)
    except OSError:
        within = f"within {timeout:g}s" if timeout is not None else "at all"
        return ProbeOutcome(
            "failure", f'timeout: failed to connect service "{place}" {within}: context deadline exceeded'
        )
    with connection:
        try:
            connection.settimeout(_left(end))
            status = check(connection, place, service, _AGENT)
        except TimeoutError:
            return ProbeOutcome("failure", f"timeout: health rpc did not complete within {timeout or 0:g}s")
        except OSError as failure:
            return ProbeOutcome("failure", f"error: health rpc probe failed: {failure}")
    if status != SERVING:
        return ProbeOutcome("failure", f'service unhealthy (responded with "{status}")')
    return ProbeOutcome("success", "service healthy")


def _get(action: Mapping[str, Any], address: str, timeout: float | None) -> ProbeOutcome:
    """Run an HTTP check. Redirects to the same host are followed; other redirects succeed with a warning."""
    host, port = action.get("host") or address, int(action["port"])
    scheme, path = (action.get("scheme") or "HTTP").lower(), "/" + (action.get("path") or "").removeprefix("/")
    end = None if timeout is None else linux.monotonic() + timeout
    first = f"{scheme}://{_joined(host, port)}{path}"
    for _ in range(_REDIRECTS_MAX):
        try:
            code, headers, body = _ask(scheme, host, port, path, action.get("httpHeaders") or [], end)
        except TimeoutError:
            text = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            return ProbeOutcome("failure", f'Get "{first}": {text}')
        except OSError as failure:
            return ProbeOutcome("failure", f'Get "{first}": {_not_answered(host, port, failure)}')
        target = _target(headers.get("location", ""), scheme, host, port) if code in _REDIRECTS else None
        if target is None or target[1] != host:
            return _answered(code, body)
        scheme, host, port, path = target
    return ProbeOutcome("failure", f'Get "{path}": stopped after {_REDIRECTS_MAX} redirects')


def _answered(code: int, body: str) -> ProbeOutcome:
    if 300 <= code < 400:
        return ProbeOutcome("warning", f"Probe terminated redirects, Response body: {body}")
    if 200 <= code < 300:
        return ProbeOutcome("success", body)
    return ProbeOutcome("failure", f"HTTP probe failed with statuscode: {code}")


def _ask(
    scheme: str, host: str, port: int, path: str, headers: list[dict[str, str]], end: float | None
) -> tuple[int, dict[str, str], str]:
    """Send a GET request; return status code, headers and body of the response. TimeoutError, OSError on failure."""
    default = {"Host": _joined(host, port), "User-Agent": _AGENT, "Accept": "*/*", "Connection": "close"}
    given = {header["name"].title(): header["value"] for header in headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in (default | given).items() if value)
    with _connection(host, port, _left(end)) as plain:
        connection = _encrypted(plain, host) if scheme == "https" else plain
        connection.sendall(f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode())
        answer = b""
        while len(answer) < 2 * _BODY_BYTES:
            connection.settimeout(_left(end))
            data = connection.recv(65536)
            answer += data
            if not data or _is_whole(answer):
                break
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    if not answer:
        raise OSError("EOF")
    if not version.startswith("HTTP/") or not status[:3].isdigit():
        raise OSError(f'net/http: HTTP/1.x transport connection broken: malformed HTTP response "{first}"')
    pairs = (line.partition(":") for line in rest)
    named = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return int(status[:3]), named, body[:_BODY_BYTES].decode(errors="replace")


def _connection(host: str, port: int, timeout: float | None) -> socket.socket:
    """Open a TCP connection to a host, passed to getaddrinfo as bytes to avoid loading the IDNA codec."""
    family, kind, number, _, address = socket.getaddrinfo(host.encode(), port, 0, socket.SOCK_STREAM)[0]
    connection = socket.socket(family, kind, number)
    try:
        connection.settimeout(timeout)
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def _is_whole(answer: bytes) -> bool:
    """Report whether an HTTP response is complete according to its Content-Length or its status code."""
    head, found, body = answer.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name == b"content-length" and value.strip().isdigit():
            return bool(found) and len(body) >= int(value)
    return head.split(b" ")[1:2] in ([b"204"], [b"304"]) and bool(found)


def _encrypted(plain: socket.socket, host: str) -> socket.socket:
    """Wrap a connection in TLS without verifying the certificate, as the kubelet does for probes."""
    ssl = import_module("ssl")
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    wrapped: socket.socket = context.wrap_socket(plain, server_hostname=host)
    return wrapped


def _target(location: str, scheme: str, host: str, port: int) -> tuple[str, str, int, str] | None:
    """Return the scheme, host, port and path of a redirect's Location header; None if it is malformed."""
    if location.startswith("/") and not location.startswith("//"):
        return scheme, host, port, location
    named, found, rest = location.partition("://")
    if not found:
        return None
    place, _, path = rest.partition("/")
    name, _, number = place.partition(":")
    return named, name, int(number) if number.isdigit() else 443 if named == "https" else 80, f"/{path}"


def _left(end: float | None) -> float | None:
    if end is None:
        return None
    left = end - linux.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _not_answered(host: str, port: int, failure: OSError) -> str:
    if failure.errno == errno.ECONNRESET:
        return "read: connection reset by peer"
    return _not_connected(host, port, failure) if failure.errno else str(failure)


def _not_connected(host: str, port: int, failure: OSError) -> str:
    if isinstance(failure, socket.gaierror):
        return f"dial tcp: lookup {host}: no such host"
    return f"dial tcp {_joined(host, port)}: connect: {os.strerror(failure.errno or 0).lower()}"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# --- probe workers ---
# Attempts run in child processes, so that they do not block the shim.


#: Seconds after its timeout in which an attempt can report the timeout itself before it is killed.
_SLACK_SECONDS = 5.0
_LOST = ProbeOutcome("unknown", "the attempt was ended")


class ProbeWorkers:
    """The child processes that run probe and hook attempts for one container run."""

    def __init__(self, run: ShimRun, loop: Loop) -> None:
        self._run = run
        self._loop = loop
        self._children: dict[int, int] = {}

    def start(
        self,
        container: RunningContainer,
        handler: Mapping[str, Any],
        timeout: float | None,
        done: Callable[[ProbeOutcome], None],
    ) -> None:
        """Start a handler in a child process; call `done` with its outcome."""
        reads, writes = os.pipe2(os.O_CLOEXEC)
        child = os.fork()
        if child == 0:
            self._be(container, handler, timeout, writes)
        os.close(writes)
        self._children[reads] = child
        self._loop.when_readable(reads, partial(self._take, reads, b"", done))
        if timeout is not None:
            self._loop.after(timeout + _SLACK_SECONDS, partial(self._kill, reads, child))

    def end(self) -> None:
        """Kill all running attempts."""
        for reads, child in list(self._children.items()):
            self._kill(reads, child)

    def _be(
        self, container: RunningContainer, handler: Mapping[str, Any], timeout: float | None, writes: int
    ) -> NoReturn:
        """In the child process: run the handler and write its outcome to the pipe."""
        try:
            linux.die_with_parent(signal.SIGKILL)
            linux.default_signals()
            self._run.release()
            outcome = run_handler(handler, container, timeout)
            os.write(writes, json.dumps(outcome).encode())
        except (OSError, ValueError, KeyError) as failure:
            os.write(writes, json.dumps(ProbeOutcome("unknown", repr(failure))).encode())
        finally:
            os._exit(0)

    def _take(self, reads: int, before: bytes, done: Callable[[ProbeOutcome], None]) -> None:
        data = os.read(reads, 65536)
        if data:
            self._loop.when_readable(reads, partial(self._take, reads, before + data, done))
            return
        self._loop.forget(reads)
        os.close(reads)
        del self._children[reads]
        done(ProbeOutcome(*json.loads(before)) if before else _LOST)

    def _kill(self, reads: int, child: int) -> None:
        if self._children.get(reads) == child:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


# --- health ---
#
# Evaluation of startup, liveness and readiness probes, as in the kubelet (pkg/kubelet/prober/worker.go).
#
# A result takes effect when it occurred `successThreshold` or `failureThreshold` times in a row. The other probes wait
# for the startup probe. After a failure, a liveness or startup probe does not run any more.


_ATTEMPTS = 3
_KINDS = {"startup": "Startup", "liveness": "Liveness", "readiness": "Readiness"}

#: Starts a handler with a timeout in seconds, and calls back with its outcome.
StartAttempt: TypeAlias = Callable[[Mapping[str, Any], float | None, Callable[[ProbeOutcome], None]], None]


class Health:
    """The probes of one container run; `started` and `ready` are fields of the container's status."""

    def __init__(self, probes: Mapping[str, Any], loop: Loop, attempt: StartAttempt, report: "ProbeCallbacks") -> None:
        self.started = "startup" not in probes
        self._is_ready = "readiness" not in probes
        self._report = report
        self._workers = {kind: _Worker(kind, probe, loop, attempt, self) for kind, probe in probes.items()}
        self._leaving = False

    @property
    def ready(self) -> bool:
        """Whether the container has started and its readiness probe, if any, has succeeded."""
        return self.started and self._is_ready

    def begin(self) -> None:
        """Start the probes, when the container runs."""
        for worker in self._workers.values():
            worker.begin()

    def leave(self) -> None:
        """Stop the liveness and startup probes, when the container is terminating."""
        self._leaving = True

    def wants(self, kind: str) -> bool:
        """Report whether the probe of a kind should run now."""
        if kind == "startup":
            return not self.started and not self._leaving
        return self.started and not (kind == "liveness" and self._leaving)

    def warn(self, reason: str, message: str) -> None:
        """Report a warning of a probe, which the kubelet records as an Event."""
        self._report.warn(reason, message)

    def take(self, kind: str, succeeded: bool, message: str) -> bool:
        """Apply a probe result that has reached its threshold; return whether the probe continues."""
        if kind == "readiness":
            self._is_ready = succeeded
        elif not succeeded:
            self._report.failed({"probe": kind, "message": message})
            return False
        elif kind == "startup":
            self.started = True
            if "readiness" in self._workers:
                self._workers["readiness"].hurry()
        self._report.changed()
        return True


class ProbeCallbacks:
    """The callbacks of the shim for probe results: a warning, a failed probe, and a changed status."""

    def __init__(
        self,
        warn: Callable[[str, str], None],
        failed: Callable[[Mapping[str, str]], None],
        changed: Callable[[], None],
    ) -> None:
        self.warn = warn
        self.failed = failed
        self.changed = changed


class _Worker:
    """One probe of a container, with its timer and its number of equal results in a row."""

    def __init__(self, kind: str, probe: Mapping[str, Any], loop: Loop, attempt: StartAttempt, health: Health) -> None:
        self._kind = kind
        self._probe = probe
        self._loop = loop
        self._attempt = attempt
        self._health = health
        self._last: bool | None = None
        self._in_a_row = 0
        self._tries = 0
        self._turns = 0

    def begin(self) -> None:
        self._loop.after(self._probe.get("initialDelaySeconds", 0), partial(self._turn, 0))

    def hurry(self) -> None:
        """Run the probe now instead of after its period, unless its initial delay has not ended."""
        if self._turns:
            self._turn(self._turns)

    def _turn(self, turn: int) -> None:
        """Run the probe if it should run now; otherwise schedule the next turn after the period."""
        if turn != self._turns:
            return
        self._turns += 1
        if self._health.wants(self._kind):
            self._tries = 1
            self._attempt(self._probe, self._probe["timeoutSeconds"], self._take)
        else:
            self._again()

    def _again(self) -> None:
        self._loop.after(self._probe["periodSeconds"], partial(self._turn, self._turns))

    def _take(self, outcome: ProbeOutcome) -> None:
        """Handle the outcome of an attempt; an unknown outcome is retried up to three times and then ignored."""
        name = _KINDS[self._kind]
        if outcome.result == "unknown":
            if self._tries < _ATTEMPTS:
                self._tries += 1
                self._attempt(self._probe, self._probe["timeoutSeconds"], self._take)
                return
            self._health.warn("Unhealthy", f"{name} probe errored and resulted in unknown state: {outcome.text}")
            self._again()
            return
        if outcome.result == "failure":
            self._health.warn("Unhealthy", f"{name} probe failed: {outcome.text}")
        elif outcome.result == "warning":
            self._health.warn("ProbeWarning", f"{name} probe warning: {outcome.text}")
        if self._count(outcome.result != "failure", f"{name} probe failed: {outcome.text}"):
            self._again()

    def _count(self, succeeded: bool, message: str) -> bool:
        """Count a result, and apply it at its threshold; return whether the probe continues."""
        self._in_a_row = self._in_a_row + 1 if self._last == succeeded else 1
        self._last = succeeded
        threshold = self._probe["successThreshold" if succeeded else "failureThreshold"]
        return self._in_a_row < threshold or self._health.take(self._kind, succeeded, message)
