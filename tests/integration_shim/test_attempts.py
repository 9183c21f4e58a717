"""Answers of servers, as a kubelet takes them."""

import http.server
import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from batchyard.shim.container_exec import RunningContainer
from batchyard.shim.probes import ProbeOutcome, run_handler

HERE = RunningContainer("main", 1, False, {}, {}, "/", None, None, None, "127.0.0.1")


class Answers(http.server.BaseHTTPRequestHandler):
    """Answers with the code that the path says; redirects to where it says."""

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
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that answers as it is asked to."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        serving = Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server.server_port
        server.shutdown()
        serving.join()


def asked(port: int, path: str) -> ProbeOutcome:
    headers = [{"name": "X-Mine", "value": "mine"}]
    return run_handler({"httpGet": {"path": path, "port": port, "httpHeaders": headers}}, HERE, 5)


def test_a_good_answer_is_a_success_with_its_body(port: int) -> None:
    assert asked(port, "200") == ProbeOutcome("success", "kube-probe/1.32 mine")


def test_a_bad_answer_is_a_failure_without_its_body(port: int) -> None:
    assert asked(port, "/404") == ProbeOutcome("failure", "HTTP probe failed with statuscode: 404")


def test_a_redirect_on_the_same_host_is_followed(port: int) -> None:
    assert asked(port, "/302//503") == ProbeOutcome("failure", "HTTP probe failed with statuscode: 503")


def test_a_redirect_elsewhere_is_a_success_with_a_warning(port: int) -> None:
    found = asked(port, "/302/http://elsewhere/200")
    assert found == ProbeOutcome("warning", "Probe terminated redirects, Response body: kube-probe/1.32 mine")


def test_a_server_that_says_nothing_takes_too_long(port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        number = silent.getsockname()[1]
        found = run_handler({"httpGet": {"path": "/", "port": number}}, HERE, 0.05)
    text = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    assert found == ProbeOutcome("failure", f'Get "http://127.0.0.1:{number}/": {text}')


def test_a_port_that_somebody_listens_to_is_a_success(port: int) -> None:
    assert run_handler({"tcpSocket": {"port": port}}, HERE, 5) == ProbeOutcome("success", "")


def frame(kind: int, flags: int, payload: bytes, stream: int = 1) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


SERVING, NOT_SERVING = (frame(0, 0, b"\0\0\0\0\x02\x08" + bytes([status])) for status in (1, 2))


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
    ],
)
def test_health_is_asked_for_by_grpc(frames: list[bytes], outcome: ProbeOutcome) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = Thread(target=answer, args=(server, [frame(4, 0, b"", 0), frame(6, 0, b"12345678", 0), *frames]))
        serving.start()
        assert run_handler({"grpc": {"port": server.getsockname()[1], "service": "mine"}}, HERE, 10) == outcome
        serving.join()


def answer(server: socket.socket, frames: list[bytes]) -> None:
    """Answer one request whose headers and message are as they must be."""
    connection, _ = server.accept()
    with connection:
        asked = b""
        while not asked.endswith(b"\x0a\x04mine"):
            asked += connection.recv(65536)
        assert b"/grpc.health.v1.Health/Check" in asked
        connection.sendall(b"".join(frames))
        while connection.recv(65536):
            pass


def test_a_grpc_server_that_is_not_there_takes_too_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    text = f'timeout: failed to connect service "127.0.0.1:{port}" within 1s: context deadline exceeded'
    assert run_handler({"grpc": {"port": port}}, HERE, 1) == ProbeOutcome("failure", text)
