"""Open connections: their limits, the limits of request bodies in memory, timeouts, and shutdown."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from typing import Any, Final, NamedTuple, Protocol

from batchyard.apiserver.request import ANONYMOUS, UserInfo, of_certificate
from batchyard.base.instant import MILLISECOND, SECOND, Instant
from batchyard.server.clocks.wall import sleep_for, wall_clock

#: Below 1,024, the common limit of open files of a process.
CONNECTIONS_MAX: Final = 900
#: Maximum connections of one client certificate, and of all clients without one. The rest remains for other clients.
CONNECTIONS_OF_ONE_MAX: Final = 600
#: Maximum connections whose TLS handshake is not complete; a new connection replaces the oldest of them.
HANDSHAKES_MAX: Final = 256
_NO_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
#: Maximum forwarded connections to ports of pods, each an open file: of all users, and of one.
PORTS_MAX: Final = 4000
PORTS_OF_ONE_MAX: Final = 400
#: Maximum bytes of all request bodies that are in memory.
BODIES_MAX: Final = 256 * 1024 * 1024
#: Maximum bytes of these for one user.
BODIES_OF_ONE_MAX: Final = 64 * 1024 * 1024


class ClosableConnection(Protocol):
    """A connection, for shutdown."""

    def end(self) -> None:
        """Close after the requests in progress are answered."""

    def abort(self) -> None:
        """Close now."""

    @property
    def peer(self) -> object:
        """The identity of the client by its certificate."""


class Connections:
    """The open connections, and the bytes of request bodies in memory."""

    def __init__(self) -> None:
        self._open: dict[ClosableConnection, None] = {}
        self._none_left = asyncio.Event()
        self._held = 0
        self._held_by: dict[str, int] = {}
        self._ports: dict[str, int] = {}
        self._second = 0
        self._date = b""

    def enter(self, connection: ClosableConnection) -> bool:
        """Count a connection until `leave`. Return False if too many are open, in total or of one peer."""
        peer = connection.peer
        alike = sum(1 for each in self._open if each.peer == peer)
        self._open[connection] = None
        return len(self._open) <= CONNECTIONS_MAX and alike < CONNECTIONS_OF_ONE_MAX

    def hold(self, holder: str, length: int) -> bool:
        """Count bytes of request bodies in memory, negative ones on release. Return False if there are too many.

        `holder` is the user's flow; '' is the owner's, which only has the total limit.
        """
        self._held += length
        of_one = self._held_by.get(holder, 0) + length
        if of_one:
            self._held_by[holder] = of_one
        else:
            self._held_by.pop(holder, None)
        return self._held <= BODIES_MAX and (not holder or of_one <= BODIES_OF_ONE_MAX)

    def enter_port(self, holder: str) -> bool:
        """Reserve a forwarded connection. Return False, without reserving it, if the limit is reached.

        `holder` is as for bodies.
        """
        of_one = self._ports.get(holder, 0)
        if sum(self._ports.values()) >= PORTS_MAX or (holder and of_one >= PORTS_OF_ONE_MAX):
            return False
        self._ports[holder] = of_one + 1
        return True

    def leave_port(self, holder: str) -> None:
        """Release a forwarded connection."""
        self._ports[holder] -= 1
        if not self._ports[holder]:
            del self._ports[holder]

    def leave(self, connection: ClosableConnection) -> None:
        """Remove a closed connection."""
        self._open.pop(connection, None)
        if not self._open:
            self._none_left.set()

    async def end(self, within: float) -> None:
        """Close all connections gracefully; abort those that are open after `within` seconds."""
        for connection in list(self._open):
            connection.end()
        if self._open:
            self._none_left.clear()
            try:
                await asyncio.wait_for(self._none_left.wait(), within)
            except TimeoutError:
                for connection in list(self._open):
                    connection.abort()

    def date(self) -> bytes:
        """Return the current time as an HTTP date."""
        second = wall_clock() // SECOND
        if second != self._second:
            self._second, self._date = second, formatdate(second, usegmt=True).encode()
        return self._date


# --- deadline ---
#
# A timeout for one awaited thing at a time.
#
# The awaited thing changes several times per request. The timer is therefore not reset each time. When it fires
# early, it is set again for the current deadline.


class ConnectionDeadline:
    """The awaited thing, its deadline, and the callback on timeout."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._awaited: tuple[str, int] | None = None
        self._late: Callable[[], object] = _nothing
        #: By the loop's clock: the deadline, and when the timer fires.
        self._due = 0.0
        self._rings = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, awaited: tuple[str, int], within: float, late: Callable[[], object]) -> None:
        """Start a timeout. `awaited` is a kind with an ordinal; awaiting the same again does not extend the timeout."""
        if awaited == self._awaited:
            return
        self._awaited, self._late = awaited, late
        self._due = self._loop.time() + within
        if self._timer is None or self._rings > self._due:
            self._set()

    def stop(self) -> None:
        """Stop the timeout."""
        self._awaited = None

    def end(self) -> None:
        """Stop the timeout for good, and cancel the timer."""
        self._awaited, self._late = None, _nothing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = self._due
        self._timer = self._loop.call_at(self._due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._awaited is None:
            return
        if self._due > self._rings:
            self._set()
        else:
            self._late()


def _nothing() -> None:
    pass


class Acceptor:
    """Accepts connections on a socket, and the TLS handshakes that are not complete.

    A client without credentials holds a file descriptor during its handshake, so the number of handshakes is bounded.
    """

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext | None,
        handshake_within: float,
    ) -> None:
        """`connect` makes the protocol of a connection. A handshake may take `handshake_within` seconds."""
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._connect = connect
        self._context = context
        self._within = None if context is None else handshake_within
        self._handshakes: dict[asyncio.Task[None], None] = {}
        listener.setblocking(False)
        self._task = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections, and end the handshakes in progress."""
        self._task.cancel()
        for task in self._handshakes:
            task.cancel()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # the guard process has the socket open as well
        self._listener.close()

    async def _accept(self) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno in _NO_FILES:
                    self._drop_oldest()
                await sleep_for(100 * MILLISECOND)
                continue
            if len(self._handshakes) >= HANDSHAKES_MAX:
                self._drop_oldest()
            task = self._loop.create_task(self._serve(accepted))
            self._handshakes[task] = None
            task.add_done_callback(self._done)

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._handshakes), None)
        if oldest is not None:
            del self._handshakes[oldest]
            oldest.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._handshakes.pop(task, None)

    async def _serve(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        try:
            with suppress(OSError):
                await self._loop.connect_accepted_socket(
                    self._connect, accepted, ssl=self._context, ssl_handshake_timeout=self._within
                )
        except asyncio.CancelledError:
            accepted.close()
            raise


# --- tls ---
#
# Server-side TLS, and users of client certificates.


#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME. Expiry is checked for each request and answered with 401: a failed handshake
#: gives no reason, and a kept-alive connection would outlive its certificate.
_TIME_IS_CHECKED_HERE: Final = ssl.VerifyFlags(0x200000)


class Peer(NamedTuple):
    """The user of a client certificate, as Kubernetes maps it, and the validity period."""

    user: UserInfo
    begins: Instant
    ends: Instant

    def now(self) -> UserInfo:
        """Return the user while the certificate is valid, else the anonymous user."""
        return self.user if self.begins <= wall_clock() <= self.ends else ANONYMOUS


def server_context(server: str, authority: str) -> ssl.SSLContext:
    """Return a TLS context with the certificate and key of a file. It requests client certificates of an authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(server)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= _TIME_IS_CHECKED_HERE
    return context


def peer_of(certificate: dict[str, Any]) -> Peer | None:
    """Return the user of a verified certificate, by its common name and organizations; None without a common name."""
    names = [pair for relative in certificate.get("subject", ()) for pair in relative]
    name = next((value for kind, value in names if kind == "commonName"), "")
    if not name:
        return None
    user = of_certificate(name, tuple(value for kind, value in names if kind == "organizationName"))
    begins, ends = (ssl.cert_time_to_seconds(certificate[field]) * SECOND for field in ("notBefore", "notAfter"))
    return Peer(user, begins, ends)
