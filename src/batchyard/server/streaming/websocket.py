"""Server side of WebSockets (RFC 6455), on wsproto's frames."""

import base64
import hashlib
from typing import Final, Protocol

from wsproto.frame_protocol import CloseReason, Frame, FrameProtocol, Opcode, ParseFailed

from batchyard.server.streaming.upgraded_connection import UpgradedTransport

#: The GUID that RFC 6455 appends to the key of a handshake.
_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_DATA: Final = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONTINUATION})


class MessageHandler(Protocol):
    """The receiver of messages, which arrive in parts."""

    def part(self, data: bytes, *, is_first: bool) -> None:
        """Handle a part of a message; `is_first` marks the beginning of a message."""

    def may_write(self, *, may: bool) -> None:
        """Handle that the write buffer became full or has room again."""

    def ends(self) -> None:
        """Handle the shutdown of the platform."""

    def lost(self) -> None:
        """Handle the loss of the connection."""


class WebSocket:
    """A WebSocket on a connection, and the receiver of its messages."""

    def __init__(self, wire: UpgradedTransport) -> None:
        self._wire = wire
        self._frames = FrameProtocol(client=False, extensions=[])
        self._messages: MessageHandler | None = None
        self._is_closed = False
        self._is_between = True
        self._may_write = True
        self._ping: bytes | None = None

    def set_handler(self, messages: MessageHandler) -> None:
        """Set the receiver of messages."""
        self._messages = messages

    def send(self, data: bytes) -> None:
        """Send a message."""
        if not self._is_closed:
            self._wire.send(bytes(self._frames.send_data(data, fin=True)))

    def listen(self, *, listens: bool) -> None:
        """Resume or pause reading."""
        self._wire.listen(listens=listens)

    def close(self, code: CloseReason = CloseReason.NORMAL_CLOSURE) -> None:
        """Send a close frame, and wait for the peer's."""
        if not self._is_closed:
            self._is_closed = True
            self._wire.send(bytes(self._frames.close(code)))
            self._wire.close()

    # --- callbacks of the connection ---

    def fed(self, data: bytes) -> None:
        """Parse received bytes."""
        self._frames.receive_bytes(data)
        try:
            for frame in self._frames.received_frames():
                self._take(frame)
        except ParseFailed as failure:
            self._gone()
            self.close(failure.code)
            self._wire.close(at_once=True)

    def may_write(self, *, may: bool) -> None:
        """Notify the receiver. Of pings received while the write buffer was full, only the last is answered."""
        self._may_write = may
        if may and self._ping is not None:
            ping, self._ping = self._ping, None
            self._wire.send(bytes(self._frames.pong(ping)))
        if self._messages is not None:
            self._messages.may_write(may=may)

    def ends(self) -> None:
        """Notify the receiver, and close with GOING_AWAY."""
        if self._messages is not None:
            self._messages.ends()
        self._gone()
        self.close(CloseReason.GOING_AWAY)

    def lost(self) -> None:
        """Notify the receiver that the connection is lost."""
        self._is_closed = True
        self._gone()

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self._gone()
            self.close()
            self._wire.close(at_once=True)
        elif self._is_closed:
            return
        elif frame.opcode is Opcode.PING:
            self._answer_ping(_bytes(frame))
        elif frame.opcode in _DATA and self._messages is not None:
            is_first, self._is_between = self._is_between, frame.message_finished
            self._messages.part(_bytes(frame), is_first=is_first)

    def _answer_ping(self, payload: bytes) -> None:
        if self._may_write:
            self._wire.send(bytes(self._frames.pong(payload)))
        else:
            self._ping = payload

    def _gone(self) -> None:
        """Detach and notify the receiver."""
        messages, self._messages = self._messages, None
        if messages is not None:
            messages.lost()


def _bytes(frame: Frame) -> bytes:
    """Return the payload of a data frame; text as UTF-8."""
    payload = frame.payload
    assert not isinstance(payload, tuple), "a close frame is not a data frame"
    return payload.encode() if isinstance(payload, str) else bytes(payload)


def accepted(key: str) -> str:
    """Return the Sec-WebSocket-Accept value for the key of a handshake."""
    digest = hashlib.sha1(key.encode("latin-1") + _MAGIC, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode("ascii")
