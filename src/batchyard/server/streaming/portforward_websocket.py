"""Port-forward over a WebSocket: for each requested port a data channel and an error channel.

The first message of each channel is the port, as two bytes in little-endian order. Source: k8s.io/cri-streaming
pkg/streaming/portforward/websocket.go.
"""

import struct

from batchyard.apiserver.responses import PortForwardResponse
from batchyard.interfaces.containers import ByteStream, SessionEnd
from batchyard.server.streaming.portforward_spdy import TOO_MANY, Room
from batchyard.server.streaming.websocket import WebSocket


class PortForwardWebSocket:
    """The forwarded ports, multiplexed on a WebSocket."""

    def __init__(self, socket: WebSocket, forwarding: PortForwardResponse, room: Room) -> None:
        self.socket = socket
        self.forwarding = forwarding
        self._room = room
        self._channel: int | None = None
        self._open: dict[int, _ForwardedPort] = {}
        self._full: set[int] = set()
        socket.set_handler(self)
        for number, port in enumerate(forwarding.ports):
            for channel in (2 * number, 2 * number + 1):
                socket.send(bytes([channel]) + struct.pack("<H", port))
            if room.enter_port():
                self._open[2 * number] = _ForwardedPort(self, 2 * number, port)
            else:
                self.tell_failure(2 * number, port, SessionEnd(failure=TOO_MANY))
        if not self._open:
            socket.close()

    # --- callbacks of the WebSocket ---

    def part(self, data: bytes, *, is_first: bool) -> None:
        """Handle a part of a message; `is_first` marks the beginning of a message."""
        if is_first:
            self._channel = None
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        port = self._open.get(-1 if self._channel is None else self._channel)
        if port is not None and data:
            port.session.write(data)

    def may_write(self, *, may: bool) -> None:
        """Read from the ports only while the client accepts more."""
        for port in self._open.values():
            port.session.listen(listens=may)

    def ends(self) -> None:
        """Do nothing: the WebSocket closes by itself."""

    def lost(self) -> None:
        """Disconnect from the ports."""
        for port in self._open.values():
            port.session.close()
            self._room.leave_port()
        self._open.clear()

    # --- callbacks of the ports ---

    def wants_more(self, channel: int, *, wants: bool) -> None:
        """Read from the client only while all ports accept more."""
        (self._full.discard if wants else self._full.add)(channel)
        self.socket.listen(listens=not self._full)

    def forget(self, channel: int) -> None:
        """Remove a closed port. Close the connection with the last one."""
        if self._open.pop(channel, None) is not None:
            self._room.leave_port()
        if channel in self._full:
            self.wants_more(channel, wants=True)
        if not self._open:
            self.socket.close()

    def tell_failure(self, channel: int, port: int, ending: SessionEnd) -> None:
        """Report an error of a port on its error channel."""
        self.socket.send(bytes([channel + 1]) + self.forwarding.failure(port, ending).encode())


class _ForwardedPort:
    """A forwarded port, with the number of its data channel."""

    def __init__(self, channels: PortForwardWebSocket, channel: int, port: int) -> None:
        self._channels = channels
        self._channel = channel
        self._port = port
        self.session: ByteStream = channels.forwarding.connect(port, self)

    def received(self, output: str, data: bytes) -> None:
        """Send data of the port."""
        self._channels.socket.send(bytes([self._channel]) + data)

    def wants_more(self, *, wants: bool) -> None:
        """Pause or resume reading from the client."""
        self._channels.wants_more(self._channel, wants=wants)

    def ended(self, ending: SessionEnd) -> None:
        """Handle a port that is closed or unreachable."""
        if ending.failure:
            self._channels.tell_failure(self._channel, self._port, ending)
        self._channels.forget(self._channel)
