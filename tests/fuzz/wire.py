"""Invalid, multiple and endless requests as bytes on a socket, and their allowed responses."""

import re
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from fuzz.requests import FuzzRequest
from fuzz.seeded_random import SeededRandom

Dial = Callable[[], socket.socket]
"""Makes a connection."""

_WITHIN: Final = 20
_SILENCE: Final = 0.25
_GONE: Final = (ConnectionError, BrokenPipeError, TimeoutError, ssl.SSLError)
_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_GOOD: Final = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n"
_HOST: Final = b"host: localhost\r\n"
_POST: Final = (
    b"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
)
_SECOND: Final = b"DELETE /api/v1/namespaces/default/configmaps/kept HTTP/1.1\r\nhost: localhost\r\n\r\n"


class InvalidWireRequest(NamedTuple):
    """Sent bytes, and the maximum number of responses."""

    what: str
    sent: bytes
    answers_max: int = 1


def shapes() -> Iterator[InvalidWireRequest]:
    """Yield invalid and nearly valid requests."""
    yield InvalidWireRequest("nothing", b"")
    yield InvalidWireRequest("HTTP/0.9", b"GET /\r\n")
    yield InvalidWireRequest("HTTP/1.0", b"GET /healthz HTTP/1.0\r\n\r\n")
    yield InvalidWireRequest("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
    yield InvalidWireRequest("HTTP/9.9", b"GET / HTTP/9.9\r\nhost: a\r\n\r\n")
    yield InvalidWireRequest("TLS to plain", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"a" * 500)
    yield InvalidWireRequest(
        "upgrade to HTTP/2", _GOOD + b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\n\r\n"
    )
    websocket = (
        b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: a\r\n\r\n"
    )
    yield InvalidWireRequest("upgrade to a websocket", _GOOD + websocket)
    yield InvalidWireRequest("upgrade to SPDY", _GOOD + b"connection: upgrade\r\nupgrade: SPDY/3.1\r\n\r\n")
    yield InvalidWireRequest("a proxy's form", b"GET http://a/healthz HTTP/1.1\r\nhost: a\r\n\r\n")
    yield InvalidWireRequest("a tunnel", b"CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n")
    yield InvalidWireRequest("an asterisk", b"OPTIONS * HTTP/1.1\r\nhost: localhost\r\n\r\n")
    yield InvalidWireRequest("no path", b"GET  HTTP/1.1\r\n\r\n")
    yield InvalidWireRequest("no host", b"GET /healthz HTTP/1.1\r\n\r\n")
    yield InvalidWireRequest("two hosts", _GOOD + b"host: b\r\n\r\n")
    yield InvalidWireRequest("a folded header", _GOOD + b"a: b\r\n c\r\n\r\n")
    yield InvalidWireRequest("a space before the colon", _GOOD + b"a : b\r\n\r\n")
    yield InvalidWireRequest("a header without a name", _GOOD + b": b\r\n\r\n")
    yield InvalidWireRequest("a zero in a header", _GOOD + b"a: b\0c\r\n\r\n")
    yield InvalidWireRequest("bare line feeds", b"GET /healthz HTTP/1.1\nhost: localhost\n\n")
    yield InvalidWireRequest("bare returns", b"GET /healthz HTTP/1.1\rhost: localhost\r\r")
    yield InvalidWireRequest("many headers", _GOOD + b"".join(b"a%d: b\r\n" % i for i in range(20_000)) + b"\r\n")
    yield InvalidWireRequest("one header often", _GOOD + b"accept: b\r\n" * 5_000 + b"\r\n")
    yield InvalidWireRequest("a long method", b"A" * 100_000 + b" / HTTP/1.1\r\n\r\n")
    yield InvalidWireRequest(
        "a long time", _GOOD[:0] + b"GET /api/v1/pods?watch=1&timeoutSeconds=" + b"9" * 5_000 + b" HTTP/1.1\r\n\r\n"
    )
    yield InvalidWireRequest("expects to go on", _POST + b"content-length: 2\r\nexpect: 100-continue\r\n\r\n{}", 2)
    yield from _lengths()
    yield InvalidWireRequest("a hundred at once", (_GOOD + b"\r\n") * 100, 100)
    yield InvalidWireRequest("some after the last", _GOOD + b"connection: close\r\n\r\n" + _SECOND)
    gzip = b"\x1f\x8b\x08" + b"\0" * 100
    yield InvalidWireRequest("gzip", _POST + b"content-encoding: gzip\r\ncontent-length: 103\r\n\r\n" + gzip)


def _lengths() -> Iterator[InvalidWireRequest]:
    """Yield bodies with contradictory or invalid lengths."""
    chunks = b"5\r\nhello\r\n0\r\n\r\n"
    yield InvalidWireRequest("chunks", _POST + b"transfer-encoding: chunked\r\n\r\n" + chunks)
    both = b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    yield InvalidWireRequest("a length and chunks", _POST + both + _SECOND)
    yield InvalidWireRequest(
        "chunks and a length", _POST + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n5c\r\n" + _SECOND
    )
    yield InvalidWireRequest("two lengths", _POST + b"content-length: 2\r\ncontent-length: 90\r\n\r\n{}" + _SECOND)
    yield InvalidWireRequest("two lengths in one", _POST + b"content-length: 2, 90\r\n\r\n{}" + _SECOND)
    for coding in (
        b"xchunked",
        b"chunked, identity",
        b"identity",
        b"\x0bchunked",
        b"chunked\r\ntransfer-encoding: x",
        b"gzip",
    ):
        yield InvalidWireRequest(
            f"coding {coding!r}", _POST + b"transfer-encoding: " + coding + b"\r\n\r\n" + chunks + _SECOND
        )
    for length in (b"-1", b"+2", b"0x2", b"9" * 30, b"2 2", b"", b"1e1", b"\xb2"):
        yield InvalidWireRequest(f"length {length!r}", _POST + b"content-length: " + length + b"\r\n\r\n{}" + _SECOND)
    for size in (b"-5", b"0x5", b"f" * 30, b"5 ", b" 5", b"+5", b""):
        sent = _POST + b"transfer-encoding: chunked\r\n\r\n" + size + b"\r\nhello\r\n0\r\n\r\n"
        yield InvalidWireRequest(f"chunk {size[:9]!r}", sent + _SECOND)
    long = b"5;" + b"a" * 70_000 + b"\r\nhello\r\n0\r\n\r\n"
    yield InvalidWireRequest("a chunk with much about it", _POST + b"transfer-encoding: chunked\r\n\r\n" + long)
    trailers = b"0\r\n" + b"a: b\r\n" * 20_000 + b"\r\n"
    yield InvalidWireRequest("trailers", _POST + b"transfer-encoding: chunked\r\n\r\n" + trailers)


def garble(asked: FuzzRequest, dice: SeededRandom) -> bytes:
    """Return a request with changed bytes in a few places."""
    reported = {"host": "localhost", "content-length": str(len(asked.body)), **asked.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in reported.items())
    sent = bytearray(f"{asked.method} {asked.target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1", "replace") + asked.body)
    for _ in range(dice.below(4)):
        at = dice.below(len(sent))
        sent[at : at + dice.below(3)] = dice.one_of((b"", b"\0", b"\r", b"\n", b"\r\n", b" ", b":", dice.content(3)))
    return bytes(sent)


def codes(dial: Dial, sent: bytes, within: float = _SILENCE) -> Sequence[int]:
    """Send bytes; return the codes of the responses until the end or a timeout."""
    return [int(code) for code in _STATUS.findall(response_bytes(dial, sent, within))]


def response_bytes(dial: Dial, sent: bytes, within: float = _SILENCE) -> bytes:
    """Send bytes; return all received bytes until the end or a timeout."""
    received = bytearray()
    with suppress(*_GONE), dial() as wire:
        wire.settimeout(within)
        with suppress(*_GONE):
            wire.sendall(sent)
        while part := wire.recv(65_536):
            received += part
    return bytes(received)


def dialer(url: str, context: ssl.SSLContext | None = None) -> Dial:
    """Return a function that connects to a platform."""
    place = urlsplit(url)
    host, port = str(place.hostname), int(place.port or 0)

    def dial() -> socket.socket:
        plain = socket.create_connection((host, port), _WITHIN)
        return plain if context is None else context.wrap_socket(plain, server_hostname=host)

    return dial
