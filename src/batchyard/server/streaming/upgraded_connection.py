"""The transport of an upgraded HTTP connection (WebSocket or SPDY), with flow control, keepalive and timeouts."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeAlias

from batchyard.server.http.connections import Connections

#: Seconds without traffic after which a connection is closed. Source: the idle timeout of a kubelet's streams.
STREAM_IDLE_TIMEOUT: Final = 4 * 3600
#: Seconds that the client has to close its side of the connection.
CLOSE_TIMEOUT: Final = 10
#: Maximum bytes that are processed at once, that wait to be processed, and that the client has not read yet.
CHUNK_SIZE: Final = 16 * 1024
UNPROCESSED_BYTES_MAX: Final = 64 * 1024
UNREAD_BYTES_MAX: Final = 8 * 1024 * 1024
TurnScheduler: TypeAlias = Callable[[Callable[[], None]], None]
"""Schedules a function call after the pending work of other users."""
#: TCP keepalive: idle seconds before the first probe, seconds between probes, and number of probes.
_KEEPALIVE_OPTIONS: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 6))


class UpgradeHandler(Protocol):
    """The protocol handler (WebSocket or SPDY) of an upgraded connection."""

    def feed_bytes(self, data: bytes) -> None:
        """Process bytes received from the client."""

    def set_writable(self, *, is_writable: bool) -> None:
        """Stop or resume sending: the connection's write buffer is full (`is_writable` is False) or has room again."""

    def shut_down(self) -> None:
        """Send the protocol's closing message and close the connection, because the platform shuts down."""

    def connection_closed(self) -> None:
        """Release all resources of the session, because the connection is lost or closed."""


class UpgradedTransport(Protocol):
    """The operations of an upgraded connection that its protocol handler uses."""

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""

    def set_reading(self, *, is_reading: bool) -> None:
        """Resume or pause reading from the client."""

    def close(self, *, at_once: bool = False) -> None:
        """Close the connection once the client has closed its side, or after CLOSE_TIMEOUT; `at_once` does not wait."""


class UpgradedConnection(asyncio.Protocol):
    """An upgraded connection: passes received bytes to its protocol handler, fairly among users; enforces timeouts."""

    def __init__(
        self, transport: Any, connections: Connections, peer: object, holder: str, take_turn: TurnScheduler
    ) -> None:
        """Take over the transport of an HTTP connection.

        `holder` identifies the user for the limit of forwarded ports; it is '' for members of `system:masters`, who
        have only the total limit.
        """
        self._transport = transport
        self._connections = connections
        self._holder = holder
        self._take_turn = take_turn
        #: Received bytes that are not processed yet.
        self._received_data = bytearray()
        self._is_turn_scheduled = False
        self._is_paused = False
        self._is_aborted = False
        self._loop = asyncio.get_running_loop()
        self._handler: UpgradeHandler | None = None
        self._is_closing = False
        self._is_reading = True
        self._last_traffic_at = self._loop.time()
        self._timer = self._loop.call_later(STREAM_IDLE_TIMEOUT, self._end_if_idle)
        #: The client's identity by its certificate, for the limit of connections.
        self.peer = peer
        tcp_socket = transport.get_extra_info("socket")
        if tcp_socket is not None:
            tcp_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE_OPTIONS:
                tcp_socket.setsockopt(socket.IPPROTO_TCP, option, value)

        transport.set_protocol(self)
        connections.enter(self)

    def start_handler(self, handler: UpgradeHandler, received_data: bytes) -> None:
        """Set the protocol handler, and pass it the bytes that were already received."""
        self._handler = handler
        self._received_data += received_data
        self._schedule_processing()

    # --- forwarded connections ---

    def acquire_port_forward(self) -> bool:
        """Count a new port-forward connection. Return False if a limit is reached."""
        return self._connections.acquire_port_forward(self._holder)

    def release_port_forward(self) -> None:
        """Stop counting this connection as a port-forward, because it is closed."""
        self._connections.release_port_forward(self._holder)

    # --- callbacks of asyncio ---

    def data_received(self, data: bytes) -> None:
        """Buffer received bytes for the protocol handler."""
        self._last_traffic_at = self._loop.time()
        self._received_data += data
        self._schedule_processing()

    def eof_received(self) -> None:
        """Return None, so that asyncio closes the connection: half-closed connections are not supported."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection, and notify the protocol handler that it is lost."""
        self._timer.cancel()
        self._connections.remove(self)
        upgrade_handler, self._handler = self._handler, None
        if upgrade_handler is not None:
            upgrade_handler.connection_closed()

    def pause_writing(self) -> None:
        """Notify the protocol handler that the write buffer is full."""
        if self._handler is not None:
            self._handler.set_writable(is_writable=False)

    def resume_writing(self) -> None:
        """Notify the protocol handler that the write buffer has room again."""
        if self._handler is not None:
            self._handler.set_writable(is_writable=True)

    # --- calls of the handler ---

    def send(self, data: bytes) -> None:
        """Send bytes to the client; abort the connection if more than UNREAD_BYTES_MAX bytes are not sent yet."""
        self._last_traffic_at = self._loop.time()
        if self._is_aborted:
            return
        self._transport.write(data)
        if (
            self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX
        ):  # the client does not read the responses to its requests
            self._is_aborted = True
            self._transport.abort()

    def set_reading(self, *, is_reading: bool) -> None:
        """Resume or pause reading from the client."""
        if is_reading != self._is_reading:
            self._is_reading = is_reading
            self._schedule_processing()

    def close(self, *, at_once: bool = False) -> None:
        """Close the connection once the client has closed its side, or after CLOSE_TIMEOUT; `at_once` does not wait."""
        if at_once:
            self._transport.close()
        elif not self._is_closing:
            self._is_closing = True
            self.set_reading(is_reading=True)
            self._timer.cancel()
            self._timer = self._loop.call_later(CLOSE_TIMEOUT, self._transport.abort)

    # --- shutdown ---

    def end(self) -> None:
        """Notify the protocol handler that the platform shuts down; the handler closes the connection."""
        if self._handler is not None:
            self._handler.shut_down()

    def abort(self) -> None:
        """Close the connection now, without a closing message."""
        self._transport.abort()

    def _schedule_processing(self) -> None:
        if self._received_data and self._is_reading and self._handler is not None and not self._is_turn_scheduled:
            self._is_turn_scheduled = True
            self._take_turn(self._process_received_data)
        is_reading_paused = not self._is_reading or len(self._received_data) > UNPROCESSED_BYTES_MAX
        if is_reading_paused != self._is_paused and not self._transport.is_closing():
            self._is_paused = is_reading_paused
            (self._transport.pause_reading if is_reading_paused else self._transport.resume_reading)()

    def _process_received_data(self) -> None:
        self._is_turn_scheduled = False
        if self._handler is not None and self._is_reading:
            chunk = bytes(self._received_data[:CHUNK_SIZE])
            del self._received_data[:CHUNK_SIZE]
            self._handler.feed_bytes(chunk)
            self._schedule_processing()

    def _end_if_idle(self) -> None:
        idle_seconds = self._loop.time() - self._last_traffic_at
        if idle_seconds < STREAM_IDLE_TIMEOUT:
            self._timer = self._loop.call_later(STREAM_IDLE_TIMEOUT - idle_seconds, self._end_if_idle)
        else:
            self._transport.abort()
