"""Runs a platform (`batchyard up`): sockets, TLS, watchdog process, garbage collection, signals, and shutdown."""

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
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from batchyard.api.meta import Obj
from batchyard.apiserver.request import MASTERS_GROUP, ApiRequest
from batchyard.apiserver.server import discard_audit
from batchyard.base.primitives import collect_garbage, no_garbage_collection
from batchyard.server.clocks.wall import monotonic_seconds, wall_clock
from batchyard.server.forecasting.service import ForecastFunctions
from batchyard.server.http.connections import Acceptor, Connections, server_tls_context
from batchyard.server.http.flow_control import ResponseTurns
from batchyard.server.http.protocol import HEAD_TIMEOUT, HttpProtocol
from batchyard.server.logging.logs import AuditLog, JsonFormatter
from batchyard.server.platform import data_dir
from batchyard.server.platform.credentials import ADMIN_USER, CA_FILE, CertificateAuthority, kubeconfig_text
from batchyard.server.platform.platform import EmbeddedPlatform
from batchyard.shim.guard import WATCHDOG_LAYOUT, WATCHDOG_MEMORY_SIZE
from batchyard.store.journal_file import StandbyLostError

if TYPE_CHECKING:
    from batchyard.server.archive.process import ArchiverProcess
    from batchyard.server.platform.authentication import ExternalTokenAuthenticator

# Platform side of the watchdog process (`shim/guard.py`): shares its heartbeats and current request with it.


_WATCHDOG_MODULE: Final = "batchyard.shim.guard"
_HEARTBEAT_INTERVAL: Final = 0.25  # seconds
#: Maximum bytes of the description of a request.
_DESCRIPTION_SIZE_MAX: Final = 512


class LoopWatchdog:
    """The watchdog process of a platform, with the shared memory through which the platform sends it heartbeats."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, listeners: Sequence[socket.socket], certificate: Path | None
    ) -> None:
        self._loop = loop
        memory_fd, self._stacks_fd = os.memfd_create("guard"), os.memfd_create("stacks", 0)
        os.truncate(memory_fd, WATCHDOG_MEMORY_SIZE)
        self._shared_memory = mmap.mmap(memory_fd, WATCHDOG_MEMORY_SIZE)
        alive_read_fd, self._alive_fd = os.pipe()
        faulthandler.register(signal.SIGUSR2, file=self._stacks_fd)
        self._timer = loop.call_soon(self._send_heartbeat)
        self._write_heartbeat(monotonic_seconds(), 0.0, b"")
        fds = (alive_read_fd, memory_fd, self._stacks_fd, *(listener.fileno() for listener in listeners))
        watchdog_arguments = (
            str(os.getpid()),
            *map(str, fds[:3]),
            _log_format(),
            "" if certificate is None else str(certificate),
        )
        self._process = subprocess.Popen(  # noqa: S603 - a fixed command
            [sys.executable, "-I", "-m", _WATCHDOG_MODULE, *watchdog_arguments, *map(str, fds[3:])],
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            start_new_session=True,
        )
        os.close(alive_read_fd)
        os.close(memory_fd)

    @property
    def pid(self) -> int:
        """The pid of the watchdog process."""
        return self._process.pid

    def begin(self, request: ApiRequest) -> None:
        """Write a description of the request that is now executed to the memory shared with the watchdog."""
        request_description = f"{request.method} {request.path} of {request.user.name}".encode("utf-8", "replace")
        began_at = monotonic_seconds()
        self._write_heartbeat(began_at, began_at, request_description[:_DESCRIPTION_SIZE_MAX])

    def end(self) -> None:
        """Record in the memory shared with the watchdog that no request is executed now."""
        self._write_heartbeat(monotonic_seconds(), 0.0, b"")

    def close(self) -> None:
        """Kill the watchdog process."""
        self._timer.cancel()
        faulthandler.unregister(signal.SIGUSR2)
        self._process.kill()
        self._process.wait()
        os.close(self._alive_fd)
        os.close(self._stacks_fd)

    def _send_heartbeat(self) -> None:
        self._timer = self._loop.call_later(_HEARTBEAT_INTERVAL, self._send_heartbeat)
        self._write_heartbeat(monotonic_seconds(), 0.0, b"")

    def _write_heartbeat(self, heartbeat_at: float, request_began_at: float, description: bytes) -> None:
        WATCHDOG_LAYOUT.pack_into(self._shared_memory, 0, heartbeat_at, request_began_at, len(description))
        self._shared_memory[WATCHDOG_LAYOUT.size : WATCHDOG_LAYOUT.size + len(description)] = description


def _log_format() -> str:
    handlers = logging.getLogger().handlers
    return "json" if any(isinstance(handler.formatter, JsonFormatter) for handler in handlers) else "text"


# Garbage collection of a long-running platform: full collections are rare and take less than a thousandth of the time.
#
# By default, Python's collector scans all recently created objects, which include the users' objects, and pauses the
# process. Under load this takes a tenth of the time, in pauses of seconds. Frequent operations of the platform leave no
# reference cycles, so rare collections suffice.


#: Seconds between collections; and the minimum interval, as a multiple of the duration of the last collection.
_COLLECTION_INTERVAL: Final = 300.0
_INTERVAL_FACTOR: Final = 1000


class _GarbageCollectionTimer:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer = loop.call_later(_COLLECTION_INTERVAL, self._collect)

    def stop(self) -> None:
        self._timer.cancel()

    def _collect(self) -> None:
        began_at = self._loop.time()
        collect_garbage()
        duration = self._loop.time() - began_at
        self._timer = self._loop.call_later(max(_COLLECTION_INTERVAL, _INTERVAL_FACTOR * duration), self._collect)


@contextmanager
def rare_garbage_collections(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Replace Python's automatic garbage collections by rare ones within the `with` block."""
    with no_garbage_collection():
        collection_timer = _GarbageCollectionTimer(loop)
        try:
            yield
        finally:
            collection_timer.stop()


