"""HTTP over TLS with the client's certificate in the scope of each request."""

from typing import Any, NamedTuple

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class Peer(NamedTuple):
    """Whom a client's certificate names: a user and its groups, as Kubernetes reads certificates."""

    user: str
    groups: tuple[str, ...]


class PeerProtocol(HttpToolsProtocol):
    """HTTP/1.1 that says who the peer is, where it has shown a certificate."""

    peer: Peer | None = None

    def connection_made(self, transport: Any) -> None:
        """A connection is there, its handshake done."""
        super().connection_made(transport)
        found = transport.get_extra_info("peercert")
        self.peer = _peer(found) if found else None

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self.scope["state"] = {"peer": self.peer}


def _peer(certificate: dict[str, Any]) -> Peer:
    """Common name and organizations of a certificate that was verified."""
    names = [pair for relative in certificate.get("subject", ()) for pair in relative]
    user = next((value for name, value in names if name == "commonName"), "")
    return Peer(user, tuple(value for name, value in names if name == "organizationName"))
