"""Port-forward over SPDY and WebSockets; each connection to a port of a pod has a data stream and an error stream.

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
    SpdyData,
    SpdyEvent,
    SpdyFrames,
    SpdyPing,
    SpdyStreamOpened,
    WebSocket,
)

#: Maximum open streams of a connection.
STREAMS_MAX: Final = 2000
TOO_MANY_CONNECTIONS: Final = "too many port-forward connections are open, try again later"


class SpdyConnection(Protocol):
    """The TCP connection or WebSocket over which SPDY frames are sent."""

    def send(self, data: bytes) -> None:
        """Send bytes to the client."""

    def set_reading(self, *, is_reading: bool) -> None:
        """Resume or pause reading from the client."""

    def close(self) -> None:
        """Close the connection."""


class PortForwardLimit(Protocol):
    """Counts the port-forward connections of a user, and limits their number."""

    def acquire_port_forward(self) -> bool:
        """Count a new port-forward connection. Return False if a limit is reached."""

    def release_port_forward(self) -> None:
        """Stop counting a port-forward connection, which is closed."""


class PortForwardSpdy:
    """Port-forward over SPDY: each connection to a port of the pod has two streams, one for data and one for errors."""

    def __init__(self, sink: SpdyConnection, port_forward: PortForwardResponse, port_limit: PortForwardLimit) -> None:
        self.forwarding = port_forward
        self.sink = sink
        self.port_limit = port_limit
        #: Whether the client accepts more data.
        self.client_accepts_data = True
        self._frames = SpdyFrames()
        self._is_closed = False
        self._last_stream_id = 0
        #: Pairs by either of their streams, and by request id while they have only one stream.
        self._pairs_by_stream: dict[int, _StreamPair] = {}
        self._incomplete_pairs: dict[str, _StreamPair] = {}
        #: Pairs whose ports do not accept more data.
        self._blocked_pairs: set[_StreamPair] = set()

    # --- callbacks of the connection ---

    def feed_bytes(self, data: bytes) -> None:
        """Parse received bytes, and process the SPDY events in them."""
        if self._is_closed:
            return
        try:
            for event in self._frames.feed_bytes(data):
                self._process_event(event)
        except framing.SpdyError:
            self._is_closed = True
            self.connection_closed()
            self.sink.close()

    def process_part(self, data: bytes, *, is_first: bool) -> None:
        """Process SPDY bytes received in a WebSocket message; the boundaries of messages are irrelevant."""
        self.feed_bytes(data)

    def set_writable(self, *, is_writable: bool) -> None:
        """Pause reading from all ports while the client accepts no more data (`is_writable` is False)."""
        self.client_accepts_data = is_writable
        for pair in dict.fromkeys(self._pairs_by_stream.values()):
            pair.set_reading(is_reading=is_writable)

    def shut_down(self) -> None:
        """Disconnect from all ports and close the connection, because the platform shuts down."""
        self.connection_closed()
        self.sink.send(framing.encode_go_away())
        self.sink.close()

    def connection_closed(self) -> None:
        """Disconnect from all ports, because the connection to the client is lost."""
        for pair in dict.fromkeys((*self._pairs_by_stream.values(), *self._incomplete_pairs.values())):
            pair.close()
        self._pairs_by_stream.clear()
        self._incomplete_pairs.clear()

    # --- callbacks of the pairs ---

    def set_accepts_input(self, stream_pair: "_StreamPair", *, accepts_input: bool) -> None:
        """Record whether a port accepts more data; read from the client only while all ports do so."""
        (self._blocked_pairs.discard if accepts_input else self._blocked_pairs.add)(stream_pair)
        self.sink.set_reading(is_reading=not self._blocked_pairs)

    def forget(self, stream_pair: "_StreamPair") -> None:
        """Remove a pair of streams whose connection to a port is closed."""
        for stream in stream_pair.streams.values():
            self._pairs_by_stream.pop(stream, None)
        self._incomplete_pairs = {
            request: incomplete_pair
            for request, incomplete_pair in self._incomplete_pairs.items()
            if incomplete_pair is not stream_pair
        }
        if stream_pair in self._blocked_pairs:
            self.set_accepts_input(stream_pair, accepts_input=True)

    def _process_event(self, event: SpdyEvent) -> None:
        if isinstance(event, SpdyPing):
            self.sink.send(framing.encode_ping(event.number))
        elif isinstance(event, SpdyStreamOpened):
            self._open_stream(event)
        elif (pair := self._pairs_by_stream.get(event.stream_id)) is None:
            return
        elif isinstance(event, SpdyData):
            pair.write_data(event)
        else:
            pair.reset(event.stream_id)

    def _open_stream(self, frame: SpdyStreamOpened) -> None:
        stream_type, port = frame.headers.get("streamtype", ""), _port_in_headers(frame.headers)
        if frame.stream_id <= self._last_stream_id or stream_type not in {"data", "error"} or port is None:
            self.sink.send(framing.encode_reset(frame.stream_id, PROTOCOL_ERROR))
            return
        self._last_stream_id = frame.stream_id
        request = frame.headers.get("requestid") or str(frame.stream_id - (2 if stream_type == "data" else 0))
        stream_pair = self._incomplete_pairs.pop(request, None) or _StreamPair(self, port)
        if stream_type in stream_pair.streams or len(self._pairs_by_stream) >= STREAMS_MAX:
            self.sink.send(framing.encode_reset(frame.stream_id, REFUSED_STREAM))
            return
        stream_pair.streams[stream_type] = frame.stream_id
        self._pairs_by_stream[frame.stream_id] = stream_pair
        self.sink.send(self._frames.encode_reply(frame.stream_id))
        if len(stream_pair.streams) == 2:
            stream_pair.connect()
        else:
            self._incomplete_pairs[request] = stream_pair


class _StreamPair:
    def __init__(self, port_forward: PortForwardSpdy, port: int) -> None:
        self._port_forward = port_forward
        self._port = port
        self._session: ByteStream | None = None
        #: The ids of the SPDY streams by type: `data` and `error`.
        self.streams: dict[str, int] = {}

    def connect(self) -> None:
        if not self._port_forward.port_limit.acquire_port_forward():
            self.process_end(SessionEnd(failure=TOO_MANY_CONNECTIONS))
            return
        self._session = self._port_forward.forwarding.connect(self._port, self)
        if not self._port_forward.client_accepts_data:
            self._session.set_reading(is_reading=False)

    def write_data(self, spdy_data: SpdyData) -> None:
        if self._session is not None and spdy_data.stream_id == self.streams["data"]:
            self._session.write(spdy_data.data)
            if spdy_data.is_last:
                self._session.end_input()

    def reset(self, stream_id: int) -> None:
        if stream_id == self.streams.get("data"):
            self.close()
            self._end_spdy_stream(self.streams.get("error"))
            self._port_forward.forget(self)

    def set_reading(self, *, is_reading: bool) -> None:
        if self._session is not None:
            self._session.set_reading(is_reading=is_reading)

    def close(self) -> None:
        session = self._detach_session()
        if session is not None:
            session.close()

    # --- callbacks of the port ---

    def process_output(self, output: str, data: bytes) -> None:
        self._port_forward.sink.send(framing.encode_data(self.streams["data"], data))

    def set_accepts_input(self, *, accepts_input: bool) -> None:
        self._port_forward.set_accepts_input(self, accepts_input=accepts_input)

    def process_end(self, session_end: SessionEnd) -> None:
        self._detach_session()
        if session_end.failure:
            error_text = self._port_forward.forwarding.failure_message(self._port, session_end).encode()
            self._port_forward.sink.send(framing.encode_data(self.streams["error"], error_text))
        self._end_spdy_stream(self.streams["error"])
        if session_end.failure:
            self._port_forward.sink.send(framing.encode_reset(self.streams["data"], CANCEL))
        else:
            self._end_spdy_stream(self.streams["data"])
        self._port_forward.forget(self)

    def _detach_session(self) -> ByteStream | None:
        session, self._session = self._session, None
        if session is not None:
            self._port_forward.port_limit.release_port_forward()
        return session

    def _end_spdy_stream(self, stream_id: int | None) -> None:
        if stream_id is not None:
            self._port_forward.sink.send(framing.encode_data(stream_id, b"", is_last=True))


def _port_in_headers(headers: Mapping[str, str]) -> int | None:
    text = headers.get("port", "")
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 6 and 0 < int(text) < 65536 else None


class PortForwardWebSocket:
    """Port-forward over a WebSocket: messages begin with a channel number; a port has a data and an error channel."""

    def __init__(self, web_socket: WebSocket, port_forward: PortForwardResponse, port_limit: PortForwardLimit) -> None:
        self.socket = web_socket
        self.forwarding = port_forward
        self._port_limit = port_limit
        self._channel: int | None = None
        self._open_ports: dict[int, _ForwardedPort] = {}
        self._blocked_channels: set[int] = set()
        web_socket.set_handler(self)
        for number, port in enumerate(port_forward.ports):
            for channel in (2 * number, 2 * number + 1):
                web_socket.send(bytes([channel]) + struct.pack("<H", port))
            if port_limit.acquire_port_forward():
                self._open_ports[2 * number] = _ForwardedPort(self, 2 * number, port)
            else:
                self.send_failure(2 * number, port, SessionEnd(failure=TOO_MANY_CONNECTIONS))
        if not self._open_ports:
            web_socket.close()

    # --- callbacks of the WebSocket ---

    def process_part(self, data: bytes, *, is_first: bool) -> None:
        """Send a part of a WebSocket message to its channel's port; `is_first` marks the first part of a message."""
        if is_first:
            self._channel = None
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        forwarded_port = self._open_ports.get(-1 if self._channel is None else self._channel)
        if forwarded_port is not None and data:
            forwarded_port.session.write(data)

    def set_writable(self, *, is_writable: bool) -> None:
        """Pause reading from all ports while the client accepts no more data (`is_writable` is False)."""
        for port in self._open_ports.values():
            port.session.set_reading(is_reading=is_writable)

    def shut_down(self) -> None:
        """Do nothing at the platform's shutdown: the WebSocket closes itself."""

    def connection_closed(self) -> None:
        """Disconnect from all ports, because the connection to the client is lost."""
        for port in self._open_ports.values():
            port.session.close()
            self._port_limit.release_port_forward()
        self._open_ports.clear()

    # --- callbacks of the ports ---

    def set_accepts_input(self, channel: int, *, accepts_input: bool) -> None:
        """Record whether a port accepts more data; read from the client only while all ports do so."""
        (self._blocked_channels.discard if accepts_input else self._blocked_channels.add)(channel)
        self.socket.set_reading(is_reading=not self._blocked_channels)

    def forget(self, channel: int) -> None:
        """Remove the port with this data channel, because its connection is closed.

        After the last port, close the WebSocket.
        """
        if self._open_ports.pop(channel, None) is not None:
            self._port_limit.release_port_forward()
        if channel in self._blocked_channels:
            self.set_accepts_input(channel, accepts_input=True)
        if not self._open_ports:
            self.socket.close()

    def send_failure(self, channel: int, port: int, session_end: SessionEnd) -> None:
        """Send the error message of a failed connection to the client.

        `channel` is the data channel of the port. Its error channel is the next one.
        """
        self.socket.send(bytes([channel + 1]) + self.forwarding.failure_message(port, session_end).encode())


class _ForwardedPort:
    def __init__(self, port_forward: PortForwardWebSocket, channel: int, port: int) -> None:
        self._port_forward = port_forward
        self._channel = channel
        self._port = port
        self.session: ByteStream = port_forward.forwarding.connect(port, self)

    def process_output(self, output: str, data: bytes) -> None:
        self._port_forward.socket.send(bytes([self._channel]) + data)

    def set_accepts_input(self, *, accepts_input: bool) -> None:
        self._port_forward.set_accepts_input(self._channel, accepts_input=accepts_input)

    def process_end(self, session_end: SessionEnd) -> None:
        if session_end.failure:
            self._port_forward.send_failure(self._channel, self._port, session_end)
        self._port_forward.forget(self._channel)
