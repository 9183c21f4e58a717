"""Server-side TLS, and users of client certificates."""

import ssl
from typing import Any, Final, NamedTuple

from batchyard.apiserver.auth.authentication import ANONYMOUS, UserInfo, of_certificate
from batchyard.base.instant import SECOND, Instant
from batchyard.server.clocks.wall import wall_clock

#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME. Expiry is checked for each request and answered with 401: a failed handshake
#: gives no reason, and a kept-alive connection would outlive its certificate.
_TIME_IS_CHECKED_HERE: Final = ssl.VerifyFlags(0x200000)


class Peer(NamedTuple):
    """The user of a client certificate, as Kubernetes maps it, and the validity period."""

    user: UserInfo
    begins: Instant
    ends: Instant

    def now(self) -> UserInfo:
        """Return the user while the certificate is valid, else the anonymous user."""
        return self.user if self.begins <= wall_clock() <= self.ends else ANONYMOUS


def server_context(server: str, authority: str) -> ssl.SSLContext:
    """Return a TLS context with the certificate and key of a file. It requests client certificates of an authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(server)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= _TIME_IS_CHECKED_HERE
    return context


def peer_of(certificate: dict[str, Any]) -> Peer | None:
    """Return the user of a verified certificate, by its common name and organizations; None without a common name."""
    names = [pair for relative in certificate.get("subject", ()) for pair in relative]
    name = next((value for kind, value in names if kind == "commonName"), "")
    if not name:
        return None
    user = of_certificate(name, tuple(value for kind, value in names if kind == "organizationName"))
    begins, ends = (ssl.cert_time_to_seconds(certificate[field]) * SECOND for field in ("notBefore", "notAfter"))
    return Peer(user, begins, ends)
