"""Connections of the HTTP server: accepting and TLS, limits of connections and request bodies, timeouts, shutdown."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from typing import Any, Final, NamedTuple, Protocol

from batchyard.apiserver.request import ANONYMOUS, UserInfo, certificate_user
from batchyard.base.instant import MILLISECOND, SECOND, Instant
from batchyard.server.clocks.wall import sleep_for, wall_clock

#: Maximum open connections: below 1,024, the common limit of open files of a process.
CONNECTIONS_MAX: Final = 900
#: Maximum connections of one client certificate, and of all clients without a certificate.
CLIENT_CONNECTIONS_MAX: Final = 600
#: Maximum connections whose TLS handshake is not complete; a new connection replaces the oldest of them.
HANDSHAKES_MAX: Final = 256
_RESOURCE_ERRNOS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: Maximum port-forward connections to pods, each an open file: of all users together, and of one user.
FORWARDED_PORTS_MAX: Final = 4000
USER_FORWARDED_PORTS_MAX: Final = 400
#: Maximum bytes of all request bodies in memory.
BODY_BYTES_MAX: Final = 256 * 1024 * 1024
#: Maximum bytes of the request bodies of one user in memory.
USER_BODY_BYTES_MAX: Final = 64 * 1024 * 1024


class ClosableConnection(Protocol):
    """A client connection that the server can close at shutdown."""

    def end(self) -> None:
        """Close the connection after its requests in progress are answered."""

    def abort(self) -> None:
        """Close the connection now, without answering its requests in progress."""

    @property
    def peer(self) -> object:
        """The client's identity by its TLS certificate, for the limit of connections; None without a certificate."""


class Connections:
    """All open connections of the HTTP server, and its limits of connections, forwarded ports and body bytes."""

    def __init__(self) -> None:
        self._open: dict[ClosableConnection, None] = {}
        self._all_closed = asyncio.Event()
        self._body_bytes = 0
        self._body_bytes_by_holder: dict[str, int] = {}
        self._port_counts: dict[str, int] = {}
        self._second = 0
        self._date = b""

    def enter(self, connection: ClosableConnection) -> bool:
        """Count a connection as open until `leave`. Return False if too many are open, in total or from its client.

        The connection is also counted if the method returns False.
        """
        peer = connection.peer
        same_client_count = sum(1 for other in self._open if other.peer == peer)
        self._open[connection] = None
        return len(self._open) <= CONNECTIONS_MAX and same_client_count < CLIENT_CONNECTIONS_MAX

    def count_body_bytes(self, holder: str, length: int) -> bool:
        """Count a user's body bytes in memory; a negative `length` releases them. Return False if a limit is exceeded.

        `holder` identifies the user; it is '' for members of `system:masters`, who have only the total limit.
        """
        self._body_bytes += length
        holder_bytes = self._body_bytes_by_holder.get(holder, 0) + length
        if holder_bytes:
            self._body_bytes_by_holder[holder] = holder_bytes
        else:
            self._body_bytes_by_holder.pop(holder, None)
        return self._body_bytes <= BODY_BYTES_MAX and (not holder or holder_bytes <= USER_BODY_BYTES_MAX)

    def acquire_port_forward(self, holder: str) -> bool:
        """Count a new port-forward connection; return False if a limit is reached.

        `holder` identifies the user; it is '' for members of `system:masters`, who have only the total limit.
        """
        port_count = self._port_counts.get(holder, 0)
        if sum(self._port_counts.values()) >= FORWARDED_PORTS_MAX or (
            holder and port_count >= USER_FORWARDED_PORTS_MAX
        ):
            return False
        self._port_counts[holder] = port_count + 1
        return True

    def release_port_forward(self, holder: str) -> None:
        """Stop counting a closed port-forward connection that `acquire_port_forward` counted for this `holder`."""
        self._port_counts[holder] -= 1
        if not self._port_counts[holder]:
            del self._port_counts[holder]

    def remove(self, connection: ClosableConnection) -> None:
        """Stop counting a closed connection as open."""
        self._open.pop(connection, None)
        if not self._open:
            self._all_closed.set()

    async def end(self, timeout_seconds: float) -> None:
        """Close all connections once their requests are answered; abort those still open after `timeout_seconds`."""
        for connection in list(self._open):
            connection.end()
        if self._open:
            self._all_closed.clear()
            try:
                await asyncio.wait_for(self._all_closed.wait(), timeout_seconds)
            except TimeoutError:
                for connection in list(self._open):
                    connection.abort()

    def date_header(self) -> bytes:
        """Return the current time in the format of the HTTP Date header."""
        epoch_second = wall_clock() // SECOND
        if epoch_second != self._second:
            self._second, self._date = epoch_second, formatdate(epoch_second, usegmt=True).encode()
        return self._date


# A timeout for one awaited event at a time, such as the end of a request's head.
#
# The awaited event changes several times per request. The timer is therefore not reset each time. When it fires
# early, it is set again for the current deadline.


