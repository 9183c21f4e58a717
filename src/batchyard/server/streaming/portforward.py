"""Port-forward over SPDY and WebSockets; each forwarded connection has a data stream and an error stream.

SPDY runs on the connection itself, or inside a WebSocket for newer clients. Source: k8s.io/cri-streaming
pkg/streaming/portforward/httpstream.go.
"""

import struct
from collections.abc import Mapping
from typing import Final, Protocol

from batchyard.apiserver.request import PortForwardResponse
from batchyard.interfaces.containers import ByteStream, SessionEnd
from batchyard.server.streaming import framing
from batchyard.server.streaming.framing import (
    CANCEL,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    Event,
    SpdyData,
    SpdyFrames,
    SpdyPing,
    SpdyStreamOpened,
    WebSocket,
)

#: Maximum open streams of a connection.
STREAMS_MAX: Final = 2000
TOO_MANY: Final = "too many port-forward connections are open, try again later"


class SpdyConnection(Protocol):
    """The connection or WebSocket that transports SPDY frames."""

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""

    def listen(self, *, listens: bool) -> None:
        """Resume or pause reading from the client."""

    def close(self) -> None:
        """Close the connection."""


class Room(Protocol):
    """The limit of a user's port-forward connections."""

    def enter_port(self) -> bool:
        """Reserve a port-forward connection. Return False if the limit is reached."""

    def leave_port(self) -> None:
        """Release a reserved port-forward connection."""


class PortForwardSpdy:
    """Port-forward over SPDY: each forwarded connection is a pair of streams, for data and for errors."""

    def __init__(self, sink: SpdyConnection, forwarding: PortForwardResponse, room: Room) -> None:
        self.forwarding = forwarding
        self.sink = sink
        self.room = room
        #: Whether the client accepts more data.
        self.takes = True
        self._frames = SpdyFrames()
        self._is_over = False
        self._last = 0
        #: Pairs by either of their streams, and by request id while they have only one stream.
        self._by_stream: dict[int, _StreamPair] = {}
        self._waiting: dict[str, _StreamPair] = {}
        #: Pairs whose ports do not accept more data.
        self._full: set[_StreamPair] = set()

    # --- callbacks of the connection ---

    def fed(self, data: bytes) -> None:
        """Parse received bytes, and process the SPDY events in them."""
        if self._is_over:
            return
        try:
            for event in self._frames.fed(data):
                self._take(event)
        except framing.SpdyError:
            self._is_over = True
            self.lost()
            self.sink.close()

    def part(self, data: bytes, *, is_first: bool) -> None:
        """Process SPDY bytes received over a WebSocket, whose message boundaries are irrelevant."""
        self.fed(data)

    def may_write(self, *, may: bool) -> None:
        """Resume or pause reading from all ports, as the client accepts more data or not."""
        self.takes = may
        for pair in dict.fromkeys(self._by_stream.values()):
            pair.listen(listens=may)

    def ends(self) -> None:
        """Disconnect from all ports, and close the connection, at the shutdown of the platform."""
        self.lost()
        self.sink.send(framing.go_away())
        self.sink.close()

    def lost(self) -> None:
        """Disconnect from all ports, because the connection to the client is lost."""
        for pair in dict.fromkeys((*self._by_stream.values(), *self._waiting.values())):
            pair.close()
        self._by_stream.clear()
        self._waiting.clear()

    # --- callbacks of the pairs ---

    def wants_more(self, pair: "_StreamPair", *, wants: bool) -> None:
        """Record whether a port accepts more data; read from the client only while all ports do."""
        (self._full.discard if wants else self._full.add)(pair)
        self.sink.listen(listens=not self._full)

    def forget(self, pair: "_StreamPair") -> None:
        """Remove a closed pair of streams."""
        for stream in pair.streams.values():
            self._by_stream.pop(stream, None)
        self._waiting = {request: waiting for request, waiting in self._waiting.items() if waiting is not pair}
        if pair in self._full:
            self.wants_more(pair, wants=True)

    def _take(self, event: Event) -> None:
        if isinstance(event, SpdyPing):
            self.sink.send(framing.ping(event.number))
        elif isinstance(event, SpdyStreamOpened):
            self._open(event)
        elif (pair := self._by_stream.get(event.stream)) is None:
            return
        elif isinstance(event, SpdyData):
            pair.take(event)
        else:
            pair.reset(event.stream)

    def _open(self, opened: SpdyStreamOpened) -> None:
        kind, port = opened.headers.get("streamtype", ""), _port(opened.headers)
        if opened.stream <= self._last or kind not in {"data", "error"} or port is None:
            self.sink.send(framing.reset(opened.stream, PROTOCOL_ERROR))
            return
        self._last = opened.stream
        request = opened.headers.get("requestid") or str(opened.stream - (2 if kind == "data" else 0))
        pair = self._waiting.pop(request, None) or _StreamPair(self, port)
        if kind in pair.streams or len(self._by_stream) >= STREAMS_MAX:
            self.sink.send(framing.reset(opened.stream, REFUSED_STREAM))
            return
        pair.streams[kind] = opened.stream
        self._by_stream[opened.stream] = pair
        self.sink.send(self._frames.accept(opened.stream))
        if len(pair.streams) == 2:
            pair.connect()
        else:
            self._waiting[request] = pair


