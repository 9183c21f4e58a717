"""Calls of real HTTPS servers: certificates, errors in Go's words, timeouts and limits."""

import asyncio
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from batchyard.apiserver.admission.calls import TimedReply, WebhookCallError, WebhookRequest
from batchyard.apiserver.service_endpoints import EndpointAddress
from batchyard.server.http import webhook_client
from batchyard.server.http.webhook_client import CALLS_IN_FLIGHT_MAX, ResponseReader, WebhookClient, target_of
from hook_server import HookCertificates, HookServer


def echo(path: str, review: Mapping[str, Any]) -> Mapping[str, Any] | tuple[int, bytes]:
    """The review itself; an error or a delay for special paths."""
    if path.startswith("/code-"):
        return int(path.removeprefix("/code-")), b"broken"
    if path == "/slow":
        threading.Event().wait(1.5)
    return review


async def next_iteration(loop: asyncio.AbstractEventLoop) -> None:
    """Return after the callbacks that the loop has scheduled now."""
    reached = asyncio.Event()
    loop.call_soon(reached.set)
    await reached.wait()


def call(
    *configs: Mapping[str, Any], seconds: float = 10, resolve: Callable[[str, str, int], EndpointAddress] | None = None
) -> Sequence[TimedReply]:
    """The replies to simultaneous calls."""

    async def run() -> Sequence[TimedReply]:
        loop, replies = asyncio.get_running_loop(), list[TimedReply]()
        done = asyncio.Event()

        def receive(reply: TimedReply) -> None:
            replies.append(reply)
            if len(replies) == len(configs):
                done.set()

        def refuse(namespace: str, name: str, port: int) -> EndpointAddress:
            raise WebhookCallError(f'no endpoints available for service "{name}"')

        client = WebhookClient(loop, lambda work: work(), resolve or refuse, socket.socket)
        for config in configs:
            client.call(WebhookRequest("a", config, int(seconds), b'{"a": 1}'), seconds, receive)
        await done.wait()
        client.close()
        while len(asyncio.all_tasks()) > 1:
            await next_iteration(loop)
        for _ in range(5):  # the transports close in callbacks of the loop
            await next_iteration(loop)
        return replies

    return asyncio.run(run())


def error_of(config: Mapping[str, Any], seconds: float = 10) -> str:
    """The text of a failed call."""
    [reply] = call(config, seconds=seconds)
    assert isinstance(reply.reply, WebhookCallError), reply
    return str(reply.reply)


def test_review_is_posted_with_the_timeout(tmp_path: Path) -> None:
    certificates = HookCertificates(tmp_path)
    with HookServer(certificates, echo) as server:
        [reply] = call({"url": f"{server.url}/x", "caBundle": certificates.bundle})
    assert reply.reply == b'{"a": 1}'
    assert server.asked == [("/x?timeout=10s", {"a": 1})]


@pytest.mark.parametrize(
    ("path", "clean"), [("//failing", "/failing"), ("/a/./b/../c/", "/a/c"), ("", "/"), ("/", "/")]
)
def test_path_is_cleaned_as_by_client_go(path: str, clean: str) -> None:
    assert target_of({"url": f"https://h:1{path}"}, 10).url == f"https://h:1{clean}?timeout=10s"
    service = {"namespace": "n", "name": "s", "path": path}
    assert target_of({"service": service}, 10).path == f"{clean}?timeout=10s"


def test_service_is_called_by_its_dns_name(tmp_path: Path) -> None:
    certificates = HookCertificates(tmp_path, "hooks.team.svc")
    service = {"namespace": "team", "name": "hooks", "path": "x", "port": 8443}
    with HookServer(certificates, echo) as server:
        address = EndpointAddress("127.0.0.1", server.port)
        config = {"service": service, "caBundle": certificates.bundle}
        [reply] = call(config, resolve=lambda _namespace, _name, _port: address)
        assert reply.reply == b'{"a": 1}'
        url = "https://hooks.team.svc:8443/x?timeout=10s"
        assert error_of(config) == f'Post "{url}": no endpoints available for service "hooks"'
    assert server.asked == [("/x?timeout=10s", {"a": 1})]


