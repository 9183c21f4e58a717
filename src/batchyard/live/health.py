"""What an operator says of itself over HTTP: whether it lives, whether it is ready, and figures.

The names are those of controller-runtime and client-go where these have such figures.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Self

from aiohttp import web

from batchyard.live.operator_page import OperatorPage
from batchyard.metrics.exposition import CHOICE, CONTENT_TYPE, Exposition
from batchyard.metrics.families import text_of
from batchyard.metrics.names import metric

if TYPE_CHECKING:
    from batchyard.live.operator import Operator

_ENDS_WITHIN: Final = 1.0  # seconds


class Health:
    """Answers /healthz, /readyz and /metrics at an address; at port 0 it does nothing."""

    def __init__(self, operator: "Operator", address: str, port: int, tell: Callable[[str], None]) -> None:
        self._operator = operator
        self._exposition = Exposition([("program", lambda: _texts(operator)), *operator.figures.sources()])
        self._place = address, port
        self._tell = tell
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        address, port = self._place
        if port:
            app = web.Application()
            app.add_routes(
                [
                    web.get("/healthz", self._alive),
                    web.get("/readyz", self._ready),
                    web.get("/metrics", self._metrics),
                    *OperatorPage(self._operator.reviewed, lambda: self._operator.models).routes(),
                ]
            )
            self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_ENDS_WITHIN)
            await self._runner.setup()
            await web.TCPSite(self._runner, address, port).start()
            self._tell(f"batchyard: health and metrics at http://{address}:{port}, the page at /ui/")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _alive(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _ready(self, _request: web.Request) -> web.Response:
        """Ready is who can do its part: who leads and knows all there is, and who waits to."""
        operator = self._operator
        if not operator.answers():
            return web.Response(status=503, text="waiting for the certificates of the webhooks")
        if operator.leads and operator.platform is None:
            waits_for = [kind for kind, informer in operator.client.informers.items() if not informer.is_synced]
            return web.Response(status=503, text=f"waiting for {', '.join(waits_for)}")
        return web.Response(text="ok")

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        """All figures, part by part; between two of them the controllers go on."""
        try:
            parts = self._exposition.parts(request.query.getall(CHOICE, []))
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        answer = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        await answer.prepare(request)
        for part in parts:
            await (answer.write(part.encode()) if part else _others_go_on())
        await answer.write_eof()
        return answer


async def _others_go_on() -> None:
    """Let whatever waits have its turn."""
    turn = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turn.set_result, None)
    await turn


def _texts(operator: "Operator") -> Iterator[str]:
    """What an operator tells besides its controllers."""
    yield text_of(metric("leader_election_master_status"), [(("batchyard",), int(operator.leads))])
    answers = operator.client.outbox.answers
    rows = (((str(code), method), answers[method, code]) for method, code in sorted(answers))
    yield text_of(metric("rest_client_requests_total"), rows)
    informers = operator.client.informers.items()
    yield text_of(metric("batchyard_lists_total"), (((kind,), each.lists) for kind, each in informers))
    yield text_of(metric("batchyard_watches_total"), (((kind,), each.watches) for kind, each in informers))
