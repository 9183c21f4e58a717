"""HTTP endpoints of the operator and the shadow: health, metrics and the dashboard."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Self

from aiohttp import web

from batchyard.metrics.definitions import metric
from batchyard.metrics.exposition import CHOICE, CONTENT_TYPE, Exposition
from batchyard.metrics.registry import text_of
from batchyard.server.operator.dashboard import OperatorPage

_ENDS_WITHIN: Final = 1.0  # seconds


class HttpEndpoints:
    """An HTTP server that runs while its context is entered. With port 0 it does not listen."""

    def __init__(self, routes: Iterable[web.RouteDef], place: tuple[str, int], report: Callable[[str], None]) -> None:
        self._routes = routes
        self._place = place
        self._report = report
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        address, port = self._place
        if port:
            app = web.Application()
            app.add_routes(self._routes)
            self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_ENDS_WITHIN)
            await self._runner.setup()
            await web.TCPSite(self._runner, address, port).start()
            self._report(f"batchyard: health and metrics at http://{address}:{port}, the page at /ui/")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


def health_routes(exposition: Exposition, waits_for: Callable[[], str]) -> list[web.RouteDef]:
    """Routes for /healthz, /readyz and /metrics. `waits_for` returns what delays readiness, or '' when ready."""

    async def alive(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def ready(_request: web.Request) -> web.Response:
        missing = waits_for()
        return web.Response(status=503, text=f"waiting for {missing}") if missing else web.Response(text="ok")

    async def metrics(request: web.Request) -> web.StreamResponse:
        """Send the metrics in parts, so that the controllers run in between."""
        try:
            parts = exposition.parts(request.query.getall(CHOICE, []))
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        answer = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        await answer.prepare(request)
        for part in parts:
            await (answer.write(part.encode()) if part else _yield_to_loop())
        await answer.write_eof()
        return answer

    return [web.get("/healthz", alive), web.get("/readyz", ready), web.get("/metrics", metrics)]


async def _yield_to_loop() -> None:
    """Yield to the event loop for one iteration."""
    turn = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turn.set_result, None)
    await turn


# --- health ---
#
# The health endpoints and metrics of an operator.
#
# Metrics have the names of controller-runtime and client-go where those define them.


if TYPE_CHECKING:
    from batchyard.server.operator.operator import OperatorProcess


def operator_endpoints(
    operator: "OperatorProcess", place: tuple[str, int], report: Callable[[str], None]
) -> HttpEndpoints:
    """Return the HTTP server of an operator: health, metrics and the dashboard."""
    program = [("program", lambda: _texts(operator)), ("program", operator.asked)]
    exposition = Exposition([*program, *operator.figures.sources()])
    page = OperatorPage(operator.reviewed, lambda: operator.models)
    return HttpEndpoints([*health_routes(exposition, lambda: _missing(operator)), *page.routes()], place, report)


def _missing(operator: "OperatorProcess") -> str:
    """Return what delays readiness: the webhook certificates, and on the leader also informers that are not synced."""
    if not operator.answers():
        return "the certificates of the webhooks"
    if operator.leads and operator.platform is None:
        return ", ".join(kind for kind, informer in operator.client.informers.items() if not informer.is_synced)
    return ""


def _texts(operator: "OperatorProcess") -> Iterator[str]:
    """Yield the metrics of leader election and of the client."""
    yield text_of(metric("leader_election_master_status"), [(("batchyard",), int(operator.leads))])
    answers = operator.client.outbox.answers
    rows = (((str(code), method), answers[method, code]) for method, code in sorted(answers))
    yield text_of(metric("rest_client_requests_total"), rows)
    informers = operator.client.informers.items()
    yield text_of(metric("batchyard_lists_total"), (((kind,), each.lists) for kind, each in informers))
    yield text_of(metric("batchyard_watches_total"), (((kind,), each.watches) for kind, each in informers))
