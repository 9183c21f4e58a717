"""The time of an API server, which a platform beside it goes by whatever the clock of its own machine says.

A server of ours says what time it is there, and how fast that runs. Of any other the header `Date` of its answers tells
the second (RFC 9110, section 6.6.1). So replicas on machines whose clocks differ agree with each other, and with the
`creationTimestamp`s of the server. Two answers must agree before a difference counts. Time that controllers have seen
does not come back: until then the clock is set either way, afterwards only ahead.
"""

from collections.abc import Callable
from typing import Final

from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, format_age
from batchyard.client.transport import HttpAnswer, HttpRequest, Transport
from batchyard.client.writes import decoded
from batchyard.interfaces.controller import Kernel
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.operator.snapshot import Asking
from batchyard.server.platform.status_report import PATH as REPORT

#: Where every API server says what it is, to everybody, and by what ours is known.
_VERSION: Final = "/version"
_OURS: Final = "batchyard"
#: What others answer who is asked for what only ours tells.
_NOT_OURS: Final = (403, 404)
#: How often one of ours is asked, or one whose answers differ, and how often any other.
_SOON: Final = 5 * SECOND
_EVERY: Final = MINUTE
#: Clocks that differ by less are not set: of ours, and of others, who tell whole seconds.
_DIFFERS: Final = SECOND // 20
_DATES_DIFFER: Final = 2 * SECOND


async def is_foreign(wire: Asking) -> bool:
    """Whether a server says that it is not ours: then it is not asked for what only ours tells."""
    version = await wire.ask(HttpRequest("GET", _VERSION))
    return version.code == 200 and _OURS not in str(decoded(version.body).get("gitVersion"))


class ServerClock:
    """Keeps the clock of a kernel; see the module."""

    def __init__(
        self, kernel: LiveKernel, timers: Kernel, wire: Asking, carrier: Transport, tell: Callable[[str], None]
    ) -> None:
        self._kernel = kernel
        self._timers = timers
        self._wire = wire
        self._carrier = carrier
        self._tell = tell
        self._path = REPORT
        #: By how much a date was ahead of us that differed and still has to be confirmed.
        self._ahead: Duration | None = None
        self._is_told = False
        #: How fast time runs there.
        self.speed = 1.0

    async def set(self) -> None:
        """Take the server's time, and look again later."""
        if await is_foreign(self._wire):
            self._path = _VERSION
        wait = await self._look_once()
        if self._ahead is not None:
            wait = await self._look_once()
        self._look_after(wait)

    async def _look_once(self) -> Duration:
        asked_at = self._timers.now()
        return self._heed(await self._wire.ask(HttpRequest("GET", self._path)), asked_at)

    def _look_after(self, wait: Duration) -> None:
        self._timers.call_at(self._timers.now() + wait, self._look)

    def _look(self) -> None:
        asked_at = self._timers.now()
        request = HttpRequest("GET", self._path)
        self._carrier.send(request, lambda answer: self._look_after(self._heed(answer, asked_at)))

    def _heed(self, answer: HttpAnswer, asked_at: Instant) -> Duration:
        """Set the clock by an answer; how long that is good for."""
        report = decoded(answer.body) if answer.code == 200 else {}
        instant, speed = report.get("instant"), report.get("speed")
        under_way: Duration = (self._timers.now() - asked_at) // 2
        if isinstance(instant, int) and isinstance(speed, float | int):
            theirs = instant + int(under_way * speed)
            self.speed = float(speed)
            if abs(theirs - self._kernel.clock()) > _DIFFERS * speed:
                self._kernel.set_clock(theirs, speed)
        elif answer.told_at and (self._path == _VERSION or answer.code in _NOT_OURS):
            self._path = _VERSION
            return self._heed_date(answer.told_at + SECOND // 2 + under_way)
        return _SOON

    def _heed_date(self, theirs: Instant) -> Duration:
        """Set the clock to a time that is good to a second, if it differs by more and did so before."""
        ahead, before = theirs - self._kernel.clock(), self._ahead
        if abs(ahead) <= _DATES_DIFFER:
            self._ahead, self._is_told = None, False
            return _EVERY
        self._ahead = ahead
        if before is None or abs(ahead - before) > _DATES_DIFFER:
            return _SOON
        follows = ahead > 0 or self._kernel.is_unused
        if not self._is_told:
            where = "behind" if ahead > 0 else "ahead of"
            which = "that one counts" if follows else "time does not go back before the next start"
            self._tell(f"batchyard: the clock here is {format_age(abs(ahead))} {where} the server's: {which}")
        self._is_told = not follows
        if follows:
            self._ahead = None
            self._kernel.set_clock(theirs, 1.0)
        return _EVERY
