"""The operator as a shadow: it lists and watches what decides about queues, says what it would do, and writes nothing.

Its requests go through a transport that carries no writes. Nobody leads: as many may look on as like to. Time is the
clock's.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from batchyard.apiserver.dashboard import Models
from batchyard.base.instant import Duration
from batchyard.client.informer import Informer
from batchyard.client.rest import RestClient, Wiring
from batchyard.client.transport import RateLimit, ReadingOnly
from batchyard.dashboard.comparison import Comparison, Parted
from batchyard.dashboard.history import History
from batchyard.dashboard.pages import Pages, Time
from batchyard.interfaces.client import WatchEvent
from batchyard.interfaces.controller import Work
from batchyard.metrics.exposition import Exposition
from batchyard.metrics.forks import ShadowFigures
from batchyard.scheduling.kueue_configuration import KueueSettings, settings_of
from batchyard.scheduling.scheduler_cache import KINDS, AdmissionIndex
from batchyard.scheduling.workload.pods_ready import RequeuingTimestamp
from batchyard.server.clocks.timers import RealTime
from batchyard.server.kubeconfig.access import Source
from batchyard.server.kubeconfig.loading import read_access
from batchyard.server.operator.aiohttp_transport import HttpTransport
from batchyard.server.operator.dashboard import Hub, OperatorPage
from batchyard.server.operator.definitions import Troubles
from batchyard.server.operator.http_endpoints import Site, health_routes
from batchyard.server.operator.kueue_configuration import KUEUE, configuration_of, told_beside
from batchyard.server.operator.token_review import Reviewed
from batchyard.server.termination import unless_told
from batchyard.shadow.controller import Looking
from batchyard.shadow.findings import Counts, Finding
from batchyard.shadow.state import HeldBack, Terms

# --- shadow page ---
#
# The page of a cluster on which a Kueue decides: what its objects say, as the page shows it of a platform of ours.


class ShadowPage:
    """See the module. Nothing is decided with the index: it knows queues, and who is in them."""

    def __init__(self, client: RestClient, time: RealTime, reviewed: Reviewed, counts: Callable[[], Counts]) -> None:
        self._index = AdmissionIndex()
        self._time = time
        self._history = History(time.now, self._index.cluster_queue_of)
        self._comparison = Comparison(lambda: sum(counts().agreed.values()), lambda: counts().divergences)
        self._history.comparison = self._comparison
        self._hub = Hub()
        pages = Pages(client, self._index, self._history, Time(time.now, 1.0))
        self.models = Models(pages, reviewed, self._hub, time), self._hub

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Something has changed, or is there from the start."""
        now = self._time.now()
        for event in events:
            self._index.observe(event, now)
        self._index.snapshot.settle()
        self._history.observe(events)
        self._hub.observe(events)

    def found(self, finding: Finding) -> None:
        """Both part."""
        since = finding.at if finding.since is None else finding.since
        told = finding.parting.value, finding.workload, finding.message
        self._comparison.partings.appendleft(Parted(finding.at, since, *told, finding.why(), finding.look))
        self._hub.touch()


