"""The operator as a shadow: it lists and watches what decides about queues, says what it would do, and writes nothing.

Its requests go through a transport that carries no writes. Nobody leads: as many may look on as like to. Time is the
clock's.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from aiohttp import web

from batchyard.apiserver.page import Models
from batchyard.base.instant import Duration
from batchyard.client.informer import Informer
from batchyard.client.rate_limit import RateLimit
from batchyard.client.reading_only import ReadingOnly
from batchyard.client.rest import RestClient, Wiring
from batchyard.controllers.admission.index import KINDS
from batchyard.controllers.shadow.findings import Counts, Finding
from batchyard.controllers.shadow.follower import Follower
from batchyard.controllers.shadow.pursuit import Terms
from batchyard.core.cycle import Policy
from batchyard.live.access import Source
from batchyard.live.kubeconfig import read_access
from batchyard.live.operator_page import Hub, OperatorPage
from batchyard.live.real_time import RealTime
from batchyard.live.rest_wire import HttpTransport
from batchyard.live.reviewed import Reviewed
from batchyard.live.shadow_page import ShadowPage
from batchyard.metrics.exposition import CHOICE, CONTENT_TYPE, Exposition
from batchyard.metrics.shadow import ShadowFigures
from batchyard.ports.client import WatchEvent
from batchyard.ports.kernel import Work

_ENDS_WITHIN: Final = 1.0  # seconds
#: A shadow sends no more than lists and watches.
_LIMIT: Final = 50.0, 100


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a shadow is asked to be."""

    source: Source
    policy: Policy
    terms: Terms
    #: For how long it looks on, from when it has read everything; None: until it is told to end.
    lasts: Duration | None
    #: Where health and metrics are told; at port 0 nowhere.
    address: str
    port: int


class Shadow:
    """See the module. Made within the event loop that it is to run in."""

    def __init__(
        self, wanted: Wanted, wire: HttpTransport, found: Callable[[Finding], None], tell: Callable[[str], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._wanted = wanted
        self._tell = tell
        self._loop = loop
        #: Ends with the time that it was to last, or with a defect.
        self.ended: asyncio.Future[None] = loop.create_future()
        self._time = RealTime(loop)
        #: Who looks at the page and may see what; and what there is to be seen, once all is read.
        self.reviewed = Reviewed(wire, self._time.now)
        self.page: ShadowPage | None = None
        self.follower = Follower(wanted.policy, wanted.terms, found)
        transport = ReadingOnly(wire.carrying_to(self._post))
        wiring = Wiring(self._time, self._time, transport, RateLimit(*_LIMIT), _never)
        self.client = RestClient(wiring, KINDS)
        self.client.on_news = self._heard
        self.client.subscribe(self._observe)
        self.has_begun = False
        self._wakes_at: int | None = None
        self._ticket: int | None = None
        self._troubles: dict[str, None] = {}

    def start(self) -> None:
        """Begin to read."""
        self.client.start()

    def stop(self) -> None:
        """Look no more."""
        self._time.stop()

    @property
    def counts(self) -> Counts:
        """What came of it so far."""
        return self.follower.counts

    def _post(self, work: Work) -> None:
        """Do work that came from outside."""
        self._loop.call_soon(self._guarded, work)

    def _guarded(self, work: Work) -> None:
        if not self.ended.done():
            work()

    def fail(self, error: BaseException) -> None:
        """End because of that."""
        if not self.ended.done():
            self.ended.set_exception(error)

    def _heard(self, informer: Informer) -> None:
        if informer.trouble and informer.trouble not in self._troubles:
            self._troubles[informer.trouble] = None
            self._tell(f"batchyard: {informer.trouble}")
        elif self._troubles and not any(each.trouble for each in self.client.informers.values()):
            self._troubles.clear()
            self._tell("batchyard: goes on")
        if not self.has_begun and self.client.is_synced:
            self.has_begun = True
            found = self.client.everything()
            self.follower.recall(found, self._time.now())
            if self._wanted.port:
                self.page = ShadowPage(self.client, self._time, self.reviewed)
                self.page.observe(found)
            self._look()
            self._tell("batchyard: looks on, and writes nothing")
            if self._wanted.lasts is not None:
                self._time.call_at(self._time.now() + self._wanted.lasts, self._end)

    def _observe(self, events: Sequence[WatchEvent]) -> None:
        if self.has_begun:
            self.follower.observe(events, self._time.now())
            self._wake_later()
            if self.page is not None:
                self.page.observe(events)

    def _look(self) -> None:
        self._ticket = None
        self.follower.observe((), self._time.now())
        self._wake_later()

    def _wake_later(self) -> None:
        when = self.follower.next_look()
        if self._ticket is not None and self._wakes_at == when:
            return
        if self._ticket is not None:
            self._time.cancel(self._ticket)
            self._ticket = None
        if when is not None:
            self._wakes_at = when
            self._ticket = self._time.call_at(when, lambda: self._guarded(self._look))

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class ShadowHealth:
    """Answers /healthz, /readyz, /metrics and the page at an address; at port 0 it does nothing."""

    def __init__(self, shadow: Shadow, address: str, port: int, tell: Callable[[str], None]) -> None:
        self._shadow = shadow
        figures = ShadowFigures(
            lambda: shadow.counts, lambda: shadow.follower.waiting, lambda: shadow.follower.reordered
        )
        self._exposition = Exposition([("batchyard", figures.texts)])
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
                    *OperatorPage(self._shadow.reviewed, self._models).routes(),
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

    def _models(self) -> tuple[Models, Hub] | None:
        return None if self._shadow.page is None else self._shadow.page.models

    async def _alive(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def _ready(self, _request: web.Request) -> web.Response:
        informers = self._shadow.client.informers.items()
        waits_for = [kind for kind, informer in informers if not informer.is_synced]
        if waits_for:
            return web.Response(status=503, text=f"waiting for {', '.join(waits_for)}")
        return web.Response(text="ok")

    async def _metrics(self, request: web.Request) -> web.Response:
        try:
            parts: Iterator[str] = self._exposition.parts(request.query.getall(CHOICE, []))
        except ValueError as error:
            return web.Response(status=400, text=str(error))
        return web.Response(body="".join(parts).encode(), headers={"Content-Type": CONTENT_TYPE})


async def look_on(
    wanted: Wanted, found: Callable[[Finding], None], tell: Callable[[str], None], end: asyncio.Event
) -> Counts:
    """Look on until told to end, or for as long as is wanted; what came of it."""
    access = await read_access(wanted.source)
    wire = HttpTransport(access, lambda: read_access(wanted.source))
    shadow = Shadow(wanted, wire, found, tell)
    shadow.ended.add_done_callback(lambda _: end.set())
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: _take_note(shadow, loop, context))
    try:
        async with ShadowHealth(shadow, wanted.address, wanted.port, tell):
            tell(f"batchyard: shadow at {access.url}")
            shadow.start()
            await end.wait()
    finally:
        shadow.stop()
        await wire.close()
    if shadow.ended.done():
        shadow.ended.result()
    return shadow.counts


def _take_note(shadow: Shadow, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A defect ends the shadow; what a broken connection leaves behind does not."""
    error = context.get("exception")
    if error is None:
        loop.default_exception_handler(context)
    elif not isinstance(error, OSError):
        shadow.fail(error)


def _never() -> bool:
    """Nothing may be written."""
    return False
