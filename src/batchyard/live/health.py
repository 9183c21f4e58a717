"""What an operator says of itself over HTTP: whether it lives, whether it is ready, and figures.

The names are those of controller-runtime and client-go where these have such figures.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Self

from aiohttp import web

if TYPE_CHECKING:
    from batchyard.live.operator import Operator

_ENDS_WITHIN: Final = 1.0  # seconds


class Health:
    """Answers /healthz, /readyz and /metrics at an address; at port 0 it does nothing."""

    def __init__(self, operator: "Operator", address: str, port: int, tell: Callable[[str], None]) -> None:
        self._operator = operator
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
                ]
            )
            self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_ENDS_WITHIN)
            await self._runner.setup()
            await web.TCPSite(self._runner, address, port).start()
            self._tell(f"batchyard: health and metrics at http://{address}:{port}")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _alive(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _ready(self, _request: web.Request) -> web.Response:
        """Ready is who can do its part: who leads and knows all there is, and who waits to."""
        operator = self._operator
        if operator.leads and operator.platform is None:
            waits_for = [kind for kind, informer in operator.client.informers.items() if not informer.is_synced]
            return web.Response(status=503, text=f"waiting for {', '.join(waits_for)}")
        return web.Response(text="ok")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(text="".join(_lines(self._operator)), content_type="text/plain", charset="utf-8")


def _lines(operator: "Operator") -> Iterator[str]:
    """The figures in the text format of Prometheus."""
    yield from _metric("leader_election_master_status", "gauge", [({"name": "batchyard"}, int(operator.leads))])
    loads = () if operator.platform is None else operator.platform.runner.loads()
    yield from _metric("workqueue_depth", "gauge", [({"name": name}, waiting) for name, waiting, _ in loads])
    yield from _metric(
        "controller_runtime_reconcile_total", "counter", [({"controller": name}, done) for name, _, done in loads]
    )
    answers = operator.client.outbox.answers
    yield from _metric(
        "rest_client_requests_total",
        "counter",
        [({"method": method, "code": str(code)}, answers[method, code]) for method, code in sorted(answers)],
    )
    informers = operator.client.informers.items()
    yield from _metric("batchyard_lists_total", "counter", [({"kind": kind}, each.lists) for kind, each in informers])
    yield from _metric(
        "batchyard_watches_total", "counter", [({"kind": kind}, each.watches) for kind, each in informers]
    )


def _metric(name: str, kind: str, values: list[tuple[Mapping[str, str], int]]) -> Iterator[str]:
    if values:
        yield f"# TYPE {name} {kind}\n"
    for labels, value in values:
        told = ",".join(f'{label}="{text}"' for label, text in labels.items())
        yield f"{name}{{{told}}} {value}\n"