#: How long requests in progress may take to complete at shutdown.
REQUESTS_END_TIMEOUT: Final = 2  # seconds
#: The listen backlog: connections that wait to be accepted.
_LISTEN_BACKLOG: Final = 2048
_ALL_ADDRESSES: Final = ("0.0.0.0", "::")  # noqa: S104 - an address that users may choose
_SERVER_CERTIFICATE: Final = "server.pem"
#: The DNS names by which pods reach the platform, besides its address.
_API_HOSTS: Final = tuple(f"kubernetes{end}" for end in ("", ".default", ".default.svc", ".default.svc.cluster.local"))
#: The interpreter's switch interval in seconds. The journal thread needs the GIL about a dozen times per transaction.
_THREAD_SWITCH_INTERVAL: Final = 0.0005


class PortError(Exception):
    """The platform cannot listen on the configured address or port. The message contains the reason and the remedy."""


async def serve_platform(
    options: data_dir.PlatformOptions,
    cluster: Obj | None,
    speed: float,
    on_ready: Callable[[str], None],
    forecast_functions: ForecastFunctions | None = None,
) -> None:
    """Run an embedded platform until the process gets a termination signal or the journal fails.

    `on_ready` is called with the platform's URL once the platform listens. Without `forecast_functions` the platform
    serves no forecasts.

    Raises PortError if the platform cannot listen, and JournalError if the journal cannot be opened or written, or if
    the archive belongs to another platform. Raises ClusterConflictError if `cluster` contradicts the stored Cluster,
    and CredentialsError for damaged credentials or an invalid configuration of authentication. Raises SpawnerError if
    this machine cannot be a node, and OSError for other files.
    """
    audit_log = None if options.audit_log is None else AuditLog(options.audit_log)
    external_tokens = await _open_external_tokens(options)
    with _create_listener(options) as listener, nullcontext() if audit_log is None else closing(audit_log):
        platform = EmbeddedPlatform(
            options, cluster, speed, discard_audit if audit_log is None else audit_log.record, forecast_functions
        )
        if external_tokens is not None:
            platform.set_external_tokens(external_tokens)
        archiver: ArchiverProcess | None = None
        try:
            archiver = await _start_archiver(options, speed, platform) if options.archive else None
            with rare_garbage_collections(asyncio.get_running_loop()):
                await _serve_on_listener(listener, options, platform, on_ready)
        finally:
            if external_tokens is not None:
                await external_tokens.close()
            await platform.close()
            if archiver is not None:
                await archiver.close()
    if platform.failure is not None:
        raise platform.failure