class _StreamPair:
    """The data stream and the error stream of one forwarded connection to a port."""

    def __init__(self, all_streams: PortForwardSpdy, port: int) -> None:
        self._all = all_streams
        self._port = port
        self._session: ByteStream | None = None
        #: By type: `data` and `error`.
        self.streams: dict[str, int] = {}

    def connect(self) -> None:
        """Connect to the port of the pod, unless the user's limit is reached."""
        if not self._all.room.enter_port():
            self.ended(SessionEnd(failure=TOO_MANY))
            return
        self._session = self._all.forwarding.connect(self._port, self)
        if not self._all.takes:
            self._session.listen(listens=False)

    def take(self, data: SpdyData) -> None:
        """Pass data of the client's data stream to the port; ignore the error stream."""
        if self._session is not None and data.stream == self.streams["data"]:
            self._session.write(data.data)
            if data.is_last:
                self._session.end_input()

    def reset(self, stream: int) -> None:
        """Disconnect from the port if the client reset the data stream, and end the error stream without an error."""
        if stream == self.streams.get("data"):
            self.close()
            self._end(self.streams.get("error"))
            self._all.forget(self)

    def listen(self, *, listens: bool) -> None:
        """Resume or pause reading from the port."""
        if self._session is not None:
            self._session.listen(listens=listens)

    def close(self) -> None:
        """Disconnect from the port."""
        session = self._leave()
        if session is not None:
            session.close()

    # --- callbacks of the port ---

    def received(self, output: str, data: bytes) -> None:
        """Send data of the port to the client."""
        self._all.sink.send(framing.data(self.streams["data"], data))

    def wants_more(self, *, wants: bool) -> None:
        """Resume or pause reading from the client, as the port accepts more data or not."""
        self._all.wants_more(self, wants=wants)

    def ended(self, ending: SessionEnd) -> None:
        """Report the end of the connection to the port, or its failure, to the client."""
        self._leave()
        if ending.failure:
            error_text = self._all.forwarding.failure(self._port, ending).encode()
            self._all.sink.send(framing.data(self.streams["error"], error_text))
        self._end(self.streams["error"])
        if ending.failure:
            self._all.sink.send(framing.reset(self.streams["data"], CANCEL))
        else:
            self._end(self.streams["data"])
        self._all.forget(self)

    def _leave(self) -> ByteStream | None:
        """Detach and return the session with the port, and release its reserved connection."""
        session, self._session = self._session, None
        if session is not None:
            self._all.room.leave_port()
        return session

    def _end(self, stream: int | None) -> None:
        if stream is not None:
            self._all.sink.send(framing.data(stream, b"", is_last=True))


def _port(headers: Mapping[str, str]) -> int | None:
    text = headers.get("port", "")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 6 and 0 < int(text) < 65536 else None


class PortForwardWebSocket:
    """Port-forward over a WebSocket, whose messages begin with a channel number; each port has two channels."""

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
        """Process a part of a message; `is_first` marks the first part of a message."""
        if is_first:
            self._channel = None
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        port = self._open.get(-1 if self._channel is None else self._channel)
        if port is not None and data:
            port.session.write(data)

    def may_write(self, *, may: bool) -> None:
        """Resume or pause reading from all ports, as the client accepts more data or not."""
        for port in self._open.values():
            port.session.listen(listens=may)

    def ends(self) -> None:
        """Do nothing, because the WebSocket closes itself at shutdown."""

    def lost(self) -> None:
        """Disconnect from all ports, because the connection to the client is lost."""
        for port in self._open.values():
            port.session.close()
            self._room.leave_port()
        self._open.clear()

    # --- callbacks of the ports ---

    def wants_more(self, channel: int, *, wants: bool) -> None:
        """Record whether a port accepts more data; read from the client only while all ports do."""
        (self._full.discard if wants else self._full.add)(channel)
        self.socket.listen(listens=not self._full)

    def forget(self, channel: int) -> None:
        """Remove a closed port; close the WebSocket after the last port."""
        if self._open.pop(channel, None) is not None:
            self._room.leave_port()
        if channel in self._full:
            self.wants_more(channel, wants=True)
        if not self._open:
            self.socket.close()

    def tell_failure(self, channel: int, port: int, ending: SessionEnd) -> None:
        """Send the failure of a port to the client on the port's error channel."""
        self.socket.send(bytes([channel + 1]) + self.forwarding.failure(port, ending).encode())


class _ForwardedPort:
    """A forwarded port, its session, and the number of its data channel."""

    def __init__(self, channels: PortForwardWebSocket, channel: int, port: int) -> None:
        self._channels = channels
        self._channel = channel
        self._port = port
        self.session: ByteStream = channels.forwarding.connect(port, self)

    def received(self, output: str, data: bytes) -> None:
        """Send data of the port to the client."""
        self._channels.socket.send(bytes([self._channel]) + data)

    def wants_more(self, *, wants: bool) -> None:
        """Resume or pause reading from the client, as the port accepts more data or not."""
        self._channels.wants_more(self._channel, wants=wants)

    def ended(self, ending: SessionEnd) -> None:
        """Report the end of the connection to the port, or its failure, to the client."""
        if ending.failure:
            self._channels.tell_failure(self._channel, self._port, ending)
        self._channels.forget(self._channel)
