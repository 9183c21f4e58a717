"""TLS: the server's side of it, and whom a client's certificate names."""

import ssl
from typing import Any, Final, NamedTuple

from batchyard.apiserver.auth.authentication import ANONYMOUS, User, of_certificate
from batchyard.base.instant import SECOND, Instant
from batchyard.server.clocks.wall import wall_clock

#: OpenSSL's X509_V_FLAG_NO_CHECK_TIME. With it a certificate out of its time is seen, and answered 401; a handshake
#: that just fails says nothing, and a connection that is kept would outlive the certificate it began with.
_TIME_IS_CHECKED_HERE: Final = ssl.VerifyFlags(0x200000)


class Peer(NamedTuple):
    """Whom a client's certificate names, as Kubernetes reads certificates, and when it is good."""

    user: User
    begins: Instant
    ends: Instant

    def now(self) -> User:
        """The user, while the certificate is good."""
        return self.user if self.begins <= wall_clock() <= self.ends else ANONYMOUS


def server_context(server: str, authority: str) -> ssl.SSLContext:
    """TLS with the certificate and key of a file, that asks clients for certificates of an authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(server)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= _TIME_IS_CHECKED_HERE
    return context


def peer_of(certificate: dict[str, Any]) -> Peer | None:
    """Common name and organizations of a certificate that an authority has signed; None without a name."""
    names = [pair for relative in certificate.get("subject", ()) for pair in relative]
    name = next((value for kind, value in names if kind == "commonName"), "")
    if not name:
        return None
    user = of_certificate(name, tuple(value for kind, value in names if kind == "organizationName"))
    begins, ends = (ssl.cert_time_to_seconds(certificate[field]) * SECOND for field in ("notBefore", "notAfter"))
    return Peer(user, begins, ends)
