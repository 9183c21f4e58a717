"""Watchdog process of the platform: detects a blocked event loop, logs its cause, and answers requests meanwhile.

The platform's main thread reports its state in shared memory. While the thread is blocked, the watchdog logs a stack
trace, answers health checks on the platform's own sockets, and asks other clients to retry. If the platform is blocked
at shutdown, the watchdog kills it: all acknowledged writes are in the journal.
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

from batchyard.shim.linux import monotonic, now, text

if TYPE_CHECKING:
    import ssl

#: The shared memory: the time of the thread's last progress, the time since which it handles a request (0 for none),
#: and the length of the request's text.
LAYOUT = struct.Struct("<ddH")
SIZE = 4096
#: Seconds after which a thread counts as blocked, fails health checks, and is killed at shutdown.
BLOCKED_AFTER = 1.0
STUCK_AFTER = 10.0
KILLED_AFTER = 3.0
_LOOKS_EVERY = 0.25
_ANSWERED_WITHIN = 1.0
_STACK_WITHIN = 0.1
_HEAD_MAX = 16 * 1024
_HEALTH = ("/healthz", "/livez", "/readyz")
_BUSY = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Too many requests, please try \
again later.","reason":"TooManyRequests","details":{"retryAfterSeconds":1},"code":429}'


class PlatformWatchdog:
    """The watchdog of one platform process, with its shared memory and its listening sockets."""

    def __init__(self, pid: int, alive: int, memory: int, stacks: int) -> None:
        """`pid` is the platform's process, `alive` a pipe that it keeps open, `stacks` the file of stack traces."""
        self._pid = pid
        self._alive = alive
        self._memory = mmap.mmap(memory, SIZE, prot=mmap.PROT_READ)
        self._stacks = stacks
        #: The file with the nanoseconds that the main thread ran and waited for a CPU. Source: Linux, sched-stats.rst.
        self._statistics = f"/proc/{pid}/task/{pid}/schedstat"
        #: The time of the thread's last progress, and the seconds that it had waited for a CPU until then.
        self._seen, self._waited_then = 0.0, 0.0
        self._read_of_stacks = 0
        self.listeners: list[socket.socket] = []
        #: The file with the platform's TLS certificate and key, loaded when first needed; '' without TLS.
        self.certificate = ""
        self._context: ssl.SSLContext | None = None
        self.is_json = False
        #: When termination was requested; 0 if it was not.
        self._ending_since = 0.0
        self._is_reported = False
        signal.signal(signal.SIGTERM, self._end)

    def run(self) -> None:
        """Watch the platform's process until it has ended."""
        while True:
            waits = 0.0 if self._is_reported else _LOOKS_EVERY
            with suppress(InterruptedError):
                if select.select([self._alive], [], [], waits)[0]:
                    return
            self._look()

    def _look(self) -> None:
        """Check whether the thread is blocked; if so, log it, answer clients, or kill the platform at shutdown."""
        seen, began, length = LAYOUT.unpack_from(self._memory)
        waited = self._waited()
        if seen != self._seen:
            self._seen, self._waited_then = seen, waited
        silent = monotonic() - seen - (waited - self._waited_then)
        if self._ending_since and min(silent, monotonic() - self._ending_since) > KILLED_AFTER:
            message = f"the platform did not shut down: its event loop is blocked for {silent:.1f} s"
            self._log(f"{message}; killing the process (all acknowledged writes are in the journal)")
            os.kill(self._pid, signal.SIGKILL)
            self._ending_since = 0.0
        if silent < BLOCKED_AFTER:
            self._is_reported = False
            return
        if not self._is_reported:
            self._is_reported = True
            request = self._memory[LAYOUT.size : LAYOUT.size + length].decode("utf-8", "replace")
            doing = request if began else "internal work"
            self._log(f"the event loop is blocked for {silent:.1f} s by {doing}", self._stack())
        self._answer(silent)

    def _waited(self) -> float:
        """Return the seconds that the thread has waited for a CPU, in which it does not count as blocked."""
        with suppress(OSError, ValueError, IndexError), open(self._statistics, "rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
        return 0.0

    def _end(self, *_: object) -> None:
        """Handle SIGTERM: record when termination was requested."""
        self._ending_since = self._ending_since or monotonic()

    def _stack(self) -> str:
        """Return the stack traces of the platform's threads, which it writes on SIGUSR2 even while blocked."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGUSR2)
        select.select([self._alive], [], [], _STACK_WITHIN)
        found = os.pread(self._stacks, 1 << 20, self._read_of_stacks)
        self._read_of_stacks += len(found)
        return found.decode("utf-8", "replace")

    def _log(self, message: str, stack: str = "") -> None:
        """Log a warning in the platform's log format."""
        if self.is_json:
            record = {"time": text(now()), "level": "warning", "logger": "batchyard.guard", "message": message}
            line = json.dumps({**record, **({"stack": stack} if stack else {})})
        else:
            line = f"batchyard: {message}\n{stack}".rstrip()
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    def _answer(self, silent: float) -> None:
        """Answer one client per listening socket while the thread is blocked."""
        waited: list[int | socket.socket] = [self._alive, *self.listeners]
        if not select.select(waited, [], [], _LOOKS_EVERY)[0]:
            return
        for listener in self.listeners:
            with suppress(OSError):
                connection, _ = listener.accept()
                connection.settimeout(_ANSWERED_WITHIN)
                with connection:
                    self._converse(connection, silent)

    def _converse(self, connection: socket.socket, silent: float) -> None:
        if not self.certificate:
            connection.sendall(_answer_to(_head(connection), silent))
            return
        if self._context is None:
            self._context = _context(self.certificate)
        with self._context.wrap_socket(connection, server_side=True) as secured:
            secured.sendall(_answer_to(_head(secured), silent))


def _context(certificate: str) -> "ssl.SSLContext":
    import ssl  # noqa: PLC0415 - needs 5 MiB of memory, and only with TLS while blocked

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate)
    return context


def _head(connection: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and len(head) < _HEAD_MAX:
        part = connection.recv(_HEAD_MAX)
        if not part:
            break
        head += part
    return head


def _answer_to(head: bytes, silent: float) -> bytes:
    """Return the HTTP response to a request (`head` is its first line and headers) while the thread is blocked."""
    _, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
    if not path.startswith(_HEALTH):
        return _response("429 Too Many Requests", "application/json", _BUSY, "retry-after: 1\r\n")
    if silent < STUCK_AFTER:
        return _response("200 OK", "text/plain; charset=utf-8", b"ok")
    body = f"[-]event-loop failed: it is blocked for {silent:.0f} s\n".encode()
    return _response("500 Internal Server Error", "text/plain; charset=utf-8", body)


def _response(status: str, content_type: str, body: bytes, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n{more}"
    return f"{head}connection: close\r\n\r\n".encode() + body


def main(arguments: Sequence[str]) -> None:
    """Run the watchdog. Arguments: pid, three descriptors, log format, certificate file, and socket descriptors."""
    pid, alive, memory, stacks, form, certificate, *listeners = arguments
    guard = PlatformWatchdog(int(pid), int(alive), int(memory), int(stacks))
    guard.is_json = form == "json"
    guard.listeners = [socket.socket(fileno=int(each)) for each in listeners]
    guard.certificate = certificate
    guard.run()


if __name__ == "__main__":
    main(sys.argv[1:])
