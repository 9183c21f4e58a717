"""Framing of upgraded connections: encoding and parsing of SPDY/3.1 frames and WebSocket messages.

SPDY is implemented as far as Kubernetes uses it. Its streams have no flow control, as in moby/spdystream. Source: the
draft SPDY Protocol 3.1.
"""

import base64
import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

from wsproto.frame_protocol import CloseReason, Frame, FrameProtocol, Opcode, ParseFailed

from batchyard.server.streaming.upgraded_connection import UpgradedTransport

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY = 1, 2, 3, 6, 7
_CONTROL: Final = 0x80000000
_VERSION: Final = 3
_FIN: Final = 1
_ID: Final = 0x7FFFFFFF
#: Maximum bytes of a control frame, maximum bytes of its decompressed headers, and maximum number of headers.
CONTROL_MAX: Final = 64 * 1024
HEADERS_BYTES_MAX: Final = 8 * 1024
HEADERS_MAX: Final = 64
PROTOCOL_ERROR: Final = 1
REFUSED_STREAM: Final = 3
CANCEL: Final = 5

# The initial compression dictionary: common words of HTTP, each preceded by its length, then more text.
_WORDS: Final = """
options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow
authorization cache-control connection content-base content-encoding content-language content-length content-location
content-md5 content-range content-type date etag expect expires from host if-match if-modified-since if-none-match
if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range
referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get
status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin
"""
_TEXT: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


class SpdyError(Exception):
    """The received bytes are not valid SPDY."""


class SpdyStreamOpened(NamedTuple):
    """An event: the client opened a SPDY stream, with these headers (names in lowercase)."""

    stream: int
    headers: Mapping[str, str]
    is_last: bool


class SpdyData(NamedTuple):
    """An event: the client sent data on a SPDY stream."""

    stream: int
    data: bytes
    is_last: bool


class SpdyReset(NamedTuple):
    """An event: the client reset a SPDY stream."""

    stream: int


class SpdyPing(NamedTuple):
    """An event: the client sent a ping, which is answered with the same number."""

    number: int


Event: TypeAlias = SpdyStreamOpened | SpdyData | SpdyReset | SpdyPing


