"""Upgraded connections of pods: the 101 response, the choice of a handler, and exec and attach over SPDY or WebSocket.

Source: k8s.io/cri-streaming pkg/streaming/remotecommand.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from batchyard.apiserver.request import ApiRequest, ExecResponse, UpgradeResponse
from batchyard.apiserver.subresources.pod_streams import WEBSOCKET
from batchyard.interfaces.containers import ProcessSession, SessionEnd
from batchyard.server.streaming import framing
from batchyard.server.streaming.framing import (
    PROTOCOL_ERROR,
    Event,
    SpdyData,
    SpdyFrames,
    SpdyPing,
    SpdyStreamOpened,
    WebSocket,
    accepted,
)
from batchyard.server.streaming.portforward import PortForwardSpdy, PortForwardWebSocket, SpdyConnection
from batchyard.server.streaming.upgraded_connection import UpgradedConnection, UpgradeHandler

# --- exec websocket ---
#
# Exec and attach over a WebSocket: the first byte of each message is a channel number.
#
# Channel 0 is stdin, 1 stdout, 2 stderr, 3 the exit status, and 4 the terminal size. Since protocol version 5 a message
# of 255 and a channel number closes that channel. Sources: k8s.io/apimachinery pkg/util/remotecommand,
# k8s.io/streaming pkg/httpstream/wsstream.


_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE = range(5)
_CLOSE: Final = 255
_OUTPUTS: Final = {"stdout": _STDOUT, "stderr": _STDERR}
#: Maximum bytes of an incomplete terminal size.
SIZE_MAX: Final = 1024


class ExecWebSocket:
    """An exec or attach session over a WebSocket, whose messages begin with a channel number."""

    def __init__(self, socket: WebSocket, command: ExecResponse) -> None:
        self._socket = socket
        self._command = command
        self._channel: int | None = None
        #: The bytes received of a close message, and the parser of terminal sizes.
        self._closing = b""
        self._sizes = TerminalSizeParser()
        self._session: ProcessSession | None = None
        streams = command.streams
        socket.set_handler(self)
        # The first message is empty, to show that the connection is established.
        socket.send(bytes([_STDOUT if streams.stdout else _STDERR if streams.stderr else _STATUS]))
        self._session = command.open(self)

    # --- callbacks of the WebSocket ---

    def part(self, data: bytes, *, is_first: bool) -> None:
        """Process a part of a message; `is_first` marks the first part of a message."""
        if is_first:
            self._channel, self._closing = None, b""
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        if self._session is None or not data:
            return
        if self._channel == _STDIN:
            self._session.write(data)
        elif self._channel == _RESIZE:
            for columns, rows in self._sizes.fed(data):
                self._session.resize(columns, rows)
        elif self._channel == _CLOSE and self._command.upgrade.protocol.startswith("v5"):
            self._closing = (self._closing + data)[:2]
            if self._closing == bytes([_STDIN]):
                self._session.end_input()

    def may_write(self, *, may: bool) -> None:
        """Resume or pause reading the process's output, as the client accepts more data or not."""
        if self._session is not None:
            self._session.listen(listens=may)

    def ends(self) -> None:
        """Do nothing, because the WebSocket closes itself at shutdown."""

    def lost(self) -> None:
        """Disconnect from the process, because the connection to the client is lost."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- callbacks of the process session ---

    def received(self, output: str, data: bytes) -> None:
        """Send output of the process to the client."""
        self._socket.send(bytes([_OUTPUTS[output]]) + data)

    def wants_more(self, *, wants: bool) -> None:
        """Resume or pause reading from the client, as the process accepts more input or not."""
        self._socket.listen(listens=wants)

    def ended(self, ending: SessionEnd) -> None:
        """Send the exit status of the process to the client, and close the connection."""
        self._session = None
        self._socket.send(bytes([_STATUS]) + msgspec.json.encode(self._command.status(ending)))
        self._socket.close()


class TerminalSizeParser:
    """A parser of terminal sizes, which the client sends as a sequence of JSON objects."""

    def __init__(self) -> None:
        self._text = b""

    def fed(self, data: bytes) -> list[tuple[int, int]]:
        """Parse received bytes, and return the complete terminal sizes, as columns and rows."""
        *texts, self._text = (self._text + data).replace(b"}", b"}\n").split(b"\n")
        self._text = self._text[:SIZE_MAX]
        return [size for text in texts if (size := _size(text)) is not None]


def _size(text: bytes) -> tuple[int, int] | None:
    try:
        document: Mapping[str, Any] = msgspec.json.decode(text, type=dict[str, int])
    except msgspec.MsgspecError:
        return None
    return document.get("Width", 0), document.get("Height", 0)


_ERROR: Final = "error"
_EXEC_SPDY_RESIZE: Final = "resize"


class ExecSpdy:
    """An exec or attach session over SPDY, with one stream each for input, outputs, errors and terminal size."""

    def __init__(self, sink: SpdyConnection, command: ExecResponse) -> None:
        self._sink = sink
        self._command = command
        self._frames = SpdyFrames()
        self._is_over = False
        self._sizes = TerminalSizeParser()
        self._session: ProcessSession | None = None
        self._streams: dict[str, int] = {}
        self._takes = True
        wanted = command.streams
        asked = {"stdin": wanted.stdin, "stdout": wanted.stdout, "stderr": wanted.stderr, _EXEC_SPDY_RESIZE: wanted.tty}
        #: The streams that the client must open before the command starts.
        self._awaited = {_ERROR, *(name for name, is_wanted in asked.items() if is_wanted)}

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
            self._sink.close()

    def may_write(self, *, may: bool) -> None:
        """Resume or pause reading the process's output, as the client accepts more data or not."""
        self._takes = may
        if self._session is not None:
            self._session.listen(listens=may)

    def ends(self) -> None:
        """Disconnect from the process, and close the connection, at the shutdown of the platform."""
        self.lost()
        self._sink.send(framing.go_away())
        self._sink.close()

    def lost(self) -> None:
        """Disconnect from the process, because the connection to the client is lost."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- callbacks of the process session ---

    def received(self, output: str, data: bytes) -> None:
        """Send output of the process to the client."""
        self._sink.send(framing.data(self._streams[output], data))

    def wants_more(self, *, wants: bool) -> None:
        """Resume or pause reading from the client, as the process accepts more input or not."""
        self._sink.listen(listens=wants)

    def ended(self, ending: SessionEnd) -> None:
        """Send the exit status of the process to the client, and close the connection."""
        self._session = None
        status = msgspec.json.encode(self._command.status(ending))
        self._sink.send(framing.data(self._streams[_ERROR], status))
        for stream in self._streams.values():
            self._sink.send(framing.data(stream, b"", is_last=True))
        self._sink.close()

    def _take(self, event: Event) -> None:
        if isinstance(event, SpdyPing):
            self._sink.send(framing.ping(event.number))
        elif isinstance(event, SpdyStreamOpened):
            self._open(event)
        elif isinstance(event, SpdyData) and self._session is not None:
            self._take_part(event, self._session)

    def _open(self, opened: SpdyStreamOpened) -> None:
        kind = opened.headers.get("streamtype", "")
        if kind not in self._awaited:
            self._sink.send(framing.reset(opened.stream, PROTOCOL_ERROR))
            return
        self._awaited.discard(kind)
        self._streams[kind] = opened.stream
        self._sink.send(self._frames.accept(opened.stream))
        if not self._awaited:
            self._session = self._command.open(self)
            if not self._takes:
                self._session.listen(listens=False)

    def _take_part(self, part: SpdyData, session: ProcessSession) -> None:
        if part.stream == self._streams.get("stdin"):
            session.write(part.data)
            if part.is_last:
                session.end_input()
        elif part.stream == self._streams.get(_EXEC_SPDY_RESIZE):
            for columns, rows in self._sizes.fed(part.data):
                session.resize(columns, rows)


# --- dispatch ---
#
# Protocol upgrades: the 101 response, and the handler of the upgraded connection.


_SWITCHING: Final = b"HTTP/1.1 101 Switching Protocols\r\ndate: %b\r\nconnection: Upgrade\r\n%b\r\n"


def switched(answer: UpgradeResponse, request: ApiRequest, date: bytes) -> bytes:
    """Return the 101 (Switching Protocols) response to an upgrade request."""
    upgrade = answer.upgrade
    if upgrade.to == WEBSOCKET:
        key = accepted(request.headers["sec-websocket-key"])
        fields = f"upgrade: websocket\r\nsec-websocket-accept: {key}\r\n"
        if upgrade.protocol:
            fields += f"sec-websocket-protocol: {upgrade.protocol}\r\n"
    else:
        fields = f"upgrade: {upgrade.to}\r\nx-stream-protocol-version: {upgrade.protocol}\r\n"
    return _SWITCHING % (date, fields.encode("ascii"))


def serve_upgraded(answer: UpgradeResponse, wire: UpgradedConnection, rest: bytes, over: Callable[[], None]) -> None:
    """Serve an upgraded connection; `rest` was already read from it. `over` is called when the connection is lost."""
    speaker = _over_websocket(answer, wire) if answer.upgrade.to == WEBSOCKET else _over_spdy(answer, wire)
    wire.speak(_NotifyingHandler(speaker, over), rest)


def _over_websocket(answer: UpgradeResponse, wire: UpgradedConnection) -> UpgradeHandler:
    socket = WebSocket(wire)
    if isinstance(answer, ExecResponse):
        ExecWebSocket(socket, answer)
    elif answer.ports:
        PortForwardWebSocket(socket, answer, wire)
    else:
        socket.set_handler(PortForwardSpdy(socket, answer, wire))
    return socket


def _over_spdy(answer: UpgradeResponse, wire: UpgradedConnection) -> UpgradeHandler:
    return ExecSpdy(wire, answer) if isinstance(answer, ExecResponse) else PortForwardSpdy(wire, answer, wire)


class _NotifyingHandler:
    """A connection handler that delegates to another, and calls a callback when the connection is lost."""

    def __init__(self, speaker: UpgradeHandler, over: Callable[[], None]) -> None:
        self._over = over
        self.fed = speaker.fed
        self.may_write = speaker.may_write
        self.ends = speaker.ends
        self._lost = speaker.lost

    def lost(self) -> None:
        """Notify the other handler that the connection is lost, and call the callback."""
        self._lost()
        self._over()
