"""Transport of an upgraded connection, with its keepalive and timeouts."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from batchyard.server.http.connections import Connections

#: Seconds without traffic after which a connection is closed. Source: the idle timeout of a kubelet's streams.
IDLE_WITHIN: Final = 4 * 3600
#: Seconds that the peer has to close its side.
CLOSED_WITHIN: Final = 10
#: Maximum bytes that are processed at once, that wait to be processed, and that the peer has not read yet.
PART: Final = 16 * 1024
WAITING_MAX: Final = 64 * 1024
UNTAKEN_MAX: Final = 8 * 1024 * 1024
TakeTurn: TypeAlias = Callable[[Callable[[], None]], None]
"""Schedules a function after the pending work of other users."""
#: TCP keepalive: idle seconds before the first probe, seconds between probes, and number of probes.
_ALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 6))


class UpgradeHandler(Protocol):
    """The protocol handler of an upgraded connection."""

    def fed(self, data: bytes) -> None:
        """Handle received bytes."""

    def may_write(self, *, may: bool) -> None:
        """Handle that the write buffer became full or has room again."""

    def ends(self) -> None:
        """Handle the shutdown of the platform: send a closing message."""

    def lost(self) -> None:
        """Handle the loss of the connection."""


class UpgradedTransport(Protocol):
    """The connection, for its protocol handler."""

    def send(self, data: bytes) -> None:
        """Send bytes."""

    def listen(self, *, listens: bool) -> None:
        """Resume or pause reading."""

    def close(self, *, at_once: bool = False) -> None:
        """Close once everything is sent and the peer has closed, or after CLOSED_WITHIN; or close at once."""


class UpgradedConnection(asyncio.Protocol):
    """The transport of an upgraded connection, and its protocol handler."""

    def __init__(
        self, transport: Any, connections: Connections, peer: object, holder: str, take_turn: TakeTurn
    ) -> None:
        """`holder` is the user, '' for the owner. `take_turn` schedules the processing of received bytes."""
        self._transport = transport
        self._connections = connections
        self._holder = holder
        self._take_turn = take_turn
        #: Received bytes that are not processed yet.
        self._came = bytearray()
        self._has_turn = False
        self._is_paused = False
        self._is_aborted = False
        self._loop = asyncio.get_running_loop()
        self._speaker: UpgradeHandler | None = None
        self._is_closing = False
        self._listens = True
        self._last = self._loop.time()
        self._timer = self._loop.call_later(IDLE_WITHIN, self._end_if_idle)
        #: The identity of the client by its certificate.
        self.peer = peer
        found = transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _ALIVE:
                found.setsockopt(socket.IPPROTO_TCP, option, value)

        transport.set_protocol(self)
        connections.enter(self)

    def speak(self, speaker: UpgradeHandler, rest: bytes) -> None:
        """Set the protocol handler, and feed it the bytes that were already read."""
        self._speaker = speaker
        self._came += rest
        self._go_on()

    # --- forwarded connections ---

    def enter_port(self) -> bool:
        """Reserve a forwarded connection. Return False, without reserving it, if the limit is reached."""
        return self._connections.enter_port(self._holder)

    def leave_port(self) -> None:
        """Release a forwarded connection."""
        self._connections.leave_port(self._holder)

    # --- callbacks of the event loop ---

    def data_received(self, data: bytes) -> None:
        """Pass on received bytes."""
        self._last = self._loop.time()
        self._came += data
        self._go_on()

    def eof_received(self) -> None:
        """Close now: a client that half-closes the connection gets no further data."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the handler that the connection is lost."""
        self._timer.cancel()
        self._connections.leave(self)
        speaker, self._speaker = self._speaker, None
        if speaker is not None:
            speaker.lost()

    def pause_writing(self) -> None:
        """Notify the handler that the write buffer is full."""
        if self._speaker is not None:
            self._speaker.may_write(may=False)

    def resume_writing(self) -> None:
        """Notify the handler that the write buffer has room again."""
        if self._speaker is not None:
            self._speaker.may_write(may=True)

    # --- calls of the handler ---

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._last = self._loop.time()
        if self._is_aborted:
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > UNTAKEN_MAX:  # the client requests answers and does not read them
            self._is_aborted = True
            self._transport.abort()

    def listen(self, *, listens: bool) -> None:
        """Resume or pause reading."""
        if listens != self._listens:
            self._listens = listens
            self._go_on()

    def close(self, *, at_once: bool = False) -> None:
        """Close when the peer does, or after CLOSED_WITHIN. Closing with unread input would reset the connection."""
        if at_once:
            self._transport.close()
        elif not self._is_closing:
            self._is_closing = True
            self.listen(listens=True)
            self._timer.cancel()
            self._timer = self._loop.call_later(CLOSED_WITHIN, self._transport.abort)

    # --- shutdown ---

    def end(self) -> None:
        """Let the handler close the connection."""
        if self._speaker is not None:
            self._speaker.ends()

    def abort(self) -> None:
        """Close the connection now."""
        self._transport.abort()

    def _go_on(self) -> None:
        """Process received bytes in turns, and pause reading while too many of them wait."""
        if self._came and self._listens and self._speaker is not None and not self._has_turn:
            self._has_turn = True
            self._take_turn(self._feed)
        is_paused = not self._listens or len(self._came) > WAITING_MAX
        if is_paused != self._is_paused and not self._transport.is_closing():
            self._is_paused = is_paused
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()

    def _feed(self) -> None:
        self._has_turn = False
        if self._speaker is not None and self._listens:
            part = bytes(self._came[:PART])
            del self._came[:PART]
            self._speaker.fed(part)
            self._go_on()

    def _end_if_idle(self) -> None:
        idle = self._loop.time() - self._last
        if idle < IDLE_WITHIN:
            self._timer = self._loop.call_later(IDLE_WITHIN - idle, self._end_if_idle)
        else:
            self._transport.abort()
