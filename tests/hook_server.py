"""HTTPS servers of webhooks, with certificates of a CA that exists only for them."""

import base64
import json
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self, TypeAlias

from tls_server import write_server_certificate

Respond: TypeAlias = Callable[[str, Mapping[str, Any]], Mapping[str, Any] | bytes | tuple[int, bytes]]
"""Returns the response to a review from its path and the review: an object, a body, or a status code and a body."""


class HookCertificates:
    """A CA, and a server certificate for 127.0.0.1 and DNS names."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.file = write_server_certificate(folder, "127.0.0.1", *names)
        #: The CA in the form of `caBundle`.
        self.bundle = base64.b64encode((folder / "ca.crt").read_bytes()).decode()


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