class ConnectionDeadline:
    """A timeout for the event that a connection currently waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._awaited: tuple[str, int] | None = None
        self._on_timeout: Callable[[], object] = _do_nothing
        #: The deadline, and when the timer fires, by the loop's clock.
        self._deadline = 0.0
        self._timer_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, awaited_event: tuple[str, int], timeout_seconds: float, on_timeout: Callable[[], object]) -> None:
        """Start a timeout for the event that a connection waits for; `on_timeout` is called when it expires.

        `awaited_event` is the event's kind and request number. It replaces the event before it. A second call for the
        same event changes nothing.
        """
        if awaited_event == self._awaited:
            return
        self._awaited, self._on_timeout = awaited_event, on_timeout
        self._deadline = self._loop.time() + timeout_seconds
        if self._timer is None or self._timer_at > self._deadline:
            self._start_timer()

    def stop(self) -> None:
        """Stop the timeout: the connection waits for no event."""
        self._awaited = None

    def end(self) -> None:
        """Stop the timeout and cancel its timer, because the connection is closed."""
        self._awaited, self._on_timeout = None, _do_nothing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._awaited is None:
            return
        if self._deadline > self._timer_at:
            self._start_timer()
        else:
            self._on_timeout()


def _do_nothing() -> None:
    pass


class Acceptor:
    """Accepts connections on a listening socket, and performs their TLS handshakes.

    Clients hold file descriptors during handshakes, before authentication, so the number of handshakes is limited.
    """

    def __init__(
        self,
        listener: socket.socket,
        create_protocol: Callable[[], asyncio.Protocol],
        tls_context: ssl.SSLContext | None,
        handshake_timeout: float,
    ) -> None:
        """Start to accept connections. `create_protocol` makes their protocols; `handshake_timeout` is in seconds."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._create_protocol = create_protocol
        self._tls_context = tls_context
        self._handshake_timeout = None if tls_context is None else handshake_timeout
        self._handshakes: dict[asyncio.Task[None], None] = {}
        listener.setblocking(False)
        self._task = self._loop.create_task(self._accept_connections())

    def close(self) -> None:
        """Stop accepting connections, cancel the handshakes in progress, and close the listening socket."""
        self._task.cancel()
        for task in self._handshakes:
            task.cancel()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # the watchdog process also has the socket open
        self._listener.close()

    async def _accept_connections(self) -> None:
        while True:
            try:
                client_socket, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno in _RESOURCE_ERRNOS:
                    self._drop_oldest_handshake()
                await sleep_for(100 * MILLISECOND)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                self._drop_oldest_handshake()
            handshake_task = self._loop.create_task(self._serve_connection(client_socket))
            self._handshakes[handshake_task] = None
            handshake_task.add_done_callback(self._remove_handshake)

    def _drop_oldest_handshake(self) -> None:
        oldest_handshake = next(iter(self._handshakes), None)
        if oldest_handshake is not None:
            del self._handshakes[oldest_handshake]
            oldest_handshake.cancel()

    def _remove_handshake(self, handshake_task: asyncio.Task[None]) -> None:
        self._handshakes.pop(handshake_task, None)

    async def _serve_connection(self, client_socket: socket.socket) -> None:
        client_socket.setblocking(False)
        try:
            with suppress(OSError):
                await self._loop.connect_accepted_socket(
                    self._create_protocol,
                    client_socket,
                    ssl=self._tls_context,
                    ssl_handshake_timeout=self._handshake_timeout,
                )
        except asyncio.CancelledError:
            client_socket.close()
            raise


# The TLS context of the server, and the users of client certificates.


#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME. Expiry is checked for each request and answered with 401: a failed handshake
#: gives no reason, and a kept-alive connection would outlive its certificate.
_NO_CHECK_TIME_FLAG: Final = ssl.VerifyFlags(0x200000)


class CertificateUser(NamedTuple):
    """The user that a verified client certificate names, and the certificate's validity period."""

    user: UserInfo
    valid_from: Instant
    valid_until: Instant

    def current_user(self) -> UserInfo:
        """Return the user if the certificate is valid at the current time, else the anonymous user."""
        return self.user if self.valid_from <= wall_clock() <= self.valid_until else ANONYMOUS


def server_tls_context(certificate_file: str, authority_file: str) -> ssl.SSLContext:
    """Return the TLS context of a server with the certificate and key in a PEM file.

    Client certificates are optional, and are verified with the CA in the file `authority_file`. Their expiry is not
    checked here.
    """
    tls_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls_context.minimum_version = ssl.TLSVersion.TLSv1_2
    tls_context.load_cert_chain(certificate_file)
    tls_context.load_verify_locations(authority_file)
    tls_context.verify_mode = ssl.CERT_OPTIONAL
    tls_context.verify_flags |= _NO_CHECK_TIME_FLAG
    return tls_context


def certificate_user_of(certificate: dict[str, Any]) -> CertificateUser | None:
    """Return the user of a verified client certificate; None if the certificate has no common name.

    The last common name is the user's name, as in Go, and the organizations are its groups.
    """
    names = [pair for attributes in certificate.get("subject", ()) for pair in attributes]
    name = next((value for kind, value in reversed(names) if kind == "commonName"), "")
    if not name:
        return None
    user = certificate_user(name, tuple(value for kind, value in names if kind == "organizationName"))
    valid_from, valid_until = (ssl.cert_time_to_seconds(certificate[key]) * SECOND for key in ("notBefore", "notAfter"))
    return CertificateUser(user, valid_from, valid_until)