async def _start_archiver(
    options: data_dir.PlatformOptions, speed: float, platform: EmbeddedPlatform
) -> "ArchiverProcess":
    from batchyard.server.archive.process import start_archiver  # noqa: PLC0415 - rarely used

    archiver = await start_archiver(options, speed, is_json=_log_format() == "json")
    platform.metric_sources.append(archiver.texts)
    return archiver


async def _open_external_tokens(options: data_dir.PlatformOptions) -> "ExternalTokenAuthenticator | None":
    if options.authentication_config is None and options.token_webhook_config is None:
        return None
    from batchyard.server.platform.authentication import open_external_tokens  # noqa: PLC0415 - loads the HTTP client

    return await open_external_tokens(options)


async def _serve_on_listener(
    api_listener: socket.socket,
    options: data_dir.PlatformOptions,
    platform: EmbeddedPlatform,
    on_ready: Callable[[str], None],
) -> None:
    data_dir.remove_state(options.folder)
    address, port = api_listener.getsockname()[:2]
    url = _api_url(options, port)
    # Without authentication every client has all permissions, so an insecure platform is not exposed to pods.
    pod_listeners = None if options.is_insecure else platform.pod_network_listeners(options.service_cidr)
    reachable_address = data_dir.LOOPBACK if address in _ALL_ADDRESSES else address
    cluster_ip = "" if options.is_insecure else str(IPv4Network(options.service_cidr)[1])
    if pod_listeners is not None:
        cluster_ip = next(iter(pod_listeners.addresses), "")
    platform.publish_address(reachable_address, port, is_secure=not options.is_insecure, cluster_ip=cluster_ip)
    pod_network_addresses = pod_listeners.addresses if pod_listeners is not None else ()
    tls_context = None if options.is_insecure else _create_tls_context(options, url, pod_network_addresses)
    listeners = [api_listener, *(pod_listeners.sockets if pod_listeners is not None else ())]
    certificate = None if tls_context is None else options.folder / _SERVER_CERTIFICATE
    watchdog = LoopWatchdog(asyncio.get_running_loop(), listeners, certificate)
    with closing(watchdog):
        await _serve_requests(options, url, platform, _ListeningSockets(listeners, tls_context), watchdog, on_ready)


async def _serve_requests(
    options: data_dir.PlatformOptions,
    url: str,
    platform: EmbeddedPlatform,
    sockets: "_ListeningSockets",
    watchdog: LoopWatchdog,
    on_ready: Callable[[str], None],
) -> None:
    dispatcher, connections, end_event = platform.create_dispatcher(watchdog), Connections(), asyncio.Event()
    _shut_down_on_signal(end_event, platform)
    loop = asyncio.get_running_loop()
    response_turns = ResponseTurns(loop)
    is_secure = sockets.tls_context is not None
    create_protocol = partial(HttpProtocol, dispatcher, connections, response_turns, is_secure=is_secure)
    _raise_file_limit()
    sys.setswitchinterval(_THREAD_SWITCH_INTERVAL)
    for listener in sockets.listeners:
        listener.listen(_LISTEN_BACKLOG)
    acceptors = [
        Acceptor(listener, create_protocol, sockets.tls_context, HEAD_TIMEOUT) for listener in sockets.listeners
    ]
    data_dir.write_state(options.folder, url, watchdog.pid)
    on_ready(url)
    await end_event.wait()
    if platform.replication is not None:
        await platform.replication.resign()
    for acceptor in acceptors:
        acceptor.close()
    dispatcher.end()
    await connections.end(REQUESTS_END_TIMEOUT)
    data_dir.remove_state(options.folder)


