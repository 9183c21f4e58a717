"""An aggregated API server with TLS, which serves roses and records who asks for them."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tls_server import listening, write_server_certificate

GROUP_VERSION = "flowers.example.com/v1"
ROSES = {"name": "roses", "singularName": "rose", "namespaced": True, "kind": "Rose", "verbs": ["get", "list", "watch"]}


def rose(name: str) -> dict[str, Any]:
    """A rose."""
    return {"apiVersion": GROUP_VERSION, "kind": "Rose", "metadata": {"name": name, "namespace": "default"}}


class FlowerServer:
    """Serves roses to the front proxy of a platform only."""

    def __init__(self, folder: Path, front_proxy_authority: Path) -> None:
        folder.mkdir()
        certificate_file = write_server_certificate(folder, "flowers.default.svc")
        #: The certificate of its authority as PEM.
        self.authority = (folder / "ca.crt").read_bytes()
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(certificate_file)
        self._tls.load_verify_locations(front_proxy_authority)
        self._tls.verify_mode = ssl.CERT_REQUIRED
        self.port = 0
        #: The users of the requests for roses, with their groups.
        self.users: list[tuple[str, tuple[str, ...]]] = []

    @asynccontextmanager
    async def serve(self) -> AsyncIterator["FlowerServer"]:
        """Serve within the block, on a free port."""
        path = f"/apis/{GROUP_VERSION}"
        routes = [web.get(path, self._discover), web.get(f"{path}/namespaces/default/roses", self._list)]
        async with listening(routes, self._tls) as self.port:
            yield self

    async def _discover(self, _request: web.Request) -> web.Response:
        resource_list = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": GROUP_VERSION}
        return web.json_response({**resource_list, "resources": [ROSES]})

    async def _list(self, request: web.Request) -> web.StreamResponse:
        self.users.append((request.headers["X-Remote-User"], tuple(request.headers.getall("X-Remote-Group"))))
        if "watch" not in request.query:
            metadata = {"resourceVersion": "1"}
            kind = {"kind": "RoseList", "apiVersion": GROUP_VERSION, "metadata": metadata}
            return web.json_response({**kind, "items": [rose("red")]})
        response = web.StreamResponse(headers={"content-type": "application/json"})
        await response.prepare(request)
        for name in ("blue", "white"):
            await response.write(json.dumps({"type": "ADDED", "object": rose(name)}).encode() + b"\n")
        await asyncio.Event().wait()  # until the client leaves
        return response
