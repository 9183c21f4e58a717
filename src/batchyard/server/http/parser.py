"""Request parser of a connection, on httptools: heads and bodies, with size limits."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote

import httptools

from batchyard.apiserver.request import (
    SEPARATOR,
    ApiRequest,
    StatusError,
)
from batchyard.server.http.flow_control import too_many

#: Maximum bytes of a request line with headers, and of a body.
HEAD_MAX: Final = 64 * 1024
BODY_MAX: Final = 3 * 1024 * 1024
_BAD: Final = (400, "Invalid HTTP request received.")
_LARGE: Final = (431, "Request Header Fields Too Large")
#: Source: Go's net/http, server.go (readRequest), and golang.org/x/net/http/httpguts (ValidHostHeader).
_BAD_HOST: Final = "400 Bad Request: {}"
_HOST: Final = re.compile(r"[A-Za-z0-9!$%&'()*+,\-.:;=\[\]_~]*")


class ParsedRequest(NamedTuple):
    """A complete request, or the reason to reject it."""

    request: ApiRequest
    is_last: bool
    #: Whether the client supports chunked transfer encoding (HTTP/1.1).
    is_chunked: bool
    refused: StatusError | None = None


class RequestSink(Protocol):
    """The receiver of parsed requests."""

    def known(self, request: ApiRequest) -> ApiRequest:
        """Return the request, whose body is not read yet, with its authenticated user. Raises Refused."""

    def take(self, whole: ParsedRequest) -> None:
        """Receive a complete request; requests are answered in order."""

    def refuse(self, code: int, why: str) -> None:
        """Handle invalid input. Nothing more is parsed."""

    def hold(self, length: int) -> bool:
        """Count bytes of a body until its request is answered. Return False if too many are in memory."""

    def invite(self) -> None:
        """Handle a client that waits for 100 Continue."""


class RequestParser:
    """The parser of a connection, and the request that is being received."""

    def __init__(self, taker: RequestSink) -> None:
        #: The receiver of requests and httptools' parser; None after `end`.
        self._taker: Any = taker
        #: The IP address of the client.
        self.source = ""
        self._parser: Any = httptools.HttpRequestParser(self)
        #: Whether the current head must be parsed again without its Upgrade header.
        self._is_read_again = False
        self._url, self._headers = b"", dict[str, str]()
        self._head_bytes = 0
        #: The request whose body is being received; None before its head is complete, or if the body is discarded.
        self._coming: ApiRequest | None = None
        self._body = bytearray()
        self.is_in_body = False
        #: Whether nothing more is parsed.
        self.is_over = False
        #: The bytes that follow an upgrade request.
        self.rest = b""
        self._is_upgrade = False
        #: The number of requests that have begun.
        self.number = 0

    @property
    def is_in_head(self) -> bool:
        """Whether a head is incomplete."""
        return self._head_bytes > 0

    def feed(self, data: bytes) -> None:
        """Parse received bytes, and enforce the size limit of the head."""
        if self.is_over:
            self._keep_rest(data)
            return
        if not self.is_in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._is_read_again:
                self._read_again(data[upgrade.args[0] :])
                return
            self.is_over = self._is_upgrade = True
            self._keep_rest(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(*_BAD)
        if not self.is_in_body and self._head_bytes > HEAD_MAX:
            self._refuse(*_LARGE)

    def end(self) -> None:
        """Stop parsing, and break the reference cycles with the parser and the receiver."""
        self.is_over = True
        self._parser = self._taker = None

    def _keep_rest(self, data: bytes) -> None:
        """Keep the bytes that a client sends between its upgrade request and the response, up to HEAD_MAX."""
        if self._is_upgrade:
            self.rest += data
            if len(self.rest) > HEAD_MAX:
                self._is_upgrade = False
                self._taker.refuse(*_BAD)

    def _read_again(self, rest: bytes) -> None:
        """Parse a head again without its Upgrade header: httptools does not parse the body of an upgrade request."""
        method, version = self._parser.get_method().decode(), self._parser.get_http_version()
        lines = [f"{method} {self._url.decode('latin-1')} HTTP/{version}"]
        for name, values in self._headers.items():
            lines += [f"{name}: {value}" for value in values.split(SEPARATOR) if name != "upgrade"]
        self._parser, self._is_read_again, self.is_in_body = httptools.HttpRequestParser(self), False, False
        self.feed("\r\n".join([*lines, "", ""]).encode("latin-1") + rest)

    def end_late(self, refused: StatusError) -> bool:
        """Stop waiting for a body that timed out. Return whether the client gets a response."""
        request, self._coming, self.is_over = self._coming, None, True
        if request is not None:
            self._take(request, refused)
        return request is not None

    # --- callbacks of httptools ---

    def on_message_begin(self) -> None:
        """Start a request."""
        self.number += 1
        self._url, self._headers = b"", {}

    def on_url(self, url: bytes) -> None:
        """Append a part of the URL."""
        self._url += url

    def on_header(self, raw_name: bytes, raw_value: bytes) -> None:
        """Add a header; ignore trailers, which follow a body."""
        if self.is_in_body:
            return
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers = self._headers
        headers[name] = f"{headers[name]}{SEPARATOR}{value}" if name in headers else value

    def on_headers_complete(self) -> None:
        """Handle a complete head. If authentication fails, the body is not read."""
        if self.is_over:
            return
        self.is_in_body, self._head_bytes = True, 0
        if "upgrade" in self._headers and self._parser.should_upgrade() and _has_body(self._headers):
            self._is_read_again = True
            return
        if len(self._url) + sum([len(name) + len(value) for name, value in self._headers.items()]) > HEAD_MAX:
            self._refuse(*_LARGE)
            return
        if problem := self._host_problem():
            self._refuse(400, _BAD_HOST.format(problem))
            return
        request = self._request()
        if request is None:
            self._refuse(*_BAD)
            return
        try:
            self._coming = self._taker.known(request)
        except StatusError:
            self._take(request)  # the dispatcher rejects it again and audits it
            return
        if self._headers.get("expect", "").lower() == "100-continue":
            self._taker.invite()

    def on_body(self, part: bytes) -> None:
        """Append a part of the body."""
        if self._coming is None or self.is_over:
            return
        self._body += part
        if len(self._body) > BODY_MAX:
            message = f"Request entity too large: limit is {BODY_MAX}"
            self._refuse_body(StatusError(413, "RequestEntityTooLarge", message))
        elif not self._taker.hold(len(part)):
            self._refuse_body(too_many())

    def on_message_complete(self) -> None:
        """Pass on a complete request."""
        self.is_in_body = False
        if self._is_read_again:
            return
        if self._coming is not None and not self.is_over:
            request, self._coming = self._coming, None
            if self._body:
                request, self._body = request.with_body(bytes(self._body)), bytearray()
            self._take(request)

    # --- results ---

    def _refuse_body(self, refused: StatusError) -> None:
        request, self._coming, self._body = self._coming, None, bytearray()
        assert request is not None, "a body belongs to a request"
        self._take(request, refused)

    def _take(self, request: ApiRequest, refused: StatusError | None = None) -> None:
        is_chunked = self._parser.get_http_version() == "1.1"
        self._taker.take(ParsedRequest(request, not self._parser.should_keep_alive(), is_chunked, refused))

    def _refuse(self, code: int, why: str) -> None:
        if not self.is_over:
            self.is_over = True
            self._taker.refuse(code, why)

    def _host_problem(self) -> str:
        """Return the fault of the Host header, which HTTP/1.1 requires; '' if it is valid."""
        host = self._headers.get("host")
        if host is None:
            is_needed = self._parser.get_http_version() == "1.1"
            return "missing required Host header" if is_needed else ""
        if SEPARATOR in host:
            return "too many Host headers"
        return "" if _HOST.fullmatch(host) else "malformed Host header"

    def _request(self) -> ApiRequest | None:
        """Return the request without its body; None if its URL is invalid."""
        try:
            url: Any = httptools.parse_url(self._url)  # its type omits that path and query may be None
            path = unquote(url.path.decode("ascii"))
            if url.host is not None:  # it overrides the header (RFC 9112, 3.2.2)
                self._headers["host"] = _authority(url.host.decode("latin-1"), url.port)
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError):
            return None
        query_items = tuple(parse_qsl(url.query.decode("latin-1"), keep_blank_values=True)) if url.query else ()
        query: dict[str, str] = {}
        for name, value in query_items:
            query.setdefault(name, value)
        method = self._parser.get_method().decode("ascii")
        return ApiRequest(method, path, query, self._headers, source=self.source, query_items=query_items)


def _has_body(headers: Mapping[str, str]) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _authority(host: str, port: int | None) -> str:
    """Format a host and port as a Host header."""
    named = f"[{host}]" if ":" in host else host
    return named if port is None else f"{named}:{port}"