def test_certificates_are_verified(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    certificates, other = HookCertificates(tmp_path), HookCertificates(tmp_path / "other")
    with HookServer(certificates, echo) as server:
        start = f'Post "{server.url}/?timeout=10s": tls: failed to verify certificate: x509: '
        text = error_of({"url": server.url, "caBundle": other.bundle})
        assert text == f"{start}certificate signed by unknown authority"
        local = {"url": server.url.replace("127.0.0.1", "localhost"), "caBundle": certificates.bundle}
        assert error_of(local).endswith("x509: certificate is not valid for localhost")
    assert server.asked == []


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (404, "the server could not find the requested resource"),
        (500, 'an error on the server ("broken") has prevented the request from succeeding'),
    ],
)
def test_error_response_has_text_of_client_go(tmp_path: Path, code: int, text: str) -> None:
    certificates = HookCertificates(tmp_path)
    with HookServer(certificates, echo) as server:
        [reply] = call({"url": f"{server.url}/code-{code}", "caBundle": certificates.bundle})
    assert isinstance(reply.reply, WebhookCallError)
    assert (str(reply.reply), reply.reply.code) == (text, code)


def test_slow_webhook_exceeds_its_deadline(tmp_path: Path) -> None:
    certificates = HookCertificates(tmp_path)
    with HookServer(certificates, echo) as server:
        text = error_of({"url": f"{server.url}/slow", "caBundle": certificates.bundle}, seconds=1)
        assert text == f'Post "{server.url}/slow?timeout=1s": context deadline exceeded'


def test_closed_port_refuses_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    text = error_of({"url": f"https://127.0.0.1:{port}/x"})
    assert text == (
        f'Post "https://127.0.0.1:{port}/x?timeout=10s": dial tcp 127.0.0.1:{port}: connect: connection refused'
    )


def test_connections_are_reused_and_calls_in_flight_bounded(tmp_path: Path) -> None:
    certificates = HookCertificates(tmp_path)
    with HookServer(certificates, echo) as server:
        config = {"url": server.url, "caBundle": certificates.bundle}
        count = CALLS_IN_FLIGHT_MAX + 6
        replies = call(*[config] * count, seconds=30)
        assert [reply.reply for reply in replies] == [b'{"a": 1}'] * count
        assert len(server.connections) <= CALLS_IN_FLIGHT_MAX


@pytest.mark.parametrize(("idle_seconds", "connections"), [(60.0, 1), (0.01, 3)])
def test_idle_connections_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_seconds: float, connections: int
) -> None:
    monkeypatch.setattr(webhook_client, "_IDLE_SECONDS", idle_seconds)
    certificates = HookCertificates(tmp_path)

    async def call_with_pauses(config: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        client = WebhookClient(loop, lambda work: work(), lambda *_: EndpointAddress("", 0), socket.socket)
        for _ in range(3):
            answer: asyncio.Future[TimedReply] = loop.create_future()
            client.call(WebhookRequest("a", config, 10, b"{}"), 10, answer.set_result)
            await answer
            paused = asyncio.Event()
            loop.call_later(0.1, paused.set)
            await paused.wait()
        client.close()

    with HookServer(certificates, echo) as server:
        asyncio.run(call_with_pauses({"url": server.url, "caBundle": certificates.bundle}))
        assert len(server.connections) == connections


OK = b"HTTP/1.1 200 OK\r\n"


async def read_response(data: bytes) -> ResponseReader:
    """The response that a server sends before it closes the connection."""
    stream = asyncio.StreamReader()
    stream.feed_data(data)
    stream.feed_eof()
    response = ResponseReader(stream)
    await response.read()
    return response


@pytest.mark.parametrize(
    ("data", "is_reusable"),
    [
        (OK + b"content-length: 2\r\n\r\nok", True),
        (OK + b"content-length: 2\r\nConnection: Close\r\n\r\nok", False),
        (OK + b"content-length: 2\r\n\r\nok" + OK + b"content-length: 3\r\n\r\nbad", False),
        (OK + b"transfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\nx: y\r\n\r\n", True),
        (OK + b"\r\nok", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: 2\r\n\r\nok", True),
    ],
)
def test_response_is_read_to_its_end(data: bytes, is_reusable: bool) -> None:
    response = asyncio.run(read_response(data))
    assert (response.code, bytes(response.body), response.is_reusable) == (200, b"ok", is_reusable)


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"", asyncio.IncompleteReadError, "0 bytes read"),
        (OK + b"content-length: 5\r\n\r\nok", asyncio.IncompleteReadError, "2 bytes read"),
        (OK + b"x: " + b"y" * 70_000, asyncio.LimitOverrunError, "header too long"),
        (b"SSH-2.0\r\n", WebhookCallError, 'malformed HTTP response "SSH-2.0"'),
        (OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n", WebhookCallError, "malformed chunked encoding"),
        (OK + b"content-length: 8388609\r\n\r\n", WebhookCallError, "longer than 8388608 bytes"),
    ],
)
def test_wrong_response_is_an_error(data: bytes, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        asyncio.run(read_response(data))
