"""The HTTP protocol: bytes of a connection, and the response."""

import asyncio
import gc
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest
import uvloop

from batchyard.apiserver.dashboard import DASHBOARD_ACTIONS_PATH
from batchyard.apiserver.request import ANONYMOUS, ApiRequest, Response
from batchyard.apiserver.server import ApiServer
from batchyard.metrics.controllers import RequestMetrics
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.clocks.wall import monotonic_seconds
from batchyard.server.http import protocol
from batchyard.server.http.connections import (
    Acceptor,
    ConnectionDeadline,
    Connections,
    certificate_user_of,
    server_tls_context,
)
from batchyard.server.http.dispatcher import RequestDispatcher
from batchyard.server.http.flow_control import ResponseTurns
from batchyard.server.http.parser import BODY_SIZE_MAX, RequestParser
from batchyard.server.http.protocol import HttpProtocol
from batchyard.server.platform.group_commit import GroupCommit
from batchyard.store.journal import RevisionJournal
from batchyard.store.memory import Store
from tls_server import write_server_certificate
from unit.apiserver.api import Api, config_map

pytestmark = pytest.mark.slow

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
MAPS = "/api/v1/namespaces/default/configmaps"
MAP = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"}}'
POST = b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" % MAPS.encode()


class FailingServer(ApiServer):
    """A server that raises an exception."""

    def handle(self, request: ApiRequest) -> Response:
        raise ZeroDivisionError(request.path)


@asynccontextmanager
async def connected(
    server: ApiServer, folder: Path, *, is_secure: bool = False, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Streams]:
    """Open a plain TCP connection to a server, also when the server uses TLS."""
    loop = asyncio.get_running_loop()
    store, journal = Store(), RevisionJournal(folder / "journal.db")
    kernel = LiveKernel(loop, 0)
    answers = RequestDispatcher(
        server,
        kernel,
        GroupCommit(store, journal, loop, kernel.stop),
        lambda: store.revision,
        RequestMetrics(monotonic_seconds),
    )
    connections = Connections()
    listening = await loop.create_server(
        partial(HttpProtocol, answers, connections, ResponseTurns(loop), is_secure=is_secure), "127.0.0.1", 0, ssl=tls
    )
    reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname()[:2])
    try:
        yield reader, writer
    finally:
        writer.close()
        listening.close()
        await connections.end(1)
        with suppress(ConnectionError):
            await writer.wait_closed()
        kernel.stop()
        journal.close()


def exchange(
    folder: Path,
    *parts: bytes,
    server: ApiServer | None = None,
    is_secure: bool = False,
    tls: ssl.SSLContext | None = None,
) -> bytes:
    """Send the parts, and return all received bytes until the server closes the connection."""

    async def talk() -> bytes:
        async with connected(server or Api().server, folder, is_secure=is_secure, tls=tls) as (reader, writer):
            for part in parts:
                writer.write(part)
                await writer.drain()
                with suppress(TimeoutError):  # so that it arrives as a separate part
                    await asyncio.wait_for(asyncio.Event().wait(), 0.01)
            return await asyncio.wait_for(reader.read(), 10)

    return asyncio.run(talk())


def reported(folder: Path, talk: Callable[[Streams], Awaitable[None]]) -> None:
    """Run `talk` with a server that keeps the connection open."""

    async def talking() -> None:
        async with connected(Api().server, folder) as streams:
            await asyncio.wait_for(talk(streams), 10)

    asyncio.run(talking())


def body_of(answer: bytes) -> dict[str, object]:
    result: dict[str, object] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return result


def codes(answers: bytes) -> list[int]:
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]


def test_exception_details_appear_only_in_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = Api().server
    server.__class__ = FailingServer
    with caplog.at_level(logging.ERROR, "batchyard"):
        answer = exchange(
            tmp_path, b"GET /apis HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", server=server
        )
    assert codes(answer) == [500]
    name = str(body_of(answer)["message"]).split()[5].rstrip(";")
    assert f"unexpected exception {name} while answering GET '/apis'" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert b"ZeroDivisionError" not in answer


def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    paths = ("/healthz", "/nothing", "/version")
    request = b"".join(b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode() for path in paths)
    answer = exchange(tmp_path, request[:9], request[9:70], request[70:-2], b"connection: close\r\n\r\n")
    assert codes(answer) == [200, 404, 200]
    assert answer.index(b"ok") < answer.index(b"404 page not found") < answer.index(b"gitVersion")
    assert answer.count(b"connection: close") == 1


def test_chunked_body_is_accepted(tmp_path: Path) -> None:
    head = POST + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    halves = MAP[:20], MAP[20:]
    chunks = [b"%x\r\n%b\r\n" % (len(half), half) for half in halves]
    answer = exchange(tmp_path, head, *chunks, b"0\r\n\r\n")
    assert codes(answer) == [201]


