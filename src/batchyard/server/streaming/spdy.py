"""SPDY/3.1 frames, as far as Kubernetes uses them: streams with headers, data, resets and pings.

Source: the draft SPDY Protocol 3.1. Streams have no flow control, as in moby/spdystream.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

_SYN_STREAM, _SYN_REPLY, _RST_STREAM, _PING, _GOAWAY = 1, 2, 3, 6, 7
_CONTROL: Final = 0x80000000
_VERSION: Final = 3
_FIN: Final = 1
_ID: Final = 0x7FFFFFFF
#: Maximum bytes of a control frame, bytes of its decompressed headers, and number of headers: a short frame can
#: decompress to many.
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
    """A stream was opened. Header names are in lower case."""

    stream: int
    headers: Mapping[str, str]
    is_last: bool


class SpdyData(NamedTuple):
    """A part of a stream's data."""

    stream: int
    data: bytes
    is_last: bool


class SpdyReset(NamedTuple):
    """A stream was reset."""

    stream: int


class SpdyPing(NamedTuple):
    """A ping, to be answered with the same number."""

    number: int


Event: TypeAlias = SpdyStreamOpened | SpdyData | SpdyReset | SpdyPing


class SpdyFrames:
    """The incoming and outgoing frames of a connection, with their compression state."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        #: The data frame being received: its stream, its missing bytes, and whether it is the last.
        self._stream, self._left, self._is_last = 0, 0, False
        self._inflate = zlib.decompressobj(zdict=dictionary())
        self._deflate = zlib.compressobj(zdict=dictionary())

    def fed(self, data: bytes) -> Iterator[Event]:
        """Parse received bytes, and yield the events. Raises SpdyError if they are not valid SPDY."""
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
        """Return the frame that accepts a stream."""
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
    """Return a data frame."""
    return struct.pack(">II", stream, (_FIN if is_last else 0) << 24 | len(sent)) + sent


def reset(stream: int, status: int) -> bytes:
    """Return a frame that resets a stream."""
    return _framed(_RST_STREAM, struct.pack(">II", stream, status))


def ping(number: int) -> bytes:
    """Return a ping frame, or the answer to one."""
    return _framed(_PING, struct.pack(">I", number))


def go_away() -> bytes:
    """Return a frame that rejects further streams."""
    return _framed(_GOAWAY, struct.pack(">II", 0, 0))


def dictionary() -> bytes:
    """Return the initial compression dictionary of headers."""
    words = (word.replace("_", " ").encode() for word in _WORDS.split())
    return b"".join(struct.pack(">I", len(word)) + word for word in words) + _TEXT.encode()


def _framed(kind: int, body: bytes) -> bytes:
    return struct.pack(">II", _CONTROL | _VERSION << 16 | kind, len(body)) + body


def _counted(text: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes after a length prefix, and the offset after them."""
    (length,) = struct.unpack_from(">I", text, at)
    end = at + 4 + length
    if end > len(text):
        raise SpdyError
    return text[at + 4 : end], end
