"""Answers of servers, as a kubelet takes them."""

import http.server
import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from batchyard.node.attempts import Outcome, attempt
from batchyard.node.entry import Container

HERE = Container("main", 1, False, {}, {}, "/", None, None, "127.0.0.1")


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


def asked(port: int, path: str) -> Outcome:
    headers = [{"name": "X-Mine", "value": "mine"}]
    return attempt({"httpGet": {"path": path, "port": port, "httpHeaders": headers}}, HERE, 5)


def test_a_good_answer_is_a_success_with_its_body(port: int) -> None:
    assert asked(port, "200") == Outcome("success", "kube-probe/1.32 mine")


def test_a_bad_answer_is_a_failure_without_its_body(port: int) -> None:
    assert asked(port, "/404") == Outcome("failure", "HTTP probe failed with statuscode: 404")


def test_a_redirect_on_the_same_host_is_followed(port: int) -> None:
    assert asked(port, "/302//503") == Outcome("failure", "HTTP probe failed with statuscode: 503")


def test_a_redirect_elsewhere_is_a_success_with_a_warning(port: int) -> None:
    found = asked(port, "/302/http://elsewhere/200")
    assert found == Outcome("warning", "Probe terminated redirects, Response body: kube-probe/1.32 mine")


def test_a_server_that_says_nothing_takes_too_long(port: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        number = silent.getsockname()[1]
        found = attempt({"httpGet": {"path": "/", "port": number}}, HERE, 0.05)
    text = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    assert found == Outcome("failure", f'Get "http://127.0.0.1:{number}/": {text}')


def test_a_port_that_somebody_listens_to_is_a_success(port: int) -> None:
    assert attempt({"tcpSocket": {"port": port}}, HERE, 5) == Outcome("success", "")