def test_expect_100_continue_receives_100_response(tmp_path: Path) -> None:
    head = POST + b"connection: close\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(MAP)
    assert codes(exchange(tmp_path, head, MAP)) == [100, 201]


def test_incomplete_request_gets_no_response(tmp_path: Path) -> None:
    async def talk(streams: Streams) -> None:
        reader, writer = streams
        writer.write(POST + b"content-length: 100\r\n\r\n{")
        writer.write_eof()
        assert await reader.read() == b""

    reported(tmp_path, talk)


def test_anonymous_request_is_rejected_before_body(tmp_path: Path) -> None:
    api = Api()
    head = POST + b"connection: close\r\ncontent-length: 3000\r\n\r\n"
    answer = exchange(tmp_path, head, server=api.server, is_secure=True)
    assert (codes(answer), body_of(answer)["reason"]) == ([401], "Unauthorized")
    known = api.audited[-1].authenticated_request
    assert (known.user, known.client_address) == (ANONYMOUS, "127.0.0.1")


def test_oversized_body_is_rejected_with_413(tmp_path: Path) -> None:
    length = BODY_SIZE_MAX + 1
    answer = exchange(tmp_path, POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % length, b" " * length)
    assert (codes(answer), body_of(answer)["reason"]) == ([413], "RequestEntityTooLarge")


def test_missing_body_times_out_with_408(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "BODY_TIMEOUT", 0.1)
    answer = exchange(tmp_path, POST + b"content-length: 10\r\n\r\n")
    assert (codes(answer), body_of(answer)["reason"]) == ([408], "Timeout")


def test_slow_request_head_closes_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT", 0.1)
    with suppress(ConnectionResetError):  # it may end in either way
        assert exchange(tmp_path, b"GET / HTTP/1.1\r\n", *[b"a: b\r\n"] * 5) == b""


