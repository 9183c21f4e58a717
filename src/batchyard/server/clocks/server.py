"""Server clock: keeps the clock of a process at that of the API server, whatever the clock of its own machine.

A batchyard server reports its time and speed. Any other server gives the second in the `Date` header of its responses
(RFC 9110, section 6.6.1). Replicas on machines with clock skew therefore agree with each other, and with the
`creationTimestamp`s of the server. A difference of dates counts only if two responses agree on it. Time that
controllers have seen does not go back. Before they run the clock is set either way, afterwards only forward.
"""

import logging
from collections.abc import Callable
from typing import Final

from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, format_age
from batchyard.client.transport import HttpAnswer, HttpRequest, Transport, decoded
from batchyard.interfaces.controller import Kernel
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.operator.snapshot import RequestSender
from batchyard.server.platform.status_report import STATUS_REPORT_PATH as REPORT

#: Every API server reports its version here without authentication. The version of batchyard names it.
_VERSION: Final = "/version"
_OURS: Final = "batchyard"
#: The status codes of other servers for the path of the status document.
_NOT_OURS: Final = (403, 404)
#: The poll interval of a batchyard server or of one whose dates differ, and that of other servers.
_SOON: Final = 5 * SECOND
_EVERY: Final = MINUTE
#: The tolerated difference from a batchyard server, and from other servers, whose dates are in whole seconds.
_DIFFERS: Final = SECOND // 20
_DATES_DIFFER: Final = 2 * SECOND


async def is_foreign(wire: RequestSender) -> bool:
    """Whether a server reports that it is not batchyard. Such a server has no status document."""
    version = await wire.ask(HttpRequest("GET", _VERSION))
    return version.code == 200 and _OURS not in str(decoded(version.body).get("gitVersion"))


class ServerClock:
    """A kernel whose clock follows the clock of an API server."""

    def __init__(
        self, kernel: LiveKernel, timers: Kernel, wire: RequestSender, carrier: Transport, report: Callable[[str], None]
    ) -> None:
        self._kernel = kernel
        self._timers = timers
        self._wire = wire
        self._carrier = carrier
        self._report = report
        self._path = REPORT
        #: The last difference of a date that exceeded the tolerance and is not confirmed yet; None without one.
        self._ahead: Duration | None = None
        self._is_reported = False
        #: How fast the server's time runs.
        self.speed = 1.0

    async def set(self) -> None:
        """Set the clock to the server's time, and schedule the next poll."""
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
        """Set the clock by a response. Return the time until the next poll."""
        report = decoded(answer.body) if answer.code == 200 else {}
        instant, speed = report.get("instant"), report.get("speed")
        under_way: Duration = (self._timers.now() - asked_at) // 2
        if isinstance(instant, int) and isinstance(speed, float | int):
            theirs = instant + int(under_way * speed)
            self.speed = float(speed)
            if abs(theirs - self._kernel.clock()) > _DIFFERS * speed:
                self._kernel.set_clock(theirs, speed)
        elif answer.server_time and (self._path == _VERSION or answer.code in _NOT_OURS):
            self._path = _VERSION
            return self._heed_date(answer.server_time + SECOND // 2 + under_way)
        return _SOON

    def _heed_date(self, theirs: Instant) -> Duration:
        """Set the clock to a date in whole seconds, if two responses confirm a difference. Return the poll interval."""
        ahead, before = theirs - self._kernel.clock(), self._ahead
        if abs(ahead) <= _DATES_DIFFER:
            self._ahead, self._is_reported = None, False
            return _EVERY
        self._ahead = ahead
        if before is None or abs(ahead - before) > _DATES_DIFFER:
            return _SOON
        follows = ahead > 0 or self._kernel.is_unused
        if not self._is_reported:
            where = "behind" if ahead > 0 else "ahead of"
            which = "following the server's" if follows else "time does not go back before the next start"
            self._report(f"batchyard: the clock here is {format_age(abs(ahead))} {where} the server's: {which}")
        self._is_reported = not follows
        if follows:
            self._ahead = None
            self._kernel.set_clock(theirs, 1.0)
        return _EVERY


# --- machine ---
#
# Machine clock: keeps a platform's clock at the wall clock, unless its time is accelerated.
#
# A platform counts time by a monotonic clock, which stops while the machine sleeps. After a sleep, or after the wall
# clock was set forward, the platform's clock jumps to it. Time that controllers have seen does not go back. If the wall
# clock was set back, the platform's clock stays ahead of it.


#: How often the wall clock is checked, and the tolerated difference.
_FOLLOW_EVERY: Final = 5 * SECOND
_MACHINE_DIFFERS: Final = 2 * SECOND
_LOG: Final = logging.getLogger("batchyard")


class MachineClock:
    """A kernel whose clock follows the wall clock."""

    def __init__(self, kernel: LiveKernel, timers: Kernel, clock: Callable[[], Instant]) -> None:
        self._kernel = kernel
        self._timers = timers
        self._clock = clock

    def follow(self) -> None:
        """Adjust the kernel's clock now and periodically, until the kernel is stopped."""
        if self._kernel.is_stopped:
            return
        time = self._clock()
        ahead = time - self._kernel.clock()
        if ahead > _MACHINE_DIFFERS:
            _LOG.warning(
                "the machine's clock jumped ahead by %s (sleep or clock change); following it", format_age(ahead)
            )
            self._kernel.set_clock(time, 1.0)
        self._timers.call_at(self._timers.now() + _FOLLOW_EVERY, self.follow)
