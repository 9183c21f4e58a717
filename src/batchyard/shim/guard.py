"""Watchdog process of batchyard's server: if the event loop is blocked, it logs the cause and answers HTTP clients.

The server's main thread reports its state in shared memory. While the thread is blocked, the watchdog logs a stack
trace, answers health checks on the server's own sockets, and asks other clients to retry. If the server is blocked at
shutdown, the watchdog kills it: all acknowledged writes are in the journal.
"""

import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from batchyard.shim.linux import format_time, monotonic, now

if TYPE_CHECKING:
    import ssl

#: The shared memory: the time of the thread's last progress, the time since which it handles a request (0 for none),
#: and the length of the request's text.
WATCHDOG_LAYOUT = struct.Struct("<ddH")
WATCHDOG_MEMORY_SIZE = 4096
#: Seconds after which a blocked server is logged, fails health checks, and is killed at shutdown.
BLOCKED_AFTER_SECONDS = 1.0
STUCK_AFTER_SECONDS = 10.0
KILLED_AFTER_SECONDS = 3.0
_CHECK_INTERVAL_SECONDS = 0.25
_RESPONSE_TIMEOUT_SECONDS = 1.0
_STACK_DUMP_SECONDS = 0.1
_REQUEST_HEAD_BYTES_MAX = 16 * 1024
_HEALTH_PATHS = ("/healthz", "/livez", "/readyz")
_TOO_MANY_BODY = (
    b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Too many requests, please try \
again later.","reason":"TooManyRequests","details":{"retryAfterSeconds":1},"code":429}'
)


class PlatformWatchdog:
    """The watchdog of one batchyard server process, with the server's shared memory and listening sockets."""

    def __init__(self, pid: int, alive_pipe: int, memory_fd: int, stacks_fd: int) -> None:
        """Prepare to watch the server process `pid`. SIGTERM to this process starts the server's shutdown time limit.

        `memory_fd` and `stacks_fd` are descriptors of the server's shared memory and file of stack traces. `alive_pipe`
        reaches its end when the server exits.
        """
        self._pid = pid
        self._alive_pipe = alive_pipe
        self._memory = mmap.mmap(memory_fd, WATCHDOG_MEMORY_SIZE, prot=mmap.PROT_READ)
        self._stacks = stacks_fd
        #: The file with the nanoseconds that the main thread ran and waited for a CPU. Source: Linux, sched-stats.rst.
        self._schedstat_path = f"/proc/{pid}/task/{pid}/schedstat"
        #: The time of the thread's last progress, and the seconds that it had waited for a CPU until then.
        self._last_progress, self._cpu_wait_at_progress = 0.0, 0.0
        self._stacks_offset = 0
        self.listeners: list[socket.socket] = []
        #: The file with the server's TLS certificate and key, loaded when first needed; '' without TLS.
        self.certificate = ""
        self._context: ssl.SSLContext | None = None
        self.is_json = False
        #: When termination was requested; 0 if it was not.
        self._terminating_since = 0.0
        self._is_reported = False
        signal.signal(signal.SIGTERM, self._handle_termination)

    def run(self) -> None:
        """Watch the server's process until it has ended."""
        while True:
            check_delay = 0.0 if self._is_reported else _CHECK_INTERVAL_SECONDS
            with suppress(InterruptedError):
                if select.select([self._alive_pipe], [], [], check_delay)[0]:
                    return
            self._check_event_loop()

    def _check_event_loop(self) -> None:
        last_progress_at, request_started_at, length = WATCHDOG_LAYOUT.unpack_from(self._memory)
        cpu_wait_seconds = self._read_cpu_wait_seconds()
        if last_progress_at != self._last_progress:
            self._last_progress, self._cpu_wait_at_progress = last_progress_at, cpu_wait_seconds
        blocked_seconds = monotonic() - last_progress_at - (cpu_wait_seconds - self._cpu_wait_at_progress)
        if (
            self._terminating_since
            and min(blocked_seconds, monotonic() - self._terminating_since) > KILLED_AFTER_SECONDS
        ):
            message = f"the platform did not shut down: its event loop has been blocked for {blocked_seconds:.1f} s"
            self._log(f"{message}; killing the process (all acknowledged writes are in the journal)")
            os.kill(self._pid, signal.SIGKILL)
            self._terminating_since = 0.0
        if blocked_seconds < BLOCKED_AFTER_SECONDS:
            self._is_reported = False
            return
        if not self._is_reported:
            self._is_reported = True
            request = self._memory[WATCHDOG_LAYOUT.size : WATCHDOG_LAYOUT.size + length].decode("utf-8", "replace")
            activity = request if request_started_at else "internal work"
            self._log(f"the event loop has been blocked for {blocked_seconds:.1f} s by {activity}", self._dump_stacks())
        self._answer_clients(blocked_seconds)

    def _read_cpu_wait_seconds(self) -> float:
        """Return the seconds that the server's main thread has waited for a CPU, which do not count as blocked."""
        with suppress(OSError, ValueError, IndexError), open(self._schedstat_path, "rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
        return 0.0

    def _handle_termination(self, *_: object) -> None:
        self._terminating_since = self._terminating_since or monotonic()

    def _dump_stacks(self) -> str:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGUSR2)
        select.select([self._alive_pipe], [], [], _STACK_DUMP_SECONDS)
        stack_traces = os.pread(self._stacks, 1 << 20, self._stacks_offset)
        self._stacks_offset += len(stack_traces)
        return stack_traces.decode("utf-8", "replace")

    def _log(self, message: str, stack: str = "") -> None:
        if self.is_json:
            record = {"time": format_time(now()), "level": "warning", "logger": "batchyard.guard", "message": message}
            line = json.dumps({**record, **({"stack": stack} if stack else {})})
        else:
            line = f"batchyard: {message}\n{stack}".rstrip()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def _answer_clients(self, blocked_seconds: float) -> None:
        awaited_files: list[int | socket.socket] = [self._alive_pipe, *self.listeners]
        if not select.select(awaited_files, [], [], _CHECK_INTERVAL_SECONDS)[0]:
            return
        for listener in self.listeners:
            with suppress(OSError):
                connection, _ = listener.accept()
                connection.settimeout(_RESPONSE_TIMEOUT_SECONDS)
                with connection:
                    self._answer_client(connection, blocked_seconds)

    def _answer_client(self, connection: socket.socket, blocked_seconds: float) -> None:
        if not self.certificate:
            connection.sendall(_response_while_blocked(_read_request_head(connection), blocked_seconds))
            return
        if self._context is None:
            self._context = _create_tls_context(self.certificate)
        with self._context.wrap_socket(connection, server_side=True) as secured:
            secured.sendall(_response_while_blocked(_read_request_head(secured), blocked_seconds))