class SpdyFrames:
    """A parser and encoder of the SPDY frames of one connection, with its compression state."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        #: The data frame being received: its stream, its missing bytes, and whether it is the last.
        self._stream, self._left, self._is_last = 0, 0, False
        self._inflate = zlib.decompressobj(zdict=dictionary())
        self._deflate = zlib.compressobj(zdict=dictionary())

    def fed(self, data: bytes) -> Iterator[Event]:
        """Parse received bytes, and yield the SPDY events in them. Raises SpdyError for invalid bytes."""
        self._buffer += data
        while True:
            if self._left:
                if not self._buffer:
                    return
                yield self._part()
                continue
            if len(self._buffer) < 8:
                return
            first, rest = struct.unpack_from(">II", self._buffer)
            flags, length = rest >> 24, rest & 0xFFFFFF
            if not first & _CONTROL:
                del self._buffer[:8]
                self._stream, self._left, self._is_last = first, length, bool(flags & _FIN)
                if not length:
                    yield SpdyData(first, b"", self._is_last)
                continue
            if (first & _ID) >> 16 != _VERSION or length > CONTROL_MAX:
                raise SpdyError
            if len(self._buffer) < 8 + length:
                return
            body = bytes(self._buffer[8 : 8 + length])
            del self._buffer[: 8 + length]
            event = self._control(first & 0xFFFF, flags, body)
            if event is not None:
                yield event

    def accept(self, stream: int) -> bytes:
        """Return a SYN_REPLY frame, which accepts a stream."""
        headers = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _framed(_SYN_REPLY, struct.pack(">I", stream) + headers)

    def _part(self) -> SpdyData:
        taken = min(self._left, len(self._buffer))
        data = bytes(self._buffer[:taken])
        del self._buffer[:taken]
        self._left -= taken
        return SpdyData(self._stream, data, self._is_last and not self._left)

    def _control(self, kind: int, flags: int, body: bytes) -> Event | None:
        try:
            if kind == _SYN_STREAM:
                (stream,) = struct.unpack_from(">I", body)
                return SpdyStreamOpened(stream & _ID, self._headers(body[10:]), bool(flags & _FIN))
            if kind == _RST_STREAM:
                return SpdyReset(struct.unpack_from(">I", body)[0] & _ID)
            if kind == _PING:
                return SpdyPing(struct.unpack_from(">I", body)[0])
        except (struct.error, zlib.error) as error:
            raise SpdyError from error
        return None

    def _headers(self, block: bytes) -> Mapping[str, str]:
        text = self._inflate.decompress(block, HEADERS_BYTES_MAX)
        if self._inflate.unconsumed_tail:
            raise SpdyError
        (count,), at = struct.unpack_from(">I", text), 4
        if count > HEADERS_MAX:
            raise SpdyError
        found = {}
        for _ in range(count):
            name, at = _counted(text, at)
            value, at = _counted(text, at)
            found[name.decode("latin-1").lower()] = value.decode("latin-1")
        return found


def data(stream: int, sent: bytes, *, is_last: bool = False) -> bytes:
    """Return a SPDY data frame of a stream."""
    return struct.pack(">II", stream, (_FIN if is_last else 0) << 24 | len(sent)) + sent


def reset(stream: int, status: int) -> bytes:
    """Return a RST_STREAM frame, which resets a stream with a status code."""
    return _framed(_RST_STREAM, struct.pack(">II", stream, status))


def ping(number: int) -> bytes:
    """Return a SPDY ping frame; the answer to a ping is a ping with the same number."""
    return _framed(_PING, struct.pack(">I", number))


def go_away() -> bytes:
    """Return a GOAWAY frame, which tells the client to open no more streams."""
    return _framed(_GOAWAY, struct.pack(">II", 0, 0))


def dictionary() -> bytes:
    """Return the compression dictionary for headers that the SPDY specification defines."""
    words = (word.replace("_", " ").encode() for word in _WORDS.split())
    return b"".join(struct.pack(">I", len(word)) + word for word in words) + _TEXT.encode()


def _framed(kind: int, body: bytes) -> bytes:
    return struct.pack(">II", _CONTROL | _VERSION << 16 | kind, len(body)) + body


def _counted(text: bytes, at: int) -> tuple[bytes, int]:
    """Return the length-prefixed bytes at an offset, and the offset after them. Raises SpdyError."""
    (length,) = struct.unpack_from(">I", text, at)
    end = at + 4 + length
    if end > len(text):
        raise SpdyError
    return text[at + 4 : end], end


# --- websocket ---
#
# Server side of WebSockets (RFC 6455), on wsproto's frames.


#: The GUID that RFC 6455 appends to the key of a handshake.
_MAGIC: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_DATA: Final = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONTINUATION})


class MessageHandler(Protocol):
    """A handler of WebSocket messages, which arrive in parts."""

    def part(self, data: bytes, *, is_first: bool) -> None:
        """Process a part of a message; `is_first` marks the first part of a message."""

    def may_write(self, *, may: bool) -> None:
        """Process that the write buffer is full (`may` is False) or has room again."""

    def ends(self) -> None:
        """Process the shutdown of the platform."""

    def lost(self) -> None:
        """Release all resources after the connection was lost or closed."""


class WebSocket:
    """The server side of a WebSocket: parses frames, and passes messages to a handler."""

    def __init__(self, wire: UpgradedTransport) -> None:
        self._wire = wire
        self._frames = FrameProtocol(client=False, extensions=[])
        self._messages: MessageHandler | None = None
        self._is_closed = False
        self._is_between = True
        self._may_write = True
        self._ping: bytes | None = None

    def set_handler(self, messages: MessageHandler) -> None:
        """Set the handler of messages."""
        self._messages = messages

    def send(self, data: bytes) -> None:
        """Send a binary message to the client."""
        if not self._is_closed:
            self._wire.send(bytes(self._frames.send_data(data, fin=True)))

    def listen(self, *, listens: bool) -> None:
        """Resume or pause reading from the client."""
        self._wire.listen(listens=listens)

    def close(self, code: CloseReason = CloseReason.NORMAL_CLOSURE) -> None:
        """Send a close frame, and close the connection after the client's close frame."""
        if not self._is_closed:
            self._is_closed = True
            self._wire.send(bytes(self._frames.close(code)))
            self._wire.close()

    # --- callbacks of the connection ---

    def fed(self, data: bytes) -> None:
        """Parse received bytes, and process the WebSocket frames in them."""
        self._frames.receive_bytes(data)
        try:
            for frame in self._frames.received_frames():
                self._take(frame)
        except ParseFailed as failure:
            self._gone()
            self.close(failure.code)
            self._wire.close(at_once=True)

    def may_write(self, *, may: bool) -> None:
        """Notify the message handler that it may write or must pause, and answer a ping that waited for this."""
        self._may_write = may
        if may and self._ping is not None:
            ping, self._ping = self._ping, None
            self._wire.send(bytes(self._frames.pong(ping)))
        if self._messages is not None:
            self._messages.may_write(may=may)

    def ends(self) -> None:
        """Notify the message handler of the shutdown, and close the WebSocket with GOING_AWAY."""
        if self._messages is not None:
            self._messages.ends()
        self._gone()
        self.close(CloseReason.GOING_AWAY)

    def lost(self) -> None:
        """Notify the message handler that the connection was lost."""
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
        """Remove the message handler, and notify it that the connection is lost."""
        messages, self._messages = self._messages, None
        if messages is not None:
            messages.lost()


def _bytes(frame: Frame) -> bytes:
    """Return the payload of a WebSocket data or ping frame as bytes; text is encoded as UTF-8."""
    payload = frame.payload
    assert not isinstance(payload, tuple), "the payload of a data or ping frame is not a tuple"
    return payload.encode() if isinstance(payload, str) else bytes(payload)


def accepted(key: str) -> str:
    """Return the Sec-WebSocket-Accept value for the key of a handshake."""
    digest = hashlib.sha1(key.encode("latin-1") + _MAGIC, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode("ascii")
