"""Raw requests over TLS, including those that no client library would send."""

import json
import socket
import ssl
import warnings
from collections.abc import Mapping
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import yaml

_WITHIN = 30


class RawResponse(NamedTuple):
    """A response: the code and the body, parsed if it is JSON."""

    code: int
    body: Any
    headers: Mapping[str, str] = {}

    @property
    def reason(self) -> str:
        """The reason of a Status, or `NotFound` for a missing page, or the text of the response."""
        if (self.code, self.body) == (404, "404 page not found\n"):
            return "NotFound"
        return str(self.body.get("reason", "")) if isinstance(self.body, dict) else str(self.body)


class RawRequestClient:
    """A client with a certificate, a token or no credentials."""

    def __init__(self, kubeconfig: Path, *, token: str = "", certificate: Path | None = None) -> None:
        config = yaml.safe_load(kubeconfig.read_text("utf-8"))
        url = urlsplit(config["clusters"][0]["cluster"]["server"])
        self._address = (url.hostname, url.port)
        self._token = token
        self._context = ssl.create_default_context(cafile=str(kubeconfig.parent / "ca.crt"))
        if certificate is not None:
            self._context.load_cert_chain(certificate)

    def with_tls(self, version: ssl.TLSVersion) -> Self:
        """Limit the client to a version of TLS, with the lowest security level of the library."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self._context.minimum_version = self._context.maximum_version = version
        return self

    def ask(self, method: str, path: str | bytes, body: Any = None, **headers: str) -> RawResponse:
        """Send a request, and read the response."""
        sent = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        reported = {"host": "batchyard", "content-type": "application/json", "content-length": str(len(sent))}
        reported |= {"authorization": f"Bearer {self._token}"} if self._token else {}
        reported |= {name.replace("_", "-"): value for name, value in headers.items()}
        line = method.encode() + b" " + (path if isinstance(path, bytes) else path.encode()) + b" HTTP/1.1\r\n"
        head = "".join(f"{name}: {value}\r\n" for name, value in reported.items()).encode()
        with (
            socket.create_connection(self._address, _WITHIN) as plain,
            self._context.wrap_socket(plain, server_hostname=str(self._address[0])) as wire,
        ):
            wire.sendall(line + head + b"\r\n" + sent)
            with HTTPResponse(wire, method=method) as response:
                response.begin()
                content = response.read()
        is_json = response.headers.get_content_type() == "application/json"
        body = json.loads(content) if is_json and content else content.decode()
        return RawResponse(response.status, body, dict(response.headers))
