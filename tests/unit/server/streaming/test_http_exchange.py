"""Exchanges with another server: whole and streamed responses, failures, and limits of buffers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from batchyard.apiserver.request import ProxyResponse, Response
from batchyard.interfaces.containers import ByteStream, SessionClient, SessionEnd
from batchyard.server.streaming.http_exchange import ProxiedStream, TcpStream, forward_request


class ScriptedStream:
    """A byte stream to a server whose bytes the test sends."""

    def __init__(self, client: SessionClient) -> None:
        self.client = client
        self.written = b""
        self.is_reading = True
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def end_input(self) -> None:
        pass

    def set_reading(self, *, is_reading: bool) -> None:
        self.is_reading = is_reading

    def close(self) -> None:
        self.is_closed = True


class Exchange:
    """An exchange with a scripted server, and its responses."""

    def __init__(self, method: str = "GET", *, streams: bool = True, **fields: Any) -> None:
        self.streams: list[ScriptedStream] = []
        self.responses: list[Any] = []
        failure = lambda problem: Response(503, problem)  # noqa: E731 - one expression
        proxied = ProxyResponse(method, b"request", self._connect, failure, **fields)
        forward_request(proxied, self.responses.append, streams=streams)

    def _connect(self, client: SessionClient) -> ByteStream:
        self.streams.append(ScriptedStream(client))
        return self.streams[-1]

    def receive(self, *parts: bytes) -> Any:
        """Receive bytes of the server; return the response, None before it."""
        for part in parts:
            self.streams[0].client.process_output("stdout", part)
        return self.responses[0] if self.responses else None

    def end(self, failure: str = "") -> Any:
        """End the connection; return the response."""
        self.streams[0].client.process_end(SessionEnd(failure=failure))
        return self.responses[0] if self.responses else None


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in an event loop."""
    return lambda: asyncio.run(test())


async def _whole() -> None:
    exchange = Exchange(added_headers=(("x-added", "1"),))
    assert exchange.streams[0].written == b"request"
    assert (
        exchange.receive(b"HTTP/1.1 201 Created\r\ncontent-length: 2\r\nx-a: b\r\n", b"connection: x-drop\r\n") is None
    )
    response = exchange.receive(b"x-drop: 1\r\ncontent-type: text/plain\r\n\r\no", b"k")
    assert (response.code, response.body, response.content_type) == (201, b"ok", "text/plain")
    assert response.headers == (("x-a", "b"), ("x-added", "1"))
    assert exchange.streams[0].is_closed


async def _streamed() -> None:
    exchange = Exchange()
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    stream = exchange.receive(head, b"3\r\nabc\r\n")
    assert isinstance(stream, ProxiedStream)
    assert (stream.head.code, stream.take_buffered_data(), stream.is_over) == (200, [b"abc"], False)
    exchange.receive(b"2\r\nde\r\n0\r\n\r\n")
    assert (stream.take_buffered_data(), stream.is_over) == ([b"de"], True)


async def _collected() -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    exchange = Exchange(streams=False)
    assert exchange.receive(head, b"3\r\nabc\r\n") is None
    assert exchange.receive(b"2\r\nde\r\n0\r\n\r\n").body == b"abcde"
    too_large = Exchange(streams=False).receive(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * (4 * 1024 * 1024 + 1))
    assert too_large == Response(503, "the response is too large")


async def _backpressure() -> None:
    exchange = Exchange()
    stream = exchange.receive(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 600_000)
    assert not exchange.streams[0].is_reading
    assert len(b"".join(stream.take_buffered_data())) == 600_000
    assert exchange.streams[0].is_reading
    exchange.end()
    assert stream.is_over


async def _client_leaves() -> None:
    exchange = Exchange()
    exchange.receive(b"HTTP/1.1 200 OK\r\n\r\n").end()
    assert exchange.streams[0].is_closed


async def _without_body() -> None:
    for method, head in (("HEAD", b"200 OK\r\ncontent-length: 5"), ("GET", b"204 No Content"), ("GET", b"304 Same")):
        response = Exchange(method).receive(b"HTTP/1.1 %b\r\n\r\n" % head)
        assert response.body == b"", head


async def _failures() -> None:
    assert Exchange().end("dial tcp: refused") == Response(503, "dial tcp: refused")
    assert "closed before the response was complete" in Exchange().end().body
    assert "malformed HTTP response" in Exchange().receive(b"SSH-2.0\r\n").body
    assert "headers of the response are too large" in Exchange().receive(b"HTTP/1.1 200 OK\r\nx: ", b"y" * 70_000).body
    assert Exchange().receive(b"HTTP/1.1 299 Odd\r\ncontent-length: 0\r\n\r\n").code == 502
    truncated = Exchange()
    truncated.receive(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab")
    assert truncated.end().code == 503


async def _timeout() -> None:
    response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    proxied = ProxyResponse("GET", b"", ScriptedStream, lambda text: Response(503, text), timeout=0.01)
    forward_request(proxied, response.set_result)
    assert await response == Response(503, "the response timed out")


async def _unreachable() -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    failure: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connect = lambda client: TcpStream(("127.0.0.1", port), None, client)  # noqa: E731 - one expression
    forward_request(ProxyResponse("GET", b"", connect, lambda text: Response(503, text)), failure.set_result)
    assert (await failure).body == f"dial tcp 127.0.0.1:{port}: connect: connection refused"


test_response_of_known_length_is_whole = run(_whole)
test_response_of_unknown_length_is_streamed = run(_streamed)
test_response_is_collected_without_streams = run(_collected)
test_server_is_not_read_while_the_client_does_not_read = run(_backpressure)
test_connection_is_closed_when_the_client_leaves = run(_client_leaves)
test_response_without_body_ends_with_its_headers = run(_without_body)
test_failures_become_the_response_of_the_platform = run(_failures)
test_response_must_begin_in_time = run(_timeout)
test_unreachable_server_is_reported = run(_unreachable)


async def _trailers() -> None:
    exchange = Exchange()
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    stream = exchange.receive(head, b"3\r\nabc\r\n0\r\n", b"x-a: " + b"b" * 1000 + b"\r\n")
    assert not stream.is_over
    exchange.receive(*[b"x-a: " + b"b" * 1000 + b"\r\n"] * 70)
    assert stream.is_over
    assert exchange.streams[0].is_closed


async def _upgraded() -> None:
    exchange = Exchange()
    response = exchange.receive(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h\r\n\r\n")
    assert (response.code, response.body) == (503, "the server switched to another protocol")


test_endless_trailers_close_the_connection = run(_trailers)
test_switch_of_the_protocol_is_a_failure = run(_upgraded)
