"""HTTP servers in the event loop of a test, and server certificates of a CA that exists only for them."""

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.credentials import CertificateAuthority


def write_server_certificate(folder: Path, *addresses: str) -> Path:
    """Write a certificate for these addresses and its key to `server.pem`, and their CA to `ca.crt`; return the former.

    If the folder has a CA already, the CA signs the certificate.
    """
    signed = CertificateAuthority(folder, wall_clock()).issue_server_certificate(addresses)
    path = folder / "server.pem"
    path.write_bytes(signed.certificate + signed.key)
    return path


@asynccontextmanager
async def listening(routes: Iterable[web.AbstractRouteDef], tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve routes on a port of this machine; the value is the port."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
