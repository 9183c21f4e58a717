"""Exec and attach over SPDY, for clients without WebSockets: a stream for each of stdin, stdout, stderr, error, resize.

Source: k8s.io/cri-streaming pkg/streaming/remotecommand/httpstream.go.
"""

from typing import Final

import msgspec

from batchyard.apiserver.responses import ExecResponse
from batchyard.interfaces.containers import ProcessSession, SessionEnd
from batchyard.server.streaming import spdy
from batchyard.server.streaming.exec_websocket import TerminalSizeParser
from batchyard.server.streaming.portforward_spdy import SpdyConnection
from batchyard.server.streaming.spdy import PROTOCOL_ERROR, Event, SpdyData, SpdyFrames, SpdyPing, SpdyStreamOpened

_ERROR: Final = "error"
_RESIZE: Final = "resize"


class ExecSpdy:
    """A command and its SPDY streams."""

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
        asked = {"stdin": wanted.stdin, "stdout": wanted.stdout, "stderr": wanted.stderr, _RESIZE: wanted.tty}
        #: The streams that the client must open before the command starts.
        self._awaited = {_ERROR, *(name for name, is_wanted in asked.items() if is_wanted)}

    # --- callbacks of the connection ---

    def fed(self, data: bytes) -> None:
        """Handle received bytes."""
        if self._is_over:
            return
        try:
            for event in self._frames.fed(data):
                self._take(event)
        except spdy.SpdyError:
            self._is_over = True
            self.lost()
            self._sink.close()

    def may_write(self, *, may: bool) -> None:
        """Read the command's output only while the client accepts more."""
        self._takes = may
        if self._session is not None:
            self._session.listen(listens=may)

    def ends(self) -> None:
        """Disconnect from the command, and close the connection."""
        self.lost()
        self._sink.send(spdy.go_away())
        self._sink.close()

    def lost(self) -> None:
        """Disconnect from the command."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    # --- callbacks of the command ---

    def received(self, output: str, data: bytes) -> None:
        """Send output of the command."""
        self._sink.send(spdy.data(self._streams[output], data))

    def wants_more(self, *, wants: bool) -> None:
        """Read from the client only while the command accepts more input."""
        self._sink.listen(listens=wants)

    def ended(self, ending: SessionEnd) -> None:
        """Send the exit status, and close."""
        self._session = None
        status = msgspec.json.encode(self._command.status(ending))
        self._sink.send(spdy.data(self._streams[_ERROR], status))
        for stream in self._streams.values():
            self._sink.send(spdy.data(stream, b"", is_last=True))
        self._sink.close()

    def _take(self, event: Event) -> None:
        if isinstance(event, SpdyPing):
            self._sink.send(spdy.ping(event.number))
        elif isinstance(event, SpdyStreamOpened):
            self._open(event)
        elif isinstance(event, SpdyData) and self._session is not None:
            self._take_part(event, self._session)

    def _open(self, opened: SpdyStreamOpened) -> None:
        kind = opened.headers.get("streamtype", "")
        if kind not in self._awaited:
            self._sink.send(spdy.reset(opened.stream, PROTOCOL_ERROR))
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
        elif part.stream == self._streams.get(_RESIZE):
            for columns, rows in self._sizes.fed(part.data):
                session.resize(columns, rows)