_ENDS_WITHIN: Final = 1.0  # seconds
#: A shadow sends no more than lists and watches.
_LIMIT: Final = 50.0, 100


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a shadow is asked to be."""

    source: Source
    #: What Kueue's Configuration says; None: what it says on the cluster.
    kueue: KueueSettings | None
    #: Whether it is told to share fairly besides.
    fair_sharing: bool
    terms: Terms
    #: For how long it looks on, from when it has read everything; None: until it is told to end.
    lasts: Duration | None
    #: Where health and metrics are told; at port 0 nowhere.
    address: str
    port: int


class Shadow:
    """See the module. Made within the event loop that it is to run in."""

    def __init__(
        self,
        wanted: Wanted,
        kueue: KueueSettings,
        wire: HttpTransport,
        found: Callable[[Finding], None],
        tell: Callable[[str], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._wanted = wanted
        self._tell = tell
        self._tell_of = found
        self._loop = loop
        #: Ends with the time that it was to last, or with a defect.
        self.ended: asyncio.Future[None] = loop.create_future()
        self._time = RealTime(loop)
        #: Who looks at the page and may see what; and what there is to be seen, once all is read.
        self.reviewed = Reviewed(wire, self._time.now)
        self.page: ShadowPage | None = None
        transport = ReadingOnly(wire.carrying_to(self._post))
        wiring = Wiring(self._time, self._time, transport, RateLimit(*_LIMIT), _never)
        self.client = RestClient(wiring, KINDS)
        self.client.on_news = self._heard
        how = kueue.policy, _as_said(wanted.terms, kueue)
        self._looking = Looking(self.client, transport, self._time, how, tell=self._found)
        self.followers = self._looking.followers
        self.client.subscribe(self._observe)
        self._troubles = Troubles()

    def start(self) -> None:
        """Begin to read."""
        self.client.start()

    def stop(self) -> None:
        """Look no more."""
        self._looking.is_over = True
        self._time.stop()

    @property
    def counts(self) -> Counts:
        """What came of it so far."""
        return self.followers.counts

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
        if news := self._troubles.news(informer, self.client.informers.values()):
            self._tell(f"batchyard: {news}")
        has_begun = self._looking.has_begun
        self._looking.heard(informer)
        if not has_begun and self._looking.has_begun:
            if self._wanted.port:
                self.page = ShadowPage(self.client, self._time, self.reviewed, lambda: self.counts)
                self.page.observe(self.client.everything())
            self._tell("batchyard: looks on, and writes nothing")
            if self._wanted.lasts is not None:
                self._time.call_at(self._time.now() + self._wanted.lasts, self._end)

    def _observe(self, events: Sequence[WatchEvent]) -> None:
        if self.page is not None:
            self.page.observe(events)

    def _found(self, finding: Finding) -> None:
        self._tell_of(finding)
        if self.page is not None:
            self.page.found(finding)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def told(shadow: Shadow, place: tuple[str, int], tell: Callable[[str], None]) -> Site:
    """Where a shadow tells how it is, and shows the page."""
    figures = ShadowFigures(lambda: shadow.counts, lambda: shadow.followers.waiting, lambda: shadow.followers.reordered)
    informers = shadow.client.informers
    routes = health_routes(
        Exposition([("batchyard", figures.texts)]),
        lambda: ", ".join(kind for kind, informer in informers.items() if not informer.is_synced),
    )
    page = OperatorPage(shadow.reviewed, lambda: None if shadow.page is None else shadow.page.models)
    return Site([*routes, *page.routes()], place, tell)


async def look_on(
    wanted: Wanted, found: Callable[[Finding], None], tell: Callable[[str], None], end: asyncio.Event
) -> Counts:
    """Look on until told to end, or for as long as is wanted; what came of it."""
    access = await unless_told(end, read_access(wanted.source))
    if access is None:
        return Counts()
    wire = HttpTransport(access, lambda: read_access(wanted.source))
    tell(f"batchyard: shadow at {access.url}")
    kueue = await unless_told(end, _kueue(wanted, wire, tell))
    if kueue is None:
        await wire.close()
        return Counts()
    shadow = Shadow(wanted, kueue, wire, found, tell)
    shadow.ended.add_done_callback(lambda _: end.set())
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: _take_note(shadow, loop, context))
    try:
        async with told(shadow, (wanted.address, wanted.port), tell):
            shadow.start()
            await end.wait()
    finally:
        shadow.stop()
        await wire.close()
    if shadow.ended.done():
        shadow.ended.result()
    return shadow.counts


async def _kueue(wanted: Wanted, wire: HttpTransport, tell: Callable[[str], None]) -> KueueSettings:
    """What Kueue decides by."""
    kueue = wanted.kueue
    if kueue is None:
        read = await configuration_of(wire, [KUEUE])
        configuration = read.configuration
        without = "" if configuration is not None else "; taken as without a word of it, --config gives another"
        for line in [read.told + without, *(() if configuration is None else told_beside(configuration))]:
            tell(f"batchyard: {line}")
        kueue = KueueSettings() if configuration is None else settings_of(configuration)
    return kueue.sharing_fairly() if wanted.fair_sharing else kueue


def _as_said(terms: Terms, kueue: KueueSettings) -> Terms:
    """The terms, with what is said of pods that are to be ready."""
    waits = kueue.pods_ready
    if waits is None:
        return terms
    by_creation = waits.requeuing_timestamp is RequeuingTimestamp.CREATION
    return terms._replace(is_by_creation=by_creation, held_back=HeldBack() if waits.block_admission else None)


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