def test_idle_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "IDLE_TIMEOUT", 0.1)
    assert codes(exchange(tmp_path, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")) == [200]


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01 what is this\r\n\r\n",
        b"CONNECT host:443 HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"GET /%ff\xff HTTP/1.1\r\n\r\n",
        POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"content-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        POST + b"content-length: -3\r\n\r\nabcd",
        POST + b"transfer-encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
def test_invalid_request_is_rejected(tmp_path: Path, sent: bytes) -> None:
    assert codes(exchange(tmp_path, sent)) == [400]


@pytest.mark.parametrize("head", [b"GET /%b HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n%b"])
def test_oversized_head_is_rejected(tmp_path: Path, head: bytes) -> None:
    assert codes(exchange(tmp_path, head % (b"a" * 70_000))) == [431]


def test_head_request_returns_no_body(tmp_path: Path) -> None:
    answer = exchange(tmp_path, b"HEAD /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
    assert codes(answer) == [200]
    assert b"content-length: 2\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_upgrade_to_unsupported_protocol_is_ignored(tmp_path: Path) -> None:
    upgrade = b"connection: upgrade\r\nupgrade: h2c\r\n"
    answer = exchange(
        tmp_path, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n" + upgrade + b"\r\nPRI * HTTP/2.0\r\n\r\n"
    )
    assert codes(answer) == [200]
    assert b"connection: close" in answer
    request = POST + upgrade + b"content-length: %d\r\n\r\n%b" % (len(MAP), MAP)
    then = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    for parts in ([request + then], [request[:-9], request[-9:] + then]):
        assert codes(exchange(tmp_path, *parts)) == [201, 200]


@pytest.mark.parametrize("upgrade", [b"", b"connection: upgrade\r\nupgrade: h2c\r\n"])
def test_connect_request_is_rejected(tmp_path: Path, upgrade: bytes) -> None:
    request = b"CONNECT x:1 HTTP/1.1\r\nhost: localhost\r\n" + upgrade + b"content-length: 2\r\n\r\n{}"
    assert [code // 100 for code in codes(exchange(tmp_path, request))] == [4]


def test_watch_sends_chunks_and_ends_before_next_pipelined_response(tmp_path: Path) -> None:
    request = f"GET {MAPS}?watch=true&timeoutSeconds=1 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    answer = exchange(tmp_path, request + POST + b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(MAP), MAP))
    assert codes(answer) == [200, 201]
    assert b"transfer-encoding: chunked" in answer
    assert b"\r\n0\r\n\r\nHTTP/1.1 201" in answer


def test_watch_sends_bookmark_before_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchyard.server.http.protocol.BOOKMARK_BEFORE_END", 0.9)
    created = POST + b"content-length: %d\r\n\r\n%b" % (len(MAP), MAP)
    request = f"GET {MAPS}?watch=true&timeoutSeconds=1&allowWatchBookmarks=true HTTP/1.1\r\nhost: localhost\r\n"
    answer = exchange(tmp_path, created + request.encode() + b"connection: close\r\n\r\n")
    assert codes(answer) == [201, 200]
    assert b'"type":"BOOKMARK"' in answer


@pytest.mark.parametrize("seconds", [1, -1])  # a time that is over
def test_http_1_0_watch_ends_with_connection(tmp_path: Path, seconds: int) -> None:
    request = (
        f"GET {MAPS}?watch=true&timeoutSeconds={seconds} HTTP/1.0\r\nhost: localhost\r\nconnection: keep-alive\r\n\r\n"
    )
    answer = exchange(tmp_path, request.encode())
    assert (b"chunked" in answer, b"connection: close" in answer) == (False, True)


def test_connection_above_limit_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchyard.server.http.connections.CONNECTIONS_MAX", 0)
    assert codes(exchange(tmp_path)) == [503]


@pytest.mark.parametrize(
    ("begin", "headers", "code"),
    [
        (b"", b"host: evil.example.com\r\n", 401),
        (b"", b"host:\r\n", 401),
        (b"", b"host: localhost\r\norigin: http://evil.example.com\r\n", 401),
        (b"http://evil.example.com", b"host: localhost\r\n", 401),
        (b"http://evil.example.com:80", b"host: localhost:80\r\n", 401),
        (b"http://localhost:80", b"host: evil.example.com\r\n", 200),
        (b"http://[::1]:80", b"host:\r\n", 200),
    ],
    ids=[
        "other host",
        "empty host",
        "other origin",
        "absolute URL",
        "URL with port",
        "URL overrides host",
        "IPv6 address",
    ],
)
def test_cross_origin_request_without_tls_is_rejected(tmp_path: Path, begin: bytes, headers: bytes, code: int) -> None:
    request = b"GET %b%b HTTP/1.1\r\nconnection: close\r\n%b\r\n" % (begin, MAPS.encode(), headers)
    assert codes(exchange(tmp_path, request)) == [code]


@pytest.mark.parametrize(
    ("origin", "code"),
    [(b"http://localhost", 404), (b"http://localhost:81", 401), (b"https://localhost", 401), (b"null", 401)],
)
def test_own_page_may_send_actions_without_tls(tmp_path: Path, origin: bytes, code: int) -> None:
    headers = b"host: localhost\r\nconnection: close\r\norigin: %b\r\n" % origin
    request = b"%b HTTP/1.1\r\n%bcontent-length: 2\r\n\r\n{}"
    assert codes(exchange(tmp_path, request % (b"POST " + DASHBOARD_ACTIONS_PATH.encode(), headers))) == [code]
    assert codes(exchange(tmp_path, request % (b"POST " + MAPS.encode(), headers))) == [401]


@pytest.mark.parametrize(
    ("headers", "problem"),
    [
        (b"", b"missing required Host header"),
        (b"host: localhost\r\nhost: localhost\r\n", b"too many Host headers"),
        (b"host: local host\r\n", b"malformed Host header"),
        (b"host: localhost/x\r\n", b"malformed Host header"),
    ],
)
def test_request_requires_exactly_one_valid_host_header(tmp_path: Path, headers: bytes, problem: bytes) -> None:
    answer = exchange(tmp_path, b"GET /version HTTP/1.1\r\n" + headers + b"\r\n")
    assert codes(answer) == [400]
    assert answer.endswith(b"\r\n\r\n400 Bad Request: " + problem)


def test_http_1_0_needs_no_host(tmp_path: Path) -> None:
    assert codes(exchange(tmp_path, b"GET /version HTTP/1.0\r\n\r\n")) == [200]


@pytest.mark.parametrize(("seconds", "code"), [(b"9" * 18, 200), (b"9" * 400, 400), (b"9" * 5000, 400)])
def test_watch_timeout_is_bounded(tmp_path: Path, seconds: bytes, code: int) -> None:
    async def talk(streams: Streams) -> None:
        reader, writer = streams
        head = b"GET %b?watch=1&timeoutSeconds=%b HTTP/1.1\r\nhost: localhost\r\n\r\n"
        writer.write(head % (MAPS.encode(), seconds))
        assert codes(await reader.read(1000)) == [code]

    reported(tmp_path, talk)


def test_chunked_trailer_is_not_read_as_header(tmp_path: Path) -> None:
    body = b"%x\r\n%b\r\n0\r\nimpersonate-user: nobody\r\n\r\n" % (len(MAP), MAP)
    assert codes(exchange(tmp_path, POST + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n", body)) == [201]


def test_number_of_warning_headers_is_bounded(tmp_path: Path) -> None:
    body = json.dumps({**json.loads(MAP), **{f"field-{'x' * 60}-{i}": 1 for i in range(1000)}}).encode()
    answer = exchange(tmp_path, POST + b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    assert codes(answer) == [201]
    assert 40 < answer.count(b"\r\nwarning: 299 - ") < 70


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    length = int(await reader.readline(), 16)
    return (await reader.readexactly(length + 2))[:-2]


def test_long_list_is_written_in_chunks(tmp_path: Path) -> None:
    api = Api()
    for number in range(20):
        api.post(MAPS, config_map(f"m{number}") | {"data": {"a": "x" * 200_000}})
    names = sorted(f"m{number}" for number in range(20))

    async def talk() -> None:
        async with connected(api.server, tmp_path) as (reader, writer):
            writer.write(b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % MAPS.encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"transfer-encoding: chunked" in head
            chunks = [await read_chunk(reader)]
            while chunks[-1]:
                chunks.append(await read_chunk(reader))
            assert max(map(len, chunks)) < 800_000
            assert [item["metadata"]["name"] for item in json.loads(b"".join(chunks))["items"]] == names
            assert await reader.read() == b""

    asyncio.run(talk())


def test_client_that_stops_reading_is_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "READ_TIMEOUT", 0.2)
    api = Api()
    for number in range(40):
        api.post(MAPS, config_map(f"m{number}") | {"data": {"a": "x" * 500_000}})

    async def talk() -> None:
        async with connected(api.server, tmp_path) as (reader, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % MAPS.encode())
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.6)
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(20_000_000)

    asyncio.run(talk())


def test_connections_of_one_client_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchyard.server.http.connections.CLIENT_CONNECTIONS_MAX", 0)
    assert codes(exchange(tmp_path)) == [503]


def test_total_size_of_bodies_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchyard.server.http.connections.BODY_BYTES_MAX", 20)
    answer = exchange(tmp_path, POST + b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(MAP), MAP))
    assert (codes(answer), body_of(answer)["reason"]) == ([429], "TooManyRequests")


@pytest.mark.parametrize("tls", [None, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)])  # with which no handshake succeeds
def test_closed_connection_leaves_no_reference_cycles(tmp_path: Path, tls: ssl.SSLContext | None) -> None:
    gc.collect()
    gc.disable()
    try:
        exchange(
            tmp_path,
            b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\nconnection: close\r\n\r\n",
            tls=tls,
        )
        kept = {type(obj) for obj in gc.get_objects()} & {HttpProtocol, RequestParser, ConnectionDeadline}
        assert kept <= (
            set() if tls is None else {HttpProtocol, ConnectionDeadline}
        )  # asyncio's TLS has a cycle; uvloop's has none
    finally:
        gc.enable()


class GreetingProtocol(asyncio.Protocol):
    """A protocol that ends each connection with a greeting."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(b"hello")  # type: ignore[attr-defined]
        transport.close()


def tls_of(folder: Path) -> ssl.SSLContext:
    certificate_file = write_server_certificate(folder, "127.0.0.1")
    return server_tls_context(str(certificate_file), str(folder / "ca.crt"))


def test_stalled_tls_handshakes_leave_room_for_new_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchyard.server.http.connections.HANDSHAKES_MAX", 10)
    context = tls_of(tmp_path)

    async def talk() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        acceptor = Acceptor(listener, GreetingProtocol, context, 30)
        idle = [await asyncio.open_connection(*address) for _ in range(25)]
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        reader, writer = await asyncio.open_connection(*address, ssl=trusting)
        assert await reader.read() == b"hello"
        ended = [await _is_ended(each) for each, _ in idle]
        assert ended == [True] * 16 + [False] * 9
        acceptor.close()
        for _, each in (*idle, (reader, writer)):
            each.close()
            with suppress(OSError):
                await each.wait_closed()

    uvloop.run(talk())


async def _is_ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(), 0.2) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_user_of_certificate_is_its_last_common_name() -> None:
    names = (("commonName", "eve"), ("organizationName", "system:nodes"), ("commonName", "system:node:a"))
    times = dict.fromkeys(("notBefore", "notAfter"), "Jan  1 00:00:00 2030 GMT")
    user = certificate_user_of({"subject": tuple((pair,) for pair in names), **times})
    assert user is not None
    assert (user.user.name, user.user.groups) == ("system:node:a", ("system:nodes", "system:authenticated"))
    assert certificate_user_of({"subject": ((("commonName", "eve"),), (("commonName", ""),)), **times}) is None
