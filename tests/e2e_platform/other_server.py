"""An API server without the subresources of batchyard: it forwards all other requests to a platform."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

#: Paths that only batchyard serves.
_OURS = ("/why", "/eta", "/batchyard/status")


class OtherServer:
    """The server; it listens within the context."""

    def __init__(self, url: str) -> None:
        place = urlsplit(url)

        class ProxyHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                code, body = 404, b'{"kind":"Status","code":404,"message":"there is no such resource"}'
                if not self.path.partition("?")[0].endswith(_OURS):
                    connection = http.client.HTTPConnection(str(place.hostname), place.port)
                    connection.request("GET", self.path)
                    answer = connection.getresponse()
                    code, body = answer.status, answer.read()
                    connection.close()
                self.send_response(code)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), ProxyHandler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
