"""Encoding and parsing of SPDY/3.1 frames and WebSocket messages, for upgraded HTTP connections.

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
_CONTROL_FLAG: Final = 0x80000000
_SPDY_VERSION: Final = 3
_FIN_FLAG: Final = 1
_STREAM_ID_MASK: Final = 0x7FFFFFFF
#: Maximum bytes of a control frame, maximum bytes of its decompressed headers, and maximum number of headers.
CONTROL_MAX: Final = 64 * 1024
HEADERS_BYTES_MAX: Final = 8 * 1024
HEADERS_MAX: Final = 64
PROTOCOL_ERROR: Final = 1
REFUSED_STREAM: Final = 3
CANCEL: Final = 5

# The initial compression dictionary: common words of HTTP, each preceded by its length, then more text.
_DICTIONARY_WORDS: Final = """
options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow
authorization cache-control connection content-base content-encoding content-language content-length content-location
content-md5 content-range content-type date etag expect expires from host if-match if-modified-since if-none-match
if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate proxy-authorization range
referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning www-authenticate method get
status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin
"""
_DICTIONARY_TEXT: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505"
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden"
    "404 Not Found500 Internal Server Error501 Not Implemented503 Service Unavailable"
    "Jan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMT"
    "chunked,text/html,image/png,image/jpg,image/gif,application/xml,application/xhtml+xml,text/plain,text/javascript,"
    "publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


class SpdyError(Exception):
    """The bytes received on a connection are not valid SPDY."""


class SpdyStreamOpened(NamedTuple):
    """An event: the client opened a SPDY stream with these headers (names in lowercase)."""

    stream_id: int
    headers: Mapping[str, str]
    #: Whether the client sends no data on the stream.
    is_last: bool


class SpdyData(NamedTuple):
    """An event: the client sent data on a SPDY stream."""

    stream_id: int
    data: bytes
    #: Whether the client sends no more data on the stream.
    is_last: bool


class SpdyReset(NamedTuple):
    """An event: the client reset a SPDY stream."""

    stream_id: int


class SpdyPing(NamedTuple):
    """An event: the client sent a SPDY ping, which must be answered with the same number."""

    number: int


SpdyEvent: TypeAlias = SpdyStreamOpened | SpdyData | SpdyReset | SpdyPing


class SpdyFrames:
    """A parser and encoder of the SPDY frames of one connection, with the state of header compression."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        #: The data frame being received: its stream, its missing bytes, and whether it is the last.
        self._stream_id, self._remaining_bytes, self._is_last = 0, 0, False
        self._inflate = zlib.decompressobj(zdict=compression_dictionary())
        self._deflate = zlib.compressobj(zdict=compression_dictionary())

    def feed_bytes(self, data: bytes) -> Iterator[SpdyEvent]:
        """Yield the events of received bytes; a data frame may yield several. Raises SpdyError for invalid bytes."""
        self._buffer += data
        while True:
            if self._remaining_bytes:
                if not self._buffer:
                    return
                yield self._take_data()
                continue
            if len(self._buffer) < 8:
                return
            first_word, second_word = struct.unpack_from(">II", self._buffer)
            flags, frame_length = second_word >> 24, second_word & 0xFFFFFF
            if not first_word & _CONTROL_FLAG:
                del self._buffer[:8]
                self._stream_id, self._remaining_bytes, self._is_last = (
                    first_word,
                    frame_length,
                    bool(flags & _FIN_FLAG),
                )
                if not frame_length:
                    yield SpdyData(first_word, b"", self._is_last)
                continue
            if (first_word & _STREAM_ID_MASK) >> 16 != _SPDY_VERSION or frame_length > CONTROL_MAX:
                raise SpdyError
            if len(self._buffer) < 8 + frame_length:
                return
            frame_body = bytes(self._buffer[8 : 8 + frame_length])
            del self._buffer[: 8 + frame_length]
            event = self._parse_control_frame(first_word & 0xFFFF, flags, frame_body)
            if event is not None:
                yield event

    def encode_reply(self, stream_id: int) -> bytes:
        """Return a SYN_REPLY frame, which accepts a SPDY stream that the client opened."""
        compressed_headers = self._deflate.compress(struct.pack(">I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return _encode_control_frame(_SYN_REPLY, struct.pack(">I", stream_id) + compressed_headers)

    def _take_data(self) -> SpdyData:
        chunk_size = min(self._remaining_bytes, len(self._buffer))
        data = bytes(self._buffer[:chunk_size])
        del self._buffer[:chunk_size]
        self._remaining_bytes -= chunk_size
        return SpdyData(self._stream_id, data, self._is_last and not self._remaining_bytes)

    def _parse_control_frame(self, frame_type: int, flags: int, body: bytes) -> SpdyEvent | None:
        try:
            if frame_type == _SYN_STREAM:
                (stream_id,) = struct.unpack_from(">I", body)
                return SpdyStreamOpened(
                    stream_id & _STREAM_ID_MASK, self._parse_headers(body[10:]), bool(flags & _FIN_FLAG)
                )
            if frame_type == _RST_STREAM:
                return SpdyReset(struct.unpack_from(">I", body)[0] & _STREAM_ID_MASK)
            if frame_type == _PING:
                return SpdyPing(struct.unpack_from(">I", body)[0])
        except (struct.error, zlib.error) as error:
            raise SpdyError from error
        return None

    def _parse_headers(self, compressed_headers: bytes) -> Mapping[str, str]:
        header_block = self._inflate.decompress(compressed_headers, HEADERS_BYTES_MAX)
        if self._inflate.unconsumed_tail:
            raise SpdyError
        (header_count,), block_offset = struct.unpack_from(">I", header_block), 4
        if header_count > HEADERS_MAX:
            raise SpdyError
        headers = {}
        for _ in range(header_count):
            name, block_offset = _read_length_prefixed(header_block, block_offset)
            value, block_offset = _read_length_prefixed(header_block, block_offset)
            headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        return headers


def encode_data(stream_id: int, payload: bytes, *, is_last: bool = False) -> bytes:
    """Return a SPDY data frame of a stream; `is_last` ends the stream in the direction of the client."""
    return struct.pack(">II", stream_id, (_FIN_FLAG if is_last else 0) << 24 | len(payload)) + payload


def encode_reset(stream_id: int, status_code: int) -> bytes:
    """Return a RST_STREAM frame, which resets a SPDY stream with a status code."""
    return _encode_control_frame(_RST_STREAM, struct.pack(">II", stream_id, status_code))


def encode_ping(number: int) -> bytes:
    """Return a SPDY ping frame; the answer to a ping is a ping with the same number."""
    return _encode_control_frame(_PING, struct.pack(">I", number))


def encode_go_away() -> bytes:
    """Return a SPDY GOAWAY frame, after which the client must not open more streams."""
    return _encode_control_frame(_GOAWAY, struct.pack(">II", 0, 0))


def compression_dictionary() -> bytes:
    """Return the dictionary that SPDY/3 defines for the compression of headers."""
    dictionary_words = (word.replace("_", " ").encode() for word in _DICTIONARY_WORDS.split())
    return b"".join(struct.pack(">I", len(word)) + word for word in dictionary_words) + _DICTIONARY_TEXT.encode()


def _encode_control_frame(frame_type: int, body: bytes) -> bytes:
    return struct.pack(">II", _CONTROL_FLAG | _SPDY_VERSION << 16 | frame_type, len(body)) + body


def _read_length_prefixed(content: bytes, offset: int) -> tuple[bytes, int]:
    """Return the bytes after a length prefix at this offset, and the offset after them.

    Raises SpdyError or struct.error if bytes are missing.
    """
    (content_length,) = struct.unpack_from(">I", content, offset)
    end = offset + 4 + content_length
    if end > len(content):
        raise SpdyError
    return content[offset + 4 : end], end


# Server side of WebSockets (RFC 6455), on wsproto's frames.


#: The GUID that RFC 6455 appends to the key of a handshake.
_HANDSHAKE_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_DATA_OPCODES: Final = frozenset({Opcode.TEXT, Opcode.BINARY, Opcode.CONTINUATION})


class MessageHandler(Protocol):
    """A handler of the messages of a WebSocket, which arrive in parts."""

    def process_part(self, data: bytes, *, is_first: bool) -> None:
        """Process a part of a WebSocket message; `is_first` marks the first part of a message."""

    def set_writable(self, *, is_writable: bool) -> None:
        """Stop or resume sending: the connection's write buffer is full (`is_writable` is False) or has room again."""

    def shut_down(self) -> None:
        """End the session, because the platform shuts down."""

    def connection_closed(self) -> None:
        """Release all resources of the session, because the connection is lost or closed."""


class WebSocket:
    """The server side of a WebSocket: parses its frames, and passes messages to a handler."""

    def __init__(self, transport: UpgradedTransport) -> None:
        self._transport = transport
        self._frames = FrameProtocol(client=False, extensions=[])
        self._handler: MessageHandler | None = None
        self._is_closed = False
        self._is_message_complete = True
        self._is_writable = True
        self._delayed_ping: bytes | None = None

    def set_handler(self, handler: MessageHandler) -> None:
        """Set the handler of the WebSocket's messages."""
        self._handler = handler

    def send(self, data: bytes) -> None:
        """Send a binary message to the client, unless the WebSocket is closed."""
        if not self._is_closed:
            self._transport.send(bytes(self._frames.send_data(data, fin=True)))

    def set_reading(self, *, is_reading: bool) -> None:
        """Resume or pause reading from the client."""
        self._transport.set_reading(is_reading=is_reading)

    def close(self, code: CloseReason = CloseReason.NORMAL_CLOSURE) -> None:
        """Send a close frame with this code, and close the connection after the client's close frame or a timeout.

        Do nothing if the WebSocket is closed already.
        """
        if not self._is_closed:
            self._is_closed = True
            self._transport.send(bytes(self._frames.close(code)))
            self._transport.close()

    # --- callbacks of the connection ---

    def feed_bytes(self, data: bytes) -> None:
        """Process the WebSocket frames in received bytes; after invalid bytes, close the connection."""
        self._frames.receive_bytes(data)
        try:
            for frame in self._frames.received_frames():
                self._process_frame(frame)
        except ParseFailed as failure:
            self._remove_handler()
            self.close(failure.code)
            self._transport.close(at_once=True)

    def set_writable(self, *, is_writable: bool) -> None:
        """Make the message handler stop or resume sending; when sending resumes, answer a delayed ping."""
        self._is_writable = is_writable
        if is_writable and self._delayed_ping is not None:
            ping_payload, self._delayed_ping = self._delayed_ping, None
            self._transport.send(bytes(self._frames.pong(ping_payload)))
        if self._handler is not None:
            self._handler.set_writable(is_writable=is_writable)

    def shut_down(self) -> None:
        """Notify the message handler of the shutdown, and close the WebSocket with code GOING_AWAY."""
        if self._handler is not None:
            self._handler.shut_down()
        self._remove_handler()
        self.close(CloseReason.GOING_AWAY)

    def connection_closed(self) -> None:
        """Notify the message handler that the connection was lost."""
        self._is_closed = True
        self._remove_handler()

    def _process_frame(self, frame: Frame) -> None:
        if frame.opcode is Opcode.CLOSE:
            self._remove_handler()
            self.close()
            self._transport.close(at_once=True)
        elif self._is_closed:
            return
        elif frame.opcode is Opcode.PING:
            self._answer_ping(_payload_bytes(frame))
        elif frame.opcode in _DATA_OPCODES and self._handler is not None:
            is_first, self._is_message_complete = self._is_message_complete, frame.message_finished
            self._handler.process_part(_payload_bytes(frame), is_first=is_first)

    def _answer_ping(self, payload: bytes) -> None:
        if self._is_writable:
            self._transport.send(bytes(self._frames.pong(payload)))
        else:
            self._delayed_ping = payload

    def _remove_handler(self) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.connection_closed()


def _payload_bytes(frame: Frame) -> bytes:
    payload = frame.payload
    assert not isinstance(payload, tuple), "the payload of a data or ping frame is not a tuple"
    return payload.encode() if isinstance(payload, str) else bytes(payload)


def handshake_accept_key(key: str) -> str:
    """Return the value of the Sec-WebSocket-Accept header for a client's Sec-WebSocket-Key."""
    digest = hashlib.sha1(key.encode("latin-1") + _HANDSHAKE_GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode("ascii")
