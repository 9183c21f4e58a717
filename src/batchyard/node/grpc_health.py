"""Asking a server for its health by gRPC: the one request of grpc.health.v1.Health, over HTTP/2 (RFC 9113).

Only the answer's message is read. What a server tells in compressed headers is not: an answer without a message is a
failure, whatever its reason.
"""

import socket
import struct

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _ACK, _PADDED = 0x1, 0x4, 0x1, 0x8
_STREAM = 1
_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
SERVING = _STATUSES[1]


class NoAnswerError(OSError):
    """The server has ended the request without a message."""


def check(connection: socket.socket, authority: str, service: str, agent: str) -> str:
    """The status of a service, of the whole server where it has no name. NoAnswerError, TimeoutError, OSError."""
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/grpc.health.v1.Health/Check",
        ":authority": authority,
        "content-type": "application/grpc",
        "user-agent": agent,
        "te": "trailers",
    }
    fields = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
    name = service.encode()
    message = b"\x0a" + _varint(len(name)) + name if name else b""
    request = _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, _END_HEADERS, _STREAM, fields)
    connection.sendall(_PREFACE + request + _frame(_DATA, _END_STREAM, _STREAM, _message(message)))
    return _status(_answer(connection))


def _answer(connection: socket.socket) -> bytes:
    """The message of the answer."""
    body = b""
    while True:
        length, kind, flags, stream = struct.unpack(">IBBI", b"\0" + _exactly(connection, 9))
        payload = _exactly(connection, length)
        if kind in {_SETTINGS, _PING} and not flags & _ACK:
            connection.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        if kind == _DATA and stream == _STREAM:
            body += payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload
            if len(body) >= 5 and len(body) - 5 >= int.from_bytes(body[1:5], "big"):
                return body[5:]
        is_over = stream == _STREAM and (kind == _RST_STREAM or (flags & _END_STREAM and kind in {_DATA, _HEADERS}))
        if is_over or kind == _GOAWAY:
            raise NoAnswerError("the server has ended the request without an answer")


def _status(message: bytes) -> str:
    """The field `status` of a HealthCheckResponse."""
    number = message[1] if message[:1] == b"\x08" else 0
    return _STATUSES[number] if number < len(_STATUSES) else str(number)


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        data = connection.recv(size - len(found))
        if not data:
            raise NoAnswerError("EOF")
        found += data
    return found


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _message(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def _text(value: str) -> bytes:
    """A text as HPACK has it, not compressed."""
    data = value.encode()
    if len(data) < 127:
        return bytes([len(data)]) + data
    return b"\x7f" + _varint(len(data) - 127) + data


def _varint(number: int) -> bytes:
    found = b""
    while number > 127:
        found += bytes([number & 127 | 128])
        number >>= 7
    return found + bytes([number])
