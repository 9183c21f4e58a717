"""An HTTP proxy before an S3 server that holds one upload until the test decides how it ends."""

import http.client
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final

_HOP_HEADERS: Final = frozenset({"connection", "transfer-encoding", "content-length", "date", "server"})
_UPLOAD: Final = re.compile(r"/\d{8}/(base|segment)-")
_SECONDS: Final = 60.0


class UploadGate:
    """Holds the next upload of a segment or base of an archive, and then passes it on or drops it."""

    def __init__(self) -> None:
        self._is_armed = False
        self._is_passed = False
        self._is_decided = threading.Event()
        self._is_done = threading.Event()
        #: Set while an upload is held.
        self.holds = threading.Event()

    def arm(self) -> None:
        """Hold the next upload."""
        self._is_armed = True

    def end(self, *, passed: bool) -> None:
        """Pass the held upload on to the server, or drop it; wait until this is done."""
        self._is_passed = passed
        self._is_decided.set()
        assert self._is_done.wait(_SECONDS), "the held upload does not end"

    def process(self, method: str, path: str, pass_on: Callable[[], None], drop: Callable[[], None]) -> None:
        """Pass a request on; if it is the upload to hold, wait for the decision first."""
        if not self._is_armed or method != "PUT" or not _UPLOAD.search(path):
            pass_on()
            return
        self._is_armed = False
        self.holds.set()
        self._is_decided.wait(_SECONDS)
        (pass_on if self._is_passed else drop)()
        self._is_done.set()


class GateHandler(BaseHTTPRequestHandler):
    """Handles the requests of one connection."""

    protocol_version = "HTTP/1.1"
    gate: ClassVar[UploadGate]
    server_address: ClassVar[tuple[str, int]]

    def handle_any(self) -> None:
        """Handle a request of any method."""
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.gate.process(self.command, self.path, partial(self._pass_on, body), self._drop)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815 - names of http.server

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def _drop(self) -> None:
        self.close_connection = True

    def _pass_on(self, body: bytes) -> None:
        server = http.client.HTTPConnection(*self.server_address, timeout=_SECONDS)
        server.request(self.command, self.path, body, dict(self.headers.items()))
        response = server.getresponse()
        content = response.read()
        try:
            self.send_response(response.status)
            for name, value in response.getheaders():
                if name.lower() not in _HOP_HEADERS:
                    self.send_header(name, value)
            self.send_header("content-length", response.headers.get("content-length", str(len(content))))
            self.end_headers()
            self.wfile.write(content)
        except OSError:  # the client was killed
            self.close_connection = True


@contextmanager
def upload_gate(server_port: int) -> Iterator[tuple[str, UploadGate]]:
    """Yield the URL of the proxy before a server of this machine, and its gate."""
    gate, address = UploadGate(), ("127.0.0.1", server_port)
    handler = type("GateHandlerOfServer", (GateHandler,), {"gate": gate, "server_address": address})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", gate
        finally:
            server.shutdown()
            thread.join()
