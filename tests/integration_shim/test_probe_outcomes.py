"""Probe outcomes for responses of servers, as with a kubelet."""

import http.server
import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from batchyard.shim.container_exec import RunningContainer
from batchyard.shim.probes import ProbeOutcome, run_handler

CONTAINER = RunningContainer("main", 1, False, {}, {}, "/", None, None, None, "127.0.0.1")


class StatusCodeHandler(http.server.BaseHTTPRequestHandler):
    """Responds with the status code, and the redirect target, in the path."""

    def do_GET(self) -> None:
        """Answer."""
        code, _, target = self.path[1:].partition("/")
        self.send_response(int(code))
        if target:
            self.send_header("Location", target)
        if code == "200":
            self.send_header("Agent", "x")
        self.end_headers()
        self.wfile.write(f"{self.headers['User-Agent']} {self.headers.get('X-Mine')}".encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server with responses that its clients select."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), StatusCodeHandler) as server:
        serving = Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server.server_port
        server.shutdown()
        serving.join()


def probe_outcome(port: int, path: str) -> ProbeOutcome:
    headers = [{"name": "X-Mine", "value": "mine"}]
    return run_handler({"httpGet": {"path": path, "port": port, "httpHeaders": headers}}, CONTAINER, 5)


def test_http_probe_succeeds_with_response_body(port: int) -> None:
    assert probe_outcome(port, "200") == ProbeOutcome("success", "kube-probe/1.36 mine")


def test_http_probe_fails_on_error_status_without_body(port: int) -> None:
    assert probe_outcome(port, "/404") == ProbeOutcome("failure", "HTTP probe failed with statuscode: 404")


def test_http_probe_follows_redirect_on_same_host(port: int) -> None:
    assert probe_outcome(port, "/302//503") == ProbeOutcome("failure", "HTTP probe failed with statuscode: 503")


def test_http_probe_warns_of_redirect_to_another_host(port: int) -> None:
    result = probe_outcome(port, "/302/http://elsewhere/200")
    assert result == ProbeOutcome("warning", "Probe terminated redirects, Response body: kube-probe/1.36 mine")


def test_http_probe_times_out_on_silent_server(port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        number = silent.getsockname()[1]
        result = run_handler({"httpGet": {"path": "/", "port": number}}, CONTAINER, 0.05)
    text = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    assert result == ProbeOutcome("failure", f'Get "http://127.0.0.1:{number}/": {text}')


def test_tcp_probe_succeeds_on_open_port(port: int) -> None:
    assert run_handler({"tcpSocket": {"port": port}}, CONTAINER, 5) == ProbeOutcome("success", "")


def frame(kind: int, flags: int, payload: bytes, stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


INVALID = ProbeOutcome("failure", "error: health rpc probe failed: grpc: failed to unmarshal the received message")


@pytest.mark.parametrize(
    ("frames", "outcome"),
    [
        ([frame(0, 0, b"\0\0\0\0\x02\x08\x01")], ProbeOutcome("success", "service healthy")),
        (
            [frame(0, 0, b"\0\0\0\0\x02\x08\x02")],
            ProbeOutcome("failure", 'service unhealthy (responded with "NOT_SERVING")'),
        ),
        (
            [frame(1, 5, b"\x88")],
            ProbeOutcome(
                "failure", "error: health rpc probe failed: the server has ended the request without an answer"
            ),
        ),
        (
            [frame(0, 0, b"\0\0\0\0\x03\x08\xac\x02")],
            ProbeOutcome("failure", 'service unhealthy (responded with "300")'),
        ),
        ([frame(0, 0, b"\0\0\0\0\x01\x08")], INVALID),
        ([frame(0, 0, b"\0\0\0\0\x02\x08\x80")], INVALID),
        ([frame(0, 0, b"\0\0\0\0\x01\x08\x01")], INVALID),
        ([frame(0, 8, b"\x01\0\0\0\0\x02\x08\x01\0")], ProbeOutcome("success", "service healthy")),
        (
            [frame(0, 8, b"")],
            ProbeOutcome("failure", "error: health rpc probe failed: the server has sent an invalid frame"),
        ),
    ],
)
def test_grpc_probe_reports_serving_status(frames: list[bytes], outcome: ProbeOutcome) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = Thread(target=answer, args=(server, [frame(4, 0, b"", 0), frame(6, 0, b"12345678", 0), *frames]))
        serving.start()
        assert run_handler({"grpc": {"port": server.getsockname()[1], "service": "mine"}}, CONTAINER, 10) == outcome
        serving.join()


def answer(server: socket.socket, frames: list[bytes]) -> None:
    """Answer one health request."""
    connection, _ = server.accept()
    with connection:
        request = b""
        while not request.endswith(b"\x0a\x04mine"):
            request += connection.recv(65536)
        assert b"/grpc.health.v1.Health/Check" in request
        connection.sendall(b"".join(frames))
        while connection.recv(65536):
            pass


def test_grpc_probe_times_out_without_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    text = f'timeout: failed to connect service "127.0.0.1:{port}" within 1s: context deadline exceeded'
    assert run_handler({"grpc": {"port": port}}, CONTAINER, 1) == ProbeOutcome("failure", text)