class _ListeningSockets(NamedTuple):
    listeners: Sequence[socket.socket]
    tls_context: ssl.SSLContext | None


def _raise_file_limit() -> None:
    """Raise the process's limit of open files to the hard limit, because each connection needs a file descriptor."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def _create_listener(options: data_dir.PlatformOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.address else socket.AF_INET
    is_dual_stack = options.address in _ALL_ADDRESSES and family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((options.address, options.port), family=family, dualstack_ipv6=is_dual_stack)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL or (error.errno or 0) < 0:  # negative: an error of getaddrinfo
            message = f"{options.address} is not an address of this machine"
            raise PortError(f"{message}; set another address with --listen") from error
        reason = os.strerror(error.errno) if error.errno else str(error)
        message = f"cannot listen on {options.address}, port {options.port}: {reason}"
        raise PortError(f"{message}; set another port with --port, or omit the option for any free port") from error


def _shut_down_on_signal(end_event: asyncio.Event, platform: EmbeddedPlatform) -> None:
    """Shut the platform down on SIGTERM, SIGINT, SIGHUP or a journal failure.

    SIGHUP is not handled if the process already ignores it (nohup). During the shutdown, SIGINT kills the process.
    """
    loop = asyncio.get_running_loop()

    def end() -> None:
        platform.end_watches()
        end_event.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def terminate() -> None:
        if isinstance(platform.failure, StandbyLostError):
            platform.failure.is_final = True
        end()

    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, terminate)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # under nohup the signal stays ignored
        loop.add_signal_handler(signal.SIGHUP, terminate)
    platform.on_failure = end


def _api_url(options: data_dir.PlatformOptions, port: int) -> str:
    host = data_dir.LOOPBACK if options.address in _ALL_ADDRESSES else options.address
    return f"{'http' if options.is_insecure else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"


def _named_url(options: data_dir.PlatformOptions, url: str) -> str:
    """Return the URL with the name of the API, if it has one, and the same port."""
    host = f"[{options.api_name}]" if ":" in options.api_name else options.api_name
    return f"https://{host}:{url.rpartition(':')[2]}" if host else url


def _create_tls_context(
    options: data_dir.PlatformOptions, url: str, pod_network_addresses: Sequence[str]
) -> ssl.SSLContext:
    """Create the server certificate and the owner's kubeconfig, and return the TLS context of the API server."""
    certificate_authority = CertificateAuthority(options.folder, wall_clock())
    names = dict.fromkeys((options.address, data_dir.LOOPBACK, "::1", "localhost", socket.gethostname()))
    names |= dict.fromkeys((*pod_network_addresses, *_API_HOSTS) if pod_network_addresses else ())
    names |= dict.fromkeys([options.api_name] if options.api_name else ())
    certificate = certificate_authority.issue_server_certificate([name for name in names if name not in _ALL_ADDRESSES])
    data_dir.write_private(options.folder / _SERVER_CERTIFICATE, certificate.certificate + certificate.key)
    ca_certificate = certificate_authority.certificate_file.read_bytes()
    admin_certificate = certificate_authority.issue_client_certificate(ADMIN_USER, [MASTERS_GROUP])
    admin_kubeconfig = kubeconfig_text(_named_url(options, url), ca_certificate, ADMIN_USER, admin_certificate)
    data_dir.write_private(options.folder / data_dir.KUBECONFIG_FILE, admin_kubeconfig.encode())
    return server_tls_context(str(options.folder / _SERVER_CERTIFICATE), str(options.folder / CA_FILE))
