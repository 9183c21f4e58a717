"""Ports of a pod over a WebSocket, each a channel for data and one for what goes wrong, as the request names them.

The first message of each channel tells the port, two bytes, the lower first. Source: k8s.io/cri-streaming
pkg/streaming/portforward/websocket.go.
"""

import struct

from batchyard.apiserver.responses import Forwarding
from batchyard.interfaces.containers import ByteStream, Ending
from batchyard.server.streaming.portforward_spdy import TOO_MANY, Room
from batchyard.server.streaming.websocket import WebSocket


class PortChannels:
    """See the module."""

    def __init__(self, socket: WebSocket, forwarding: Forwarding, room: Room) -> None:
        self.socket = socket
        self.forwarding = forwarding
        self._room = room
        self._channel: int | None = None
        self._open: dict[int, _Port] = {}
        self._full: set[int] = set()
        socket.tell(self)
        for number, port in enumerate(forwarding.ports):
            for channel in (2 * number, 2 * number + 1):
                socket.send(bytes([channel]) + struct.pack("<H", port))
            if room.enter_port():
                self._open[2 * number] = _Port(self, 2 * number, port)
            else:
                self.tell_failure(2 * number, port, Ending(failure=TOO_MANY))
        if not self._open:
            socket.close()

    # --- what the WebSocket tells ---

    def part(self, data: bytes, *, is_first: bool) -> None:
        """Take a part of a message, or the first one of the next."""
        if is_first:
            self._channel = None
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        port = self._open.get(-1 if self._channel is None else self._channel)
        if port is not None and data:
            port.session.write(data)

    def may_write(self, *, may: bool) -> None:
        """Whether the client takes more: if not, the ports wait."""
        for port in self._open.values():
            port.session.listen(listens=may)

    def ends(self) -> None:
        """The platform ends."""

    def lost(self) -> None:
        """Nobody talks to the ports any more."""
        for port in self._open.values():
            port.session.close()
            self._room.leave_port()
        self._open.clear()

    # --- what ports tell ---

    def wants_more(self, channel: int, *, wants: bool) -> None:
        """Whether a port takes more: if not, the client waits with all it has for any."""
        (self._full.discard if wants else self._full.add)(channel)
        self.socket.listen(listens=not self._full)

    def forget(self, channel: int) -> None:
        """A port is closed; with the last one the connection is, too."""
        if self._open.pop(channel, None) is not None:
            self._room.leave_port()
        if channel in self._full:
            self.wants_more(channel, wants=True)
        if not self._open:
            self.socket.close()

    def tell_failure(self, channel: int, port: int, ending: Ending) -> None:
        """Say what went wrong with a port."""
        self.socket.send(bytes([channel + 1]) + self.forwarding.failure(port, ending).encode())


class _Port:
    """One port, by the number of its channel for data."""

    def __init__(self, channels: PortChannels, channel: int, port: int) -> None:
        self._channels = channels
        self._channel = channel
        self._port = port
        self.session: ByteStream = channels.forwarding.connect(port, self)

    def received(self, output: str, data: bytes) -> None:
        """Take what the port sent."""
        self._channels.socket.send(bytes([self._channel]) + data)

    def wants_more(self, *, wants: bool) -> None:
        """Whether the port takes more."""
        self._channels.wants_more(self._channel, wants=wants)

    def ended(self, ending: Ending) -> None:
        """The port is closed, or cannot be reached."""
        if ending.failure:
            self._channels.tell_failure(self._channel, self._port, ending)
        self._channels.forget(self._channel)
