"""Serving of an embedded platform: sockets, TLS, watchdog, garbage collection, signals, and graceful shutdown."""

import asyncio
import errno
import faulthandler
import logging
import mmap
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.apiserver.request import MASTERS, ApiRequest
from batchyard.apiserver.server import no_audit
from batchyard.base.memory import collect, no_collections
from batchyard.server.clocks.wall import ticks, wall_clock
from batchyard.server.forecasting.service import ForecastFunctions
from batchyard.server.http.connections import Acceptor, Connections, server_context
from batchyard.server.http.flow_control import ResponseTurns
from batchyard.server.http.protocol import HEAD_WITHIN, HttpProtocol
from batchyard.server.logging.logs import AuditLog, JsonFormatter
from batchyard.server.platform.credentials import ADMIN, AUTHORITY, CertificateAuthority, kubeconfig
from batchyard.server.platform.data_dir import (
    KUBECONFIG,
    LOOPBACK,
    PlatformOptions,
    forget_state,
    write_private,
    write_state,
)
from batchyard.server.platform.platform import EmbeddedPlatform
from batchyard.shim.guard import LAYOUT, SIZE

# --- watchdog ---
#
# Platform side of the watchdog process (`shim/guard.py`): shares its heartbeats and current request with it.


_MODULE: Final = "batchyard.shim.guard"
_BEATS_EVERY: Final = 0.25  # seconds
#: Maximum bytes of the description of a request.
_NAMED_MAX: Final = 512


class LoopWatchdog:
    """The watchdog process of a platform, and the shared memory through which it gets heartbeats."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listeners: Sequence[socket.socket], certificate: Path | None
    ) -> None:
        self._loop = loop
        memory, self._stacks = os.memfd_create("guard"), os.memfd_create("stacks", 0)
        os.truncate(memory, SIZE)
        self._memory = mmap.mmap(memory, SIZE)
        reading, self._alive = os.pipe()
        faulthandler.register(signal.SIGUSR2, file=self._stacks)
        self._timer = loop.call_soon(self._beat)
        self._note(ticks(), 0.0, b"")
        files = (reading, memory, self._stacks, *(each.fileno() for each in listeners))
        names = (str(os.getpid()), *map(str, files[:3]), _form(), "" if certificate is None else str(certificate))
        self._process = subprocess.Popen(  # noqa: S603 - a fixed command
            [sys.executable, "-I", "-m", _MODULE, *names, *map(str, files[3:])],
            stdin=subprocess.DEVNULL,
            pass_fds=files,
            start_new_session=True,
        )
        os.close(reading)
        os.close(memory)

    @property
    def pid(self) -> int:
        """The pid of the watchdog process."""
        return self._process.pid

    def begin(self, request: ApiRequest) -> None:
        """Record the request in progress in the shared memory."""
        named = f"{request.method} {request.path} of {request.user.name}".encode("utf-8", "replace")[:_NAMED_MAX]
        began = ticks()
        self._note(began, began, named)

    def end(self) -> None:
        """Record in the shared memory that no request is in progress."""
        self._note(ticks(), 0.0, b"")

    def close(self) -> None:
        """Kill the watchdog process."""
        self._timer.cancel()
        faulthandler.unregister(signal.SIGUSR2)
        self._process.kill()
        self._process.wait()
        os.close(self._alive)
        os.close(self._stacks)

    def _beat(self) -> None:
        self._timer = self._loop.call_later(_BEATS_EVERY, self._beat)
        self._note(ticks(), 0.0, b"")

    def _note(self, seen: float, began: float, named: bytes) -> None:
        LAYOUT.pack_into(self._memory, 0, seen, began, len(named))
        self._memory[LAYOUT.size : LAYOUT.size + len(named)] = named


def _form() -> str:
    """Return the log format of this process, `json` or `text`, for the watchdog."""
    handlers = logging.getLogger().handlers
    return "json" if any(isinstance(handler.formatter, JsonFormatter) for handler in handlers) else "text"


# --- gc tuning ---
#
# Garbage collection of a long-running platform: full collections are rare and take less than a thousandth of the time.
#
# By default, Python's collector scans all recently created objects, which include the users' objects, and pauses the
# process. Under load this takes a tenth of the time, in pauses of seconds. Frequent operations of the platform leave no
# reference cycles, so rare collections suffice.


#: Seconds between collections; and the minimum interval, as a multiple of the duration of the last collection.
_EVERY: Final = 300.0
_TIMES: Final = 1000


class _CollectionTimer:
    """A timer that runs a full garbage collection periodically until it is stopped."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer = loop.call_later(_EVERY, self._look)

    def stop(self) -> None:
        """Cancel the timer of garbage collections."""
        self._timer.cancel()

    def _look(self) -> None:
        began = self._loop.time()
        collect()
        took = self._loop.time() - began
        self._timer = self._loop.call_later(max(_EVERY, _TIMES * took), self._look)