def _create_tls_context(certificate_path: str) -> "ssl.SSLContext":
    import ssl  # noqa: PLC0415 - needs 5 MiB of memory, and only with TLS while blocked

    tls_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls_context.minimum_version = ssl.TLSVersion.TLSv1_2
    tls_context.load_cert_chain(certificate_path)
    return tls_context


def _read_request_head(connection: socket.socket) -> bytes:
    request_head = b""
    while b"\r\n\r\n" not in request_head and len(request_head) < _REQUEST_HEAD_BYTES_MAX:
        chunk = connection.recv(_REQUEST_HEAD_BYTES_MAX)
        if not chunk:
            break
        request_head += chunk
    return request_head


def _response_while_blocked(request_head: bytes, blocked_seconds: float) -> bytes:
    """Return the HTTP response to the request `request_head` (request line and headers) while the server is blocked.

    Health checks get 200, or 500 after a long time; all other requests get 429.
    """
    _, _, request_target = request_head.partition(b" ")
    path = request_target.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
    if not path.startswith(_HEALTH_PATHS):
        return _format_response("429 Too Many Requests", "application/json", _TOO_MANY_BODY, "retry-after: 1\r\n")
    if blocked_seconds < STUCK_AFTER_SECONDS:
        return _format_response("200 OK", "text/plain; charset=utf-8", b"ok")
    body = f"[-]event-loop failed: it has been blocked for {blocked_seconds:.0f} s\n".encode()
    return _format_response("500 Internal Server Error", "text/plain; charset=utf-8", body)


def _format_response(status: str, content_type: str, body: bytes, extra_headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n{extra_headers}"
    return f"{head}connection: close\r\n\r\n".encode() + body


def main(arguments: Sequence[str]) -> None:
    """Run the watchdog.

    The arguments are the server's pid and the descriptors of its pipe, shared memory and stack traces. After these come
    the log format, the certificate file, and the descriptors of the server's listening sockets.
    """
    pid, alive_pipe, memory_fd, stacks_fd, log_format, certificate, *listeners = arguments
    watchdog = PlatformWatchdog(int(pid), int(alive_pipe), int(memory_fd), int(stacks_fd))
    watchdog.is_json = log_format == "json"
    watchdog.listeners = [socket.socket(fileno=int(fd)) for fd in listeners]
    watchdog.certificate = certificate
    watchdog.run()


if __name__ == "__main__":
    main(sys.argv[1:])
