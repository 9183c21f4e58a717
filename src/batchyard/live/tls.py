"""HTTP over TLS with the client's certificate in the scope of each request, and bounds on what comes before a body."""

import asyncio
import ssl
from typing import Any, Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from batchyard.apiserver.authentication import ANONYMOUS, User, of_certificate
from batchyard.base.instant import SECOND, Instant
from batchyard.live.clock import wall_clock

#: Bytes of a request's line and headers.
HEAD_MAX: Final = 64 * 1024
#: Seconds in which they have to come.
HEAD_WITHIN: Final = 15
#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME. With it a certificate out of its time is seen, and answered 401; a handshake
#: that just fails says nothing, and a connection that is kept would outlive the certificate it began with.
_TIME_IS_CHECKED_HERE: Final = ssl.VerifyFlags(0x200000)
_TOO_LARGE: Final = b"Request Header Fields Too Large"


class Peer(NamedTuple):
    """Whom a client's certificate names, as Kubernetes reads certificates, and when it is good."""

    user: User
    begins: Instant
    ends: Instant

    def now(self) -> User:
        """The user, while the certificate is good."""
        return self.user if self.begins <= wall_clock() <= self.ends else ANONYMOUS


class PeerProtocol(HttpToolsProtocol):
    """HTTP/1.1 that says who the peer is, where it has shown a certificate."""

    peer: Peer | None = None
    _head_bytes = 0
    _is_in_head = True
    _is_too_large = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """A connection is there, its handshake done."""
        super().connection_made(transport)
        found = transport.get_extra_info("peercert")
        self.peer = _peer(found) if found else None
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._await_no_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something came; of a head that does not end no more is taken than fits."""
        if self._is_in_head:
            self._head_bytes += len(data)
            if self._deadline is None:
                self._await_head()
        super().data_received(data)
        if self._is_in_head and self._head_bytes > HEAD_MAX and not self.transport.is_closing():
            self._refuse_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["state"] = {"user": self.peer.now() if self.peer is not None else ANONYMOUS}

    def on_headers_complete(self) -> None:
        """The head of a request is there as a whole."""
        self._is_in_head = False
        self._await_no_head()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > HEAD_MAX:
            self._is_too_large = True
            raise ValueError(_TOO_LARGE.decode())
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """A request is there as a whole."""
        super().on_message_complete()
        self._is_in_head, self._head_bytes = True, 0

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, or has too large a head."""
        if self._is_too_large:
            self._refuse_head()
        else:
            super().send_400_response(msg)

    def _refuse_head(self) -> None:
        length = str(len(_TOO_LARGE)).encode()
        status = b"HTTP/1.1 431 " + _TOO_LARGE
        fields = (b"content-type: text/plain; charset=utf-8", b"content-length: " + length, b"connection: close")
        self.transport.write(b"\r\n".join((status, *fields, b"", _TOO_LARGE)))
        self.transport.close()

    def _await_head(self) -> None:
        self._deadline = self.loop.call_later(HEAD_WITHIN, self.transport.abort)

    def _await_no_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def server_context(server: str, authority: str) -> ssl.SSLContext:
    """TLS with the certificate and key of a file, that asks clients for certificates of an authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(server)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= _TIME_IS_CHECKED_HERE
    return context


def _peer(certificate: dict[str, Any]) -> Peer | None:
    """Common name and organizations of a certificate that an authority has signed; None without a name."""
    names = [pair for relative in certificate.get("subject", ()) for pair in relative]
    name = next((value for kind, value in names if kind == "commonName"), "")
    if not name:
        return None
    user = of_certificate(name, tuple(value for kind, value in names if kind == "organizationName"))
    begins, ends = (ssl.cert_time_to_seconds(certificate[field]) * SECOND for field in ("notBefore", "notAfter"))
    return Peer(user, begins, ends)
