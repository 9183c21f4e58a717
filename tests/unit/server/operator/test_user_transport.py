"""Requests with the token of a user carry none of the operator's credentials, and their responses are bounded."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from batchyard.base.instant import SECOND
from batchyard.client.transport import HttpRequest
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.kubeconfig.access import KubeconfigSource
from batchyard.server.kubeconfig.loading import read_access
from batchyard.server.operator import aiohttp_transport
from batchyard.server.operator.aiohttp_transport import USER_RESPONSE_MAX, HttpTransport
from batchyard.server.platform.credentials import CertificateAuthority
from tls_server import listening
from unit.server.operator.page_servers import pause

GET = HttpRequest("GET", "/version")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def run_transport(folder: Path, handler: Handler, act: Callable[[HttpTransport], Awaitable[None]]) -> None:
    """Run a test against a TLS server that requests client certificates; the kubeconfig impersonates a user."""
    authority = CertificateAuthority(folder, wall_clock())
    files = {"server": authority.issue_server_certificate(("127.0.0.1",))}
    files["operator"] = authority.issue_client_certificate("operator", ["system:masters"])
    for name, signed in files.items():
        (folder / f"{name}.crt").write_bytes(signed.certificate)
        (folder / f"{name}.key").write_bytes(signed.key)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate_file))
    tls.load_cert_chain(folder / "server.crt", folder / "server.key")
    tls.verify_mode = ssl.CERT_OPTIONAL

    async def whole() -> None:
        async with listening([web.route("*", "/{path:.*}", handler)], tls) as port:
            cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(authority.certificate_file)}
            user = {"client-certificate": str(folder / "operator.crt"), "client-key": str(folder / "operator.key")}
            config = {
                "clusters": [{"name": "a", "cluster": cluster}],
                "users": [{"name": "a", "user": {**user, "as": "other"}}],
                "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
                "current-context": "a",
            }
            (folder / "config").write_text(yaml.safe_dump(config))
            source = KubeconfigSource(str(folder / "config"))
            transport = HttpTransport(await read_access(source), lambda: read_access(source))
            try:
                await act(transport)
            finally:
                await transport.close()

    asyncio.run(whole())


def test_user_request_has_neither_certificate_nor_impersonation_nor_cookies(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        certificate: Any = None if request.transport is None else request.transport.get_extra_info("peercert")
        names = ("authorization", "impersonate-user", "cookie")
        seen = [bool(certificate), *(request.headers.get(name, "") for name in names)]
        return web.json_response(seen, headers={"set-cookie": "session=operator; path=/"})

    async def act(transport: HttpTransport) -> None:
        assert (await transport.send_request(GET)).body == b'[true, "", "other", ""]'
        for _ in range(2):
            assert (await transport.user_transport.send_request("abc", GET)).body == b'[false, "Bearer abc", "", ""]'

    run_transport(tmp_path, answer, act)


def test_rejected_token_of_user_does_not_renew_credentials_of_operator(tmp_path: Path) -> None:
    requested = list[str]()

    async def answer(request: web.Request) -> web.Response:
        requested.append(request.headers["authorization"])
        return web.Response(status=401)

    async def act(transport: HttpTransport) -> None:
        assert (await transport.user_transport.send_request("abc", GET)).code == 401
        assert requested == ["Bearer abc"]

    run_transport(tmp_path, answer, act)


def test_path_is_sent_unchanged(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=request.raw_path)

    async def act(transport: HttpTransport) -> None:
        for path in ("/a/b/../c/./d?e=%2E%2e%2F+f", "/a/%2E%2E/b", "/a/b%2Fc"):
            answered = await transport.user_transport.send_request("abc", HttpRequest("GET", path))
            assert (answered.code, answered.body.decode()) == (200, path)
        for path in ("/a b", "/a\r\nx: y", "/\u00e4", "a"):
            rejected = await transport.user_transport.send_request("abc", HttpRequest("GET", path))
            assert (rejected.code, "not percent-encoded" in rejected.trouble) == (0, True)

    run_transport(tmp_path, answer, act)


def test_response_to_user_request_is_bounded(tmp_path: Path) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * (USER_RESPONSE_MAX + int(request.query["more"])))

    async def act(transport: HttpTransport) -> None:
        longest = await transport.user_transport.send_request("abc", HttpRequest("GET", "/?more=0"))
        assert (longest.code, len(longest.body)) == (200, USER_RESPONSE_MAX)
        longer = await transport.user_transport.send_request("abc", HttpRequest("GET", "/?more=1"))
        assert (longer.code, longer.body) == (0, b"")
        assert f"more than {USER_RESPONSE_MAX} bytes" in longer.trouble

    run_transport(tmp_path, answer, act)


def test_stream_reports_silence_and_ends_at_its_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiohttp_transport, "STREAM_IDLE_INTERVAL", 0.01)

    async def act(transport: HttpTransport) -> None:
        parts = list[bytes]()

        async def deliver_all(part: bytes) -> bool:
            parts.append(part)
            return True

        async def deliver_until_silence(part: bytes) -> bool:
            parts.append(part)
            return bool(part) or b"line\n" not in parts

        ended = await transport.user_transport.stream("abc", GET, deliver_until_silence)
        assert (ended.code, parts[0], b"".join(parts), parts[-1]) == (200, b"", b"line\n", b"")
        ended = await transport.user_transport.stream("abc", GET._replace(timeout=SECOND // 2), deliver_all)
        assert ended.code == 0

    run_transport(tmp_path, answer_line, act)


async def answer_line(request: web.Request) -> web.StreamResponse:
    """Send a line, and then nothing for as long as the client is connected."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"line\n")
    while request.transport is not None and not request.transport.is_closing():
        await pause()
    return response
