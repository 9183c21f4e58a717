"""HTTPS servers of webhooks, with certificates of a CA that exists only for them."""

import base64
import ipaddress
import json
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from batchyard.api.times import to_datetime
from batchyard.base.instant import HOUR
from batchyard.server.clocks.wall import wall_clock

Respond: TypeAlias = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | bytes | tuple[int, bytes]]
"""Returns the response to a review from its path and the review: an object, a body, or a status code and a body."""


class HookCertificates:
    """A CA, and a server certificate for 127.0.0.1 and DNS names."""

    def __init__(self, folder: Path, *names: str) -> None:
        ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hooks-ca")])
        ca = _builder(issuer, issuer, ca_key.public_key())
        ca_certificate = ca.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
            ca_key, hashes.SHA256()
        )
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hooks")])
        addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        alternatives = x509.SubjectAlternativeName([*addresses, *map(x509.DNSName, names)])
        certificate = _builder(subject, issuer, key.public_key()).add_extension(alternatives, critical=False)
        pem = serialization.Encoding.PEM
        key_pem = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        self.file = folder / "hooks.pem"
        self.file.write_bytes(key_pem + certificate.sign(ca_key, hashes.SHA256()).public_bytes(pem))
        #: The CA in the form of `caBundle`.
        self.bundle = base64.b64encode(ca_certificate.public_bytes(pem)).decode()


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now, day = wall_clock(), 24 * HOUR
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(to_datetime(now - day))
        .not_valid_after(to_datetime(now + day))
    )


class _Listener(ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


class HookServer:
    """An HTTPS server of webhooks; `asked` holds the path and the review of each call."""

    def __init__(self, certificates: HookCertificates, respond: Respond) -> None:
        self.asked: list[tuple[str, Mapping[str, Any]]] = []
        self.connections: set[tuple[str, int]] = set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.asked.append((self.path, review))
                server.connections.add(self.client_address)
                answer = respond(self.path.partition("?")[0], review)
                code, body = answer if isinstance(answer, tuple) else (200, answer)
                text = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json" if code == 200 else "text/plain")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_arguments: object) -> None:
                """Log nothing."""

        self._server = _Listener(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates.file)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port: int = self._server.server_address[1]
        self.url = f"https://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def verdict(review: Mapping[str, Any], *, allowed: bool = True, **fields: Any) -> Mapping[str, Any]:
    """The answer to an AdmissionReview."""
    response = {"uid": review["request"]["uid"], "allowed": allowed, **fields}
    return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}


def patch_verdict(review: Mapping[str, Any], *operations: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer to an AdmissionReview that allows the request with a JSON patch."""
    patch = base64.b64encode(json.dumps(operations).encode()).decode()
    return verdict(review, patchType="JSONPatch", patch=patch)
