"""Requests over a real socket: responses, lines of watches, new credentials, and connection errors."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiohttp import web

from batchyard.base.instant import MINUTE, SECOND
from batchyard.client.transport import HttpRequest, HttpResponse
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.kubeconfig.access import ApiServerAccess
from batchyard.server.operator.aiohttp_transport import HttpTransport

Act = Callable[[HttpTransport, "PathServer"], Awaitable[None]]


class PathServer:
    """A server whose response depends on the path of the request."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.accepted: list[str] = []
        self.good = "Bearer old"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers.get("authorization", ""))
        self.accepted.append(request.headers.get("accept", ""))
        if self.tokens[-1] != self.good:
            return web.Response(status=401)
        match request.path:
            case "/busy":
                return web.Response(status=429, headers={"retry-after": "3"}, text="{}")
            case "/never":
                return web.Response(status=429, headers={"retry-after": request.query["in"]}, text="{}")
            case "/soon" if len(self.tokens) < 3:
                return web.Response(status=429, text="{}")
            case "/slow":
                await asyncio.Event().wait()
            case "/watch":
                return await _lines(request)
            case "/broken":
                return await _half_a_line(request)
        return web.Response(text=f"{request.method} {(await request.read()).decode()}")


async def _lines(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for part in (b'{"a"', b': 1}\n{"b": 2}\n\n{"c"'):
        await response.write(part)
        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.02)
    return response


async def _half_a_line(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b'{"a"')
    assert request.transport is not None
    request.transport.abort()
    return response


def run(act: Act, token: str = "Bearer old") -> PathServer:
    """Run the action against a listening server."""
    server = PathServer()

    async def whole() -> None:
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", server.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"

        async def renew() -> ApiServerAccess:
            return _access(url, "Bearer new")

        wire = HttpTransport(_access(url, token), renew)
        await act(wire, server)
        await wire.close()
        await runner.cleanup()

    asyncio.run(whole())
    return server


def _access(url: str, token: str) -> ApiServerAccess:
    return ApiServerAccess(url, True, token, None, "", "default")


def test_transport_returns_response_with_server_time_and_retry_after() -> None:
    async def act(wire: HttpTransport, _server: PathServer) -> None:
        answer = await wire.send_request(HttpRequest("PUT", "/x?a=%2F", b"body"))
        assert (answer.code, answer.body) == (200, b"PUT body")
        assert abs(answer.server_time - wall_clock()) < MINUTE
        assert (await wire.send_request(HttpRequest("GET", "/busy"))).retry_after == 3 * SECOND

    run(act)


def test_transport_retries_busy_server_until_deadline() -> None:
    async def act(wire: HttpTransport, server: PathServer) -> None:
        answer = await wire.send_request_with_retries(HttpRequest("GET", "/soon"))
        assert (answer.code, answer.body) == (200, b"GET ")
        assert len(server.tokens) == 3
        assert (await wire.send_request_with_retries(HttpRequest("GET", "/busy", timeout=2 * SECOND))).code == 429
        assert len(server.tokens) == 4

    run(act)


def test_transport_reloads_credentials_after_401() -> None:
    async def act(wire: HttpTransport, server: PathServer) -> None:
        server.good = "Bearer new"
        answers = await asyncio.gather(*[wire.send_request(HttpRequest("GET", "/x")) for _ in range(5)])
        assert [answer.code for answer in answers] == [200] * 5

    assert run(act).tokens[-1] == "Bearer new"


def test_transport_returns_401_when_new_credentials_are_rejected() -> None:
    async def act(wire: HttpTransport, server: PathServer) -> None:
        server.good = "Bearer other"
        assert (await wire.send_request(HttpRequest("GET", "/x"))).code == 401

    assert len(run(act).tokens) == 2


def test_stream_delivers_complete_lines_as_they_arrive() -> None:
    async def act(wire: HttpTransport, _server: PathServer) -> None:
        reported: list[Sequence[bytes]] = []
        answer = await wire.stream(HttpRequest("GET", "/watch"), reported.append)
        assert [line for lines in reported for line in lines] == [b'{"a": 1}', b'{"b": 2}']
        assert reported[0] == ()
        assert answer == HttpResponse(200)
        assert (await wire.stream(HttpRequest("GET", "/busy"), reported.append)).code == 429

    run(act)


def test_stream_to_the_end_delivers_final_partial_line() -> None:
    async def act(wire: HttpTransport, server: PathServer) -> None:
        reported: list[Sequence[bytes]] = []
        await wire.stream(HttpRequest("GET", "/watch", accept="*/*"), reported.append, deliver_incomplete_line=True)
        assert [line for lines in reported for line in lines] == [b'{"a": 1}', b'{"b": 2}', b'{"c"']
        assert server.accepted[-1] == "*/*"

    run(act)


def test_timed_out_request_counts_as_sent_and_refused_connection_does_not() -> None:
    async def act(wire: HttpTransport, _server: PathServer) -> None:
        late = await wire.send_request(HttpRequest("GET", "/slow", timeout=SECOND // 20))
        assert (late.code, late.was_sent) == (0, True)
        gone = HttpTransport(_access("http://127.0.0.1:1", "x"), _never)
        refused = await gone.send_request(HttpRequest("GET", "/x"))
        assert (refused.code, refused.was_sent) == (0, False)
        assert "127.0.0.1:1" in refused.trouble
        await gone.close()

    run(act)


async def _never() -> Any:
    raise AssertionError("unexpected request")


def test_retry_after_is_capped_at_one_hour() -> None:
    async def act(wire: HttpTransport, _: PathServer) -> None:
        waits = [
            (await wire.send_request(HttpRequest("GET", f"/never?in={stated}"))).retry_after
            for stated in ("9" * 5, "9" * 5000)
        ]
        assert waits == [60 * MINUTE, None]

    run(act)


def test_broken_response_is_reported_as_error_text() -> None:
    async def act(wire: HttpTransport, server: PathServer) -> None:
        assert (
            await wire.send_request(HttpRequest("GET", "/broken"))
        ).trouble == "the connection was closed before the response was complete"

    run(act)
