"""HTTP request parser of a connection, based on httptools: parses request heads and bodies, with size limits."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote

import httptools

from batchyard.apiserver.request import HEADER_SEPARATOR, ApiRequest, StatusError
from batchyard.server.http.flow_control import too_many_requests

#: Maximum bytes of a request head (request line and headers), and of a request body.
HEAD_SIZE_MAX: Final = 64 * 1024
BODY_SIZE_MAX: Final = 3 * 1024 * 1024
_INVALID_REQUEST: Final = (400, "Invalid HTTP request received.")
_HEAD_TOO_LARGE: Final = (431, "Request Header Fields Too Large")
#: Source: Go's net/http, server.go (readRequest), and golang.org/x/net/http/httpguts (ValidHostHeader).
_INVALID_HOST_MESSAGE: Final = "400 Bad Request: {}"
_HOST_PATTERN: Final = re.compile(r"[A-Za-z0-9!$%&'()*+,\-.:;=\[\]_~]*")


class ParsedRequest(NamedTuple):
    """A request to be answered, and the error with which it must be rejected, if any."""

    request: ApiRequest
    #: Whether the client asks to close the connection after the response.
    is_last: bool
    #: Whether a streaming response uses chunked transfer encoding, which HTTP/1.1 clients support.
    is_chunked: bool
    rejection: StatusError | None = None


class RequestSink(Protocol):
    """The connection that receives requests from its parser."""

    def authenticate(self, request: ApiRequest) -> ApiRequest:
        """Authenticate a request from its head; return the request with its user. Raises StatusError."""

    def queue_request(self, parsed_request: ParsedRequest) -> None:
        """Receive a request that is complete or must be rejected; requests of a connection are answered in order."""

    def refuse(self, code: int, message: str) -> None:
        """Respond to invalid input with an error; the parser stops."""

    def count_body_bytes(self, length: int) -> bool:
        """Count received body bytes until their request is answered. Return False if they exceed a limit."""

    def send_continue(self) -> None:
        """Send `100 Continue` to a client that waits for it before it sends the body (`Expect: 100-continue`)."""


class RequestParser:
    """A parser of the requests on one connection, with the request that is being received."""

    def __init__(self, sink: RequestSink) -> None:
        #: The receiver of requests and httptools' parser; None after `end`.
        self._sink: Any = sink
        #: The IP address of the client; '' if unknown.
        self.client_address = ""
        self._parser: Any = httptools.HttpRequestParser(self)
        #: Whether the current head must be parsed again, without its Upgrade header.
        self._must_parse_again = False
        self._url, self._headers = b"", dict[str, str]()
        self._head_bytes = 0
        #: The request whose body is being received; None before its head is complete, or if the body is discarded.
        self._current_request: ApiRequest | None = None
        self._body = bytearray()
        self.is_in_body = False
        #: Whether parsing has stopped.
        self.is_over = False
        #: The bytes that follow an upgrade request.
        self.unparsed_data = b""
        self._is_upgrade = False
        #: The number of requests that have begun.
        self.request_count = 0

    @property
    def is_in_head(self) -> bool:
        """Whether a part of a request head has been received, but not all of it."""
        return self._head_bytes > 0

    def feed(self, data: bytes) -> None:
        """Parse received bytes; stop with an error response after invalid bytes or a head above HEAD_SIZE_MAX bytes."""
        if self.is_over:
            self._keep_remaining_data(data)
            return
        if not self.is_in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._must_parse_again:
                self._parse_again_without_upgrade(data[upgrade.args[0] :])
                return
            self.is_over = self._is_upgrade = True
            self._keep_remaining_data(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(*_INVALID_REQUEST)
        if not self.is_in_body and self._head_bytes > HEAD_SIZE_MAX:
            self._refuse(*_HEAD_TOO_LARGE)

    def end(self) -> None:
        """Stop parsing, and drop the references to httptools' parser and the connection, which form cycles."""
        self.is_over = True
        self._parser = self._sink = None

    def _keep_remaining_data(self, data: bytes) -> None:
        if self._is_upgrade:
            self.unparsed_data += data
            if len(self.unparsed_data) > HEAD_SIZE_MAX:
                self._is_upgrade = False
                self._sink.refuse(*_INVALID_REQUEST)

    def _parse_again_without_upgrade(self, remaining_data: bytes) -> None:
        """Parse a request head again without its Upgrade header: httptools ignores the body of an upgrade request."""
        method, version = self._parser.get_method().decode(), self._parser.get_http_version()
        lines = [f"{method} {self._url.decode('latin-1')} HTTP/{version}"]
        for name, values in self._headers.items():
            lines += [f"{name}: {value}" for value in values.split(HEADER_SEPARATOR) if name != "upgrade"]
        self._parser, self._must_parse_again, self.is_in_body = httptools.HttpRequestParser(self), False, False
        self.feed("\r\n".join([*lines, "", ""]).encode("latin-1") + remaining_data)

    def reject_late_request(self, error: StatusError) -> bool:
        """Stop parsing, and reject the request whose body is late. Return False if there is no such request."""
        request, self._current_request, self.is_over = self._current_request, None, True
        if request is not None:
            self._pass_to_sink(request, error)
        return request is not None

    # --- callbacks of httptools ---

    def on_message_begin(self) -> None:
        """Start a new request (httptools callback)."""
        self.request_count += 1
        self._url, self._headers = b"", {}

    def on_url(self, url: bytes) -> None:
        """Append a part of the request's URL (httptools callback)."""
        self._url += url

    def on_header(self, raw_name: bytes, raw_value: bytes) -> None:
        """Add a request header (httptools callback); ignore trailers, which follow a body."""
        if self.is_in_body:
            return
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers = self._headers
        headers[name] = f"{headers[name]}{HEADER_SEPARATOR}{value}" if name in headers else value

    def on_headers_complete(self) -> None:
        """Check a complete request head, and authenticate the request before its body is read (httptools callback)."""
        if self.is_over:
            return
        self.is_in_body, self._head_bytes = True, 0
        if "upgrade" in self._headers and self._parser.should_upgrade() and _has_body(self._headers):
            self._must_parse_again = True
            return
        if len(self._url) + sum([len(name) + len(value) for name, value in self._headers.items()]) > HEAD_SIZE_MAX:
            self._refuse(*_HEAD_TOO_LARGE)
            return
        if host_error := self._host_error():
            self._refuse(400, _INVALID_HOST_MESSAGE.format(host_error))
            return
        request = self._build_request()
        if request is None:
            self._refuse(*_INVALID_REQUEST)
            return
        try:
            self._current_request = self._sink.authenticate(request)
        except StatusError:
            self._pass_to_sink(request)  # the dispatcher authenticates it again, rejects it and audits it
            return
        if self._headers.get("expect", "").lower() == "100-continue":
            self._sink.send_continue()

    def on_body(self, body_part: bytes) -> None:
        """Append a part of the request body (httptools callback); reject the request if the body exceeds a limit."""
        if self._current_request is None or self.is_over:
            return
        self._body += body_part
        if len(self._body) > BODY_SIZE_MAX:
            message = f"Request entity too large: limit is {BODY_SIZE_MAX}"
            self._refuse_body(StatusError(413, "RequestEntityTooLarge", message))
        elif not self._sink.count_body_bytes(len(body_part)):
            self._refuse_body(too_many_requests())

    def on_message_complete(self) -> None:
        """Pass a complete request to the connection (httptools callback)."""
        self.is_in_body = False
        if self._must_parse_again:
            return
        if self._current_request is not None and not self.is_over:
            request, self._current_request = self._current_request, None
            if self._body:
                request, self._body = request.with_body(bytes(self._body)), bytearray()
            self._pass_to_sink(request)

    # --- results for the connection ---

    def _refuse_body(self, error: StatusError) -> None:
        request, self._current_request, self._body = self._current_request, None, bytearray()
        assert request is not None, "a body is received only while a request is in progress"
        self._pass_to_sink(request, error)

    def _pass_to_sink(self, request: ApiRequest, error: StatusError | None = None) -> None:
        is_chunked = self._parser.get_http_version() == "1.1"
        self._sink.queue_request(ParsedRequest(request, not self._parser.should_keep_alive(), is_chunked, error))

    def _refuse(self, code: int, message: str) -> None:
        if not self.is_over:
            self.is_over = True
            self._sink.refuse(code, message)

    def _host_error(self) -> str:
        host = self._headers.get("host")
        if host is None:
            is_host_required = self._parser.get_http_version() == "1.1"
            return "missing required Host header" if is_host_required else ""
        if HEADER_SEPARATOR in host:
            return "too many Host headers"
        return "" if _HOST_PATTERN.fullmatch(host) else "malformed Host header"

    def _build_request(self) -> ApiRequest | None:
        try:
            url: Any = httptools.parse_url(self._url)  # its type omits that path and query may be None
            path = unquote(url.path.decode("ascii"))
            if url.host is not None:  # it overrides the header (RFC 9112, 3.2.2)
                self._headers["host"] = _url_authority(url.host.decode("latin-1"), url.port)
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError, AttributeError):
            return None
        query_items = tuple(parse_qsl(url.query.decode("latin-1"), keep_blank_values=True)) if url.query else ()
        query: dict[str, str] = {}
        for name, value in query_items:
            query.setdefault(name, value)
        method = self._parser.get_method().decode("ascii")
        return ApiRequest(
            method, path, query, self._headers, client_address=self.client_address, query_items=query_items
        )


def _has_body(headers: Mapping[str, str]) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _url_authority(host: str, port: int | None) -> str:
    host_part = f"[{host}]" if ":" in host else host
    return host_part if port is None else f"{host_part}:{port}"
