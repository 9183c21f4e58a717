"""A client and an API server in one process, with a simulated connection that may fail."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from batchyard.api import scheme
from batchyard.apiserver.handlers.read import WatchStream
from batchyard.apiserver.request import Response
from batchyard.base.instant import MILLISECOND
from batchyard.client.rest import ClientDependencies, RestClient
from batchyard.client.transport import HttpRequest, HttpResponse, RateLimit
from batchyard.controller_runtime.kernel import VirtualEventLoop
from unit.apiserver.api import Api, body_bytes

START = 1_767_225_600_000_000
#: The latency of a request, in each direction.
_THERE = 2 * MILLISECOND
KINDS = (scheme.NAMESPACE, scheme.JOB, scheme.WORKLOAD, scheme.CLUSTER_QUEUE, scheme.POD)


class InProcessTransport:
    """A Transport to a server in this process."""

    def __init__(self, kernel: VirtualEventLoop, api: Api) -> None:
        self.kernel = kernel
        self.api = api
        self.asked: list[str] = []
        #: Called with each request: an answer replaces that of the server, None passes the request on.
        self.trouble: Callable[[HttpRequest], HttpResponse | None] = lambda _request: None
        #: Whether the server executes failed requests, so that only the answer is lost.
        self.is_done_anyway = False
        self._watches: list[tuple[Any, Callable[[HttpResponse], None]]] = []

    def send(self, request: HttpRequest, answered: Callable[[HttpResponse], None]) -> None:
        def arrive() -> None:
            answer = self._answer(request)
            self.kernel.call_at(self.kernel.now() + _THERE, lambda: answered(answer))

        self.kernel.call_at(self.kernel.now() + _THERE, arrive)

    def watch(
        self, request: HttpRequest, reported: Callable[[Sequence[bytes]], None], ended: Callable[[HttpResponse], None]
    ) -> None:
        self.kernel.call_at(self.kernel.now() + _THERE, lambda: self._watch(request, reported, ended))

    def cut(self) -> None:
        """Interrupt all watches."""
        watches, self._watches = self._watches, []
        for stream, ended in watches:
            stream.on_new_data = lambda: None
            self.kernel.call_soon(partial(ended, HttpResponse(200, trouble="cut")))

    def _watch(
        self, request: HttpRequest, reported: Callable[[Sequence[bytes]], None], ended: Callable[[HttpResponse], None]
    ) -> None:
        self.asked.append(f"{request.method} {request.path}")
        trouble = self.trouble(request)
        stream = trouble or self.api.answer("GET", request.path)
        if not isinstance(stream, WatchStream):
            assert isinstance(stream, HttpResponse | Response), stream
            answer = stream if isinstance(stream, HttpResponse) else _of_response(stream)
            self.kernel.call_at(self.kernel.now() + _THERE, lambda: ended(answer))
            return

        def news() -> None:
            lines = [msgspec.json.encode(event) for event in stream.take_buffered_data()]
            if lines:
                self.kernel.call_at(self.kernel.now() + _THERE, lambda: reported(lines))

        stream.on_new_data = news
        self._watches.append((stream, ended))
        news()

    def _answer(self, request: HttpRequest) -> HttpResponse:
        self.asked.append(f"{request.method} {request.path}")
        trouble = self.trouble(request)
        if trouble is not None and not self.is_done_anyway:
            return trouble
        answer = self.api.answer(request.method, request.path, request.body, request.content_type)
        assert isinstance(answer, Response)
        return trouble or _of_response(answer)


def _of_response(response: Response) -> HttpResponse:
    return HttpResponse(response.code, body_bytes(response), None)


class ClientAndServer:
    """A client whose server is in this process, and the events that it reported."""

    def __init__(self, kinds: Sequence[str] = KINDS, *, window: int = 1000, qps: float = 1000.0) -> None:
        self.kernel = VirtualEventLoop(START)
        self.api = Api(window, START)
        self.line = InProcessTransport(self.kernel, self.api)
        self.is_open = True
        limit = RateLimit(qps, 100)
        self.client = RestClient(
            ClientDependencies(self.kernel, self.kernel, self.line, limit, lambda: self.is_open), kinds
        )
        self.reported: list[Any] = []
        self.client.subscribe(self.reported.extend)

    def run(self, seconds: int = 60) -> None:
        """Run the event loop for some seconds."""
        self.kernel.run(end_time=self.kernel.now() + seconds * 1_000_000)

    def start(self) -> "ClientAndServer":
        """Start the client and wait until it is synced."""
        self.client.start()
        self.run()
        assert self.client.is_synced
        self.reported.clear()
        return self