@contextmanager
def rarely_collected(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Replace Python's automatic garbage collections by rare ones while the context manager is entered."""
    with no_collections():
        looks = _CollectionTimer(loop)
        try:
            yield
        finally:
            looks.stop()


#: How long requests in progress may take to complete at shutdown.
REQUESTS_END_WITHIN: Final = 2  # seconds
#: The listen backlog: connections that wait to be accepted.
_BACKLOG: Final = 2048
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - an address that users may choose
_SERVER: Final = "server.pem"
#: The DNS names by which pods reach the platform, besides its address.
_NAMES_AMONG_PODS: Final = tuple(
    f"kubernetes{rest}" for rest in ("", ".default", ".default.svc", ".default.svc.cluster.local")
)
#: The interpreter's switch interval in seconds, for which the journal thread waits at most for the GIL. It needs the
#: GIL shortly, a dozen times for each transaction.
_TURN_WITHIN: Final = 0.0005


class PortError(Exception):
    """The platform cannot listen on the configured address or port. The message contains the reason and the remedy."""


async def serve(
    place: PlatformOptions,
    cluster: Obj | None,
    speed: float,
    ready: Callable[[str], None],
    foresight: ForecastFunctions | None = None,
) -> None:
    """Run an embedded platform until the process gets a signal. `ready` is called with its URL once it listens.

    `foresight` computes forecasts; without it the platform serves no forecasts.

    Raises PortError if it cannot listen, and JournalError if the journal cannot be opened or written.
    """
    audit_log = None if place.audit_log is None else AuditLog(place.audit_log)
    with _listener(place) as listener, nullcontext() if audit_log is None else closing(audit_log):
        embedded = EmbeddedPlatform(place, cluster, speed, no_audit if audit_log is None else audit_log.note, foresight)
        try:
            with rarely_collected(asyncio.get_running_loop()):
                await _serve_on(listener, place, embedded, ready)
        finally:
            await embedded.close()
    if embedded.failure is not None:
        raise embedded.failure


async def _serve_on(
    listener: socket.socket, place: PlatformOptions, embedded: EmbeddedPlatform, ready: Callable[[str], None]
) -> None:
    forget_state(place.folder)
    address, port = listener.getsockname()[:2]
    url = _url(place, port)
    # Without authentication every client has all permissions, so an insecure platform is not exposed to pods.
    among_pods = None if place.is_insecure else embedded.listener_among_pods()
    own = LOOPBACK if address in _EVERYWHERE else address
    embedded.reached_at(own, port, is_secure=not place.is_insecure, among_pods=among_pods[0] if among_pods else "")
    context = None if place.is_insecure else _secured(place, url, among_pods)
    listeners = [listener, *(among_pods[1:] if among_pods else ())]
    guard = LoopWatchdog(asyncio.get_running_loop(), listeners, None if context is None else place.folder / _SERVER)
    with closing(guard):
        await _answer(place, url, embedded, _Sockets(listeners, context), guard, ready)


async def _answer(
    place: PlatformOptions,
    url: str,
    embedded: EmbeddedPlatform,
    sockets: "_Sockets",
    guard: LoopWatchdog,
    ready: Callable[[str], None],
) -> None:
    """Serve requests until the process gets a signal, then complete the requests in progress."""
    answers, connections, ended = embedded.answers(guard), Connections(), asyncio.Event()
    _shut_down_on_signal(ended, embedded)
    loop = asyncio.get_running_loop()
    turns = ResponseTurns(loop)
    connect = partial(HttpProtocol, answers, connections, turns, is_secure=sockets.context is not None)
    _raise_file_limit()
    sys.setswitchinterval(_TURN_WITHIN)
    for each in sockets.listeners:
        each.listen(_BACKLOG)
    acceptors = [Acceptor(each, connect, sockets.context, HEAD_WITHIN) for each in sockets.listeners]
    write_state(place.folder, url, guard.pid)
    ready(url)
    await ended.wait()
    for acceptor in acceptors:
        acceptor.close()
    answers.end()
    await connections.end(REQUESTS_END_WITHIN)
    forget_state(place.folder)


class _Sockets(NamedTuple):
    """The listening sockets of a platform, and their common TLS context (None without TLS)."""

    listeners: Sequence[socket.socket]
    context: ssl.SSLContext | None


def _raise_file_limit() -> None:
    """Raise the process's limit of open files to the hard limit, because each connection needs a file descriptor."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _listener(place: PlatformOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in place.address else socket.AF_INET
    both = place.address in _EVERYWHERE and family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((place.address, place.port), family=family, dualstack_ipv6=both)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL or (error.errno or 0) < 0:  # negative: an error of getaddrinfo
            raise PortError(
                f"{place.address} is not an address of this machine; set another address with --listen"
            ) from error
        why = os.strerror(error.errno) if error.errno else str(error)
        message = f"cannot listen on port {place.port} of {place.address}: {why}"
        raise PortError(f"{message}; set another port with --port, or omit the option for any free port") from error


def _shut_down_on_signal(ended: asyncio.Event, embedded: EmbeddedPlatform) -> None:
    """Shut down on SIGTERM, SIGINT, SIGHUP or a journal failure. A second Ctrl-C kills the process at once."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        embedded.end_watches()
        ended.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup the signal stays ignored
        loop.add_signal_handler(signal.SIGHUP, end)
    embedded.on_failure = end


def _url(place: PlatformOptions, port: int) -> str:
    """Return the URL of the platform; it has the loopback address if the platform listens on all addresses."""
    host = LOOPBACK if place.address in _EVERYWHERE else place.address
    return f"{'http' if place.is_insecure else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"


def _secured(place: PlatformOptions, url: str, among_pods: tuple[str, socket.socket] | None) -> ssl.SSLContext:
    """Write a new server certificate and the owner's new kubeconfig, and return the server's TLS context."""
    authority = CertificateAuthority(place.folder, wall_clock())
    names = dict.fromkeys((place.address, LOOPBACK, "::1", "localhost", socket.gethostname()))
    names |= dict.fromkeys((among_pods[0], *_NAMES_AMONG_PODS) if among_pods else ())
    signed = authority.server([name for name in names if name not in _EVERYWHERE])
    write_private(place.folder / _SERVER, signed.certificate + signed.key)
    known = authority.certificate_file.read_bytes()
    admin = kubeconfig(url, known, ADMIN, authority.client(ADMIN, [MASTERS]))
    write_private(place.folder / KUBECONFIG, admin.encode())
    return server_context(str(place.folder / _SERVER), str(place.folder / AUTHORITY))
