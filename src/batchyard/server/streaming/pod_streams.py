"""Upgraded connections to pods: the 101 response, the choice of the handler, exec and attach over SPDY or WebSocket.

Source: k8s.io/cri-streaming pkg/streaming/remotecommand.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from batchyard.apiserver.request import (
    ApiRequest,
    ExecResponse,
    PortForwardResponse,
    ReplicationResponse,
    UpgradeResponse,
)
from batchyard.apiserver.subresources.pod_streams import WEBSOCKET
from batchyard.interfaces.containers import ProcessSession, SessionEnd
from batchyard.server.streaming import framing
from batchyard.server.streaming.framing import (
    PROTOCOL_ERROR,
    SpdyData,
    SpdyEvent,
    SpdyFrames,
    SpdyPing,
    SpdyStreamOpened,
    WebSocket,
    handshake_accept_key,
)
from batchyard.server.streaming.portforward import PortForwardSpdy, PortForwardWebSocket, SpdyConnection
from batchyard.server.streaming.upgraded_connection import UpgradedConnection, UpgradeHandler

# Exec and attach over a WebSocket: the first byte of each message is a channel number.
#
# Channel 0 is stdin, 1 stdout, 2 stderr, 3 the exit status, and 4 the terminal size. Since protocol version 5 a message
# of 255 and a channel number closes that channel. Sources: k8s.io/apimachinery pkg/util/remotecommand,
# k8s.io/streaming pkg/httpstream/wsstream.


_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE = range(5)
_CLOSE_CHANNEL: Final = 255
_OUTPUT_CHANNELS: Final = {"stdout": _STDOUT, "stderr": _STDERR}
#: Maximum bytes of an incomplete terminal size.
TERMINAL_SIZE_BYTES_MAX: Final = 1024


class ExecWebSocket:
    """An exec or attach session over a WebSocket, whose messages begin with a channel number."""

    def __init__(self, web_socket: WebSocket, exec_response: ExecResponse) -> None:
        self._socket = web_socket
        self._exec_response = exec_response
        self._channel: int | None = None
        #: The bytes received of a close message, and the parser of terminal sizes.
        self._close_message = b""
        self._size_parser = TerminalSizeParser()
        self._session: ProcessSession | None = None
        streams = exec_response.streams
        web_socket.set_handler(self)
        # The first message is empty, to show that the connection is established.
        web_socket.send(bytes([_STDOUT if streams.stdout else _STDERR if streams.stderr else _STATUS]))
        self._session = exec_response.open_session(self)

    # --- callbacks of the WebSocket ---

    def process_part(self, data: bytes, *, is_first: bool) -> None:
        """Process a part of a WebSocket message; `is_first` marks the first part of a message."""
        if is_first:
            self._channel, self._close_message = None, b""
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        if self._session is None or not data:
            return
        if self._channel == _STDIN:
            self._session.write(data)
        elif self._channel == _RESIZE:
            for columns, rows in self._size_parser.feed_bytes(data):
                self._session.resize(columns, rows)
        elif self._channel == _CLOSE_CHANNEL and self._exec_response.upgrade.subprotocol.startswith("v5"):
            self._close_message = (self._close_message + data)[:2]
            if self._close_message == bytes([_STDIN]):
                self._session.end_input()

    def set_writable(self, *, is_writable: bool) -> None:
        """Pause reading the process's output while the client accepts no more data (`is_writable` is False)."""
        if self._session is not None:
            self._session.set_reading(is_reading=is_writable)

    def shut_down(self) -> None:
        """Do nothing at the platform's shutdown: the WebSocket closes itself."""

    def connection_closed(self) -> None:
        """Disconnect from the process, because the connection to the client is lost."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- callbacks of the process session ---

    def process_output(self, output: str, data: bytes) -> None:
        """Send data that the process wrote to `output` (`stdout` or `stderr`) to the client."""
        self._socket.send(bytes([_OUTPUT_CHANNELS[output]]) + data)

    def set_accepts_input(self, *, accepts_input: bool) -> None:
        """Pause reading from the client while the process accepts no more input (`accepts_input` is False)."""
        self._socket.set_reading(is_reading=accepts_input)

    def process_end(self, session_end: SessionEnd) -> None:
        """Send the exit status of the process to the client, and close the connection."""
        self._session = None
        self._socket.send(bytes([_STATUS]) + msgspec.json.encode(self._exec_response.status(session_end)))
        self._socket.close()


class TerminalSizeParser:
    """A parser of the terminal sizes that an exec client sends as a sequence of JSON objects."""

    def __init__(self) -> None:
        self._incomplete_size = b""

    def feed_bytes(self, data: bytes) -> list[tuple[int, int]]:
        """Parse received bytes; return the complete valid terminal sizes as pairs of columns and rows."""
        *size_documents, self._incomplete_size = (self._incomplete_size + data).replace(b"}", b"}\n").split(b"\n")
        self._incomplete_size = self._incomplete_size[:TERMINAL_SIZE_BYTES_MAX]
        return [size for document_text in size_documents if (size := _parse_size(document_text)) is not None]


def _parse_size(text: bytes) -> tuple[int, int] | None:
    try:
        document: Mapping[str, Any] = msgspec.json.decode(text, type=dict[str, int])
    except msgspec.MsgspecError:
        return None
    return document.get("Width", 0), document.get("Height", 0)


_ERROR_STREAM: Final = "error"
_EXEC_SPDY_RESIZE: Final = "resize"


class ExecSpdy:
    """An exec or attach session over SPDY, with one stream each for input, outputs, terminal sizes and exit status."""

    def __init__(self, connection: SpdyConnection, exec_response: ExecResponse) -> None:
        self._connection = connection
        self._exec_response = exec_response
        self._frames = SpdyFrames()
        self._is_closed = False
        self._size_parser = TerminalSizeParser()
        self._session: ProcessSession | None = None
        self._streams: dict[str, int] = {}
        self._client_accepts_data = True
        requested_streams = exec_response.streams
        is_stream_wanted = {
            "stdin": requested_streams.stdin,
            "stdout": requested_streams.stdout,
            "stderr": requested_streams.stderr,
            _EXEC_SPDY_RESIZE: requested_streams.tty,
        }
        #: The streams that the client must open before the command starts.
        self._missing_streams = {_ERROR_STREAM, *(name for name, is_wanted in is_stream_wanted.items() if is_wanted)}

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
            self._connection.close()

    def set_writable(self, *, is_writable: bool) -> None:
        """Pause reading the process's output while the client accepts no more data (`is_writable` is False)."""
        self._client_accepts_data = is_writable
        if self._session is not None:
            self._session.set_reading(is_reading=is_writable)

    def shut_down(self) -> None:
        """Disconnect from the process and close the connection, because the platform shuts down."""
        self.connection_closed()
        self._connection.send(framing.encode_go_away())
        self._connection.close()

    def connection_closed(self) -> None:
        """Disconnect from the process, because the connection to the client is lost."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- callbacks of the process session ---

    def process_output(self, output: str, data: bytes) -> None:
        """Send data that the process wrote to `output` (`stdout` or `stderr`) to the client."""
        self._connection.send(framing.encode_data(self._streams[output], data))

    def set_accepts_input(self, *, accepts_input: bool) -> None:
        """Pause reading from the client while the process accepts no more input (`accepts_input` is False)."""
        self._connection.set_reading(is_reading=accepts_input)

    def process_end(self, session_end: SessionEnd) -> None:
        """Send the exit status of the process to the client, and close the connection."""
        self._session = None
        status = msgspec.json.encode(self._exec_response.status(session_end))
        self._connection.send(framing.encode_data(self._streams[_ERROR_STREAM], status))
        for stream in self._streams.values():
            self._connection.send(framing.encode_data(stream, b"", is_last=True))
        self._connection.close()

    def _process_event(self, event: SpdyEvent) -> None:
        if isinstance(event, SpdyPing):
            self._connection.send(framing.encode_ping(event.number))
        elif isinstance(event, SpdyStreamOpened):
            self._open_stream(event)
        elif isinstance(event, SpdyData) and self._session is not None:
            self._process_data(event, self._session)

    def _open_stream(self, opened_stream: SpdyStreamOpened) -> None:
        stream_type = opened_stream.headers.get("streamtype", "")
        if stream_type not in self._missing_streams:
            self._connection.send(framing.encode_reset(opened_stream.stream_id, PROTOCOL_ERROR))
            return
        self._missing_streams.discard(stream_type)
        self._streams[stream_type] = opened_stream.stream_id
        self._connection.send(self._frames.encode_reply(opened_stream.stream_id))
        if not self._missing_streams:
            self._session = self._exec_response.open_session(self)
            if not self._client_accepts_data:
                self._session.set_reading(is_reading=False)

    def _process_data(self, spdy_data: SpdyData, session: ProcessSession) -> None:
        if spdy_data.stream_id == self._streams.get("stdin"):
            session.write(spdy_data.data)
            if spdy_data.is_last:
                session.end_input()
        elif spdy_data.stream_id == self._streams.get(_EXEC_SPDY_RESIZE):
            for columns, rows in self._size_parser.feed_bytes(spdy_data.data):
                session.resize(columns, rows)


# Protocol upgrades: the 101 response, and the handler of the upgraded connection.


_SWITCHING_PROTOCOLS_HEAD: Final = b"HTTP/1.1 101 Switching Protocols\r\ndate: %b\r\nconnection: Upgrade\r\n%b\r\n"


def switching_protocols_response(response: UpgradeResponse, request: ApiRequest, date: bytes) -> bytes:
    """Return the bytes of the 101 (Switching Protocols) response to an upgrade request."""
    upgrade = response.upgrade
    if upgrade.transport == WEBSOCKET:
        key = handshake_accept_key(request.headers["sec-websocket-key"])
        header_fields = f"upgrade: websocket\r\nsec-websocket-accept: {key}\r\n"
        if upgrade.subprotocol:
            header_fields += f"sec-websocket-protocol: {upgrade.subprotocol}\r\n"
    else:
        header_fields = f"upgrade: {upgrade.transport}\r\nx-stream-protocol-version: {upgrade.subprotocol}\r\n"
    return _SWITCHING_PROTOCOLS_HEAD % (date, header_fields.encode("ascii"))


def serve_upgraded(
    response: UpgradeResponse, connection: UpgradedConnection, received_data: bytes, on_lost: Callable[[], None]
) -> None:
    """Create the handler of an upgraded connection, and pass it the bytes that were already received.

    `on_lost` is called when the connection is lost or closed.
    """
    if isinstance(response, ReplicationResponse):
        connection.start_handler(_NotifyingHandler(response.create_handler(connection), on_lost), received_data)
        return
    create_handler = _websocket_handler if response.upgrade.transport == WEBSOCKET else _spdy_handler
    connection.start_handler(_NotifyingHandler(create_handler(response, connection), on_lost), received_data)


def _websocket_handler(response: ExecResponse | PortForwardResponse, connection: UpgradedConnection) -> UpgradeHandler:
    web_socket = WebSocket(connection)
    if isinstance(response, ExecResponse):
        ExecWebSocket(web_socket, response)
    elif response.ports:
        PortForwardWebSocket(web_socket, response, connection)
    else:
        web_socket.set_handler(PortForwardSpdy(web_socket, response, connection))
    return web_socket


def _spdy_handler(response: ExecResponse | PortForwardResponse, connection: UpgradedConnection) -> UpgradeHandler:
    if isinstance(response, ExecResponse):
        return ExecSpdy(connection, response)
    return PortForwardSpdy(connection, response, connection)


class _NotifyingHandler:
    def __init__(self, handler: UpgradeHandler, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost
        self.feed_bytes = handler.feed_bytes
        self.set_writable = handler.set_writable
        self.shut_down = handler.shut_down
        self._handler_lost = handler.connection_closed

    def connection_closed(self) -> None:
        self._handler_lost()
        self._on_lost()
