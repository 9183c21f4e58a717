"""A token issuer and a token webhook with TLS, in the event loop of a test."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from tls_server import listening, write_server_certificate
from unit.apiserver.external_tokens.tokens import configuration, key_set


class IssuerServer:
    """Serves the discovery document and the keys of an issuer, and reviews tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""
        #: The names of the current keys, and how often they were fetched.
        self.key_names = ["a"]
        self.fetches = 0
        #: The issuer in the discovery document; '' for its URL.
        self.named_issuer = ""
        #: The status of reviews, by token, and the reviewed tokens.
        self.reviews: dict[str, dict[str, Any]] = {}
        self.reviewed: list[dict[str, Any]] = []
        self.review_code = 200

    @property
    def authority(self) -> str:
        """The certificate of its authority."""
        return (self.folder / "ca.crt").read_text()

    def write_configuration(self, **fields: Any) -> Path:
        """Write an AuthenticationConfiguration that trusts it."""
        issuer = {"certificateAuthority": self.authority, **fields.pop("issuer", {})}
        path = self.folder / "authentication.yaml"
        path.write_text(yaml.safe_dump(configuration(self.url, issuer=issuer, **fields)))
        return path

    def write_webhook(self) -> Path:
        """Write the kubeconfig of its webhook."""
        cluster = {"server": f"{self.url}/review?x=1", "certificate-authority": str(self.folder / "ca.crt")}
        named = {"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": {"token": "t"}}]}
        contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
        path = self.folder / "webhook.yaml"
        path.write_text(yaml.safe_dump({**named, "contexts": contexts, "current-context": "x"}))
        return path

    async def _discover(self, _request: web.Request) -> web.Response:
        return web.json_response({"issuer": self.named_issuer or self.url, "jwks_uri": f"{self.url}/keys"})

    async def _keys(self, _request: web.Request) -> web.Response:
        self.fetches += 1
        return web.Response(body=key_set(*self.key_names), content_type="application/json")

    async def _review(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.reviewed.append(review)
        status = self.reviews.get(review["spec"]["token"], {"authenticated": False})
        return web.json_response({**review, "status": status}, status=self.review_code)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["IssuerServer"]:
        """Serve within the block, on a free port."""
        tls_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls_context.load_cert_chain(write_server_certificate(self.folder, "127.0.0.1"))
        routes = [
            web.get("/.well-known/openid-configuration", self._discover),
            web.get("/keys", self._keys),
            web.post("/review", self._review),
        ]
        async with listening(routes, tls_context) as port:
            self.url = f"https://127.0.0.1:{port}"
            yield self
