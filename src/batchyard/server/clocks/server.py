"""Clock synchronization of an event loop: with an API server's clock, or with the machine's wall clock.

A batchyard server reports its time and speed. For any other server, the clock follows the `Date` header of its
responses, in whole seconds (RFC 9110, section 6.6.1). Replicas on machines with clock skew therefore agree with each
other, and with the `creationTimestamp`s of the server. A difference of dates counts only if two responses confirm it.
Time that controllers have seen does not go back: once they run, a date only sets the clock forward.
"""

import logging
from collections.abc import Callable
from typing import Final

from batchyard.base.instant import MINUTE, SECOND, Duration, Instant, format_age
from batchyard.client.transport import HttpRequest, HttpResponse, Transport, decode_object
from batchyard.interfaces.controller import Kernel
from batchyard.server.clocks.kernel import LiveKernel
from batchyard.server.operator.snapshot import RequestSender
from batchyard.server.platform.status_report import STATUS_REPORT_PATH as REPORT

#: Every API server reports its version here without authentication; that of batchyard contains `batchyard`.
_VERSION_PATH: Final = "/version"
_BATCHYARD_NAME: Final = "batchyard"
#: The status codes of other servers for the path of the status document.
_NOT_BATCHYARD_CODES: Final = (403, 404)
#: The poll interval for a batchyard server or a server whose date differs, and for other servers.
_SHORT_POLL_INTERVAL: Final = 5 * SECOND
_POLL_INTERVAL: Final = MINUTE
#: The tolerated difference from a batchyard server, and from other servers, whose dates are in whole seconds.
_CLOCK_TOLERANCE: Final = SECOND // 20
_DATE_HEADER_TOLERANCE: Final = 2 * SECOND


async def is_other_server(sender: RequestSender) -> bool:
    """Return whether an API server reports a version that is not batchyard's.

    Return False if the server reports no version: a proxy may answer, for example with a login page.
    """
    answer = await sender.send_request(HttpRequest("GET", _VERSION_PATH))
    version = decode_object(answer.body).get("gitVersion") if answer.code == 200 else None
    return isinstance(version, str) and _BATCHYARD_NAME not in version


class ServerClock:
    """Keeps the clock of an event loop synchronized with the clock of an API server."""

    def __init__(
        self,
        kernel: LiveKernel,
        real_time_timers: Kernel,
        sender: RequestSender,
        transport: Transport,
        report: Callable[[str], None],
    ) -> None:
        self._kernel = kernel
        self._real_time_timers = real_time_timers
        self._sender = sender
        self._transport = transport
        self._report = report
        self._path = REPORT
        #: The last date difference that exceeded the tolerance and is not confirmed yet; None without one.
        self._unconfirmed_difference: Duration | None = None
        self._is_reported = False
        #: How many times as fast as real time the server's time runs.
        self.speed = 1.0

    async def synchronize(self) -> None:
        """Set the loop's clock to the API server's time, before the controllers start, and schedule periodic polls."""
        if await is_other_server(self._sender):
            self._path = _VERSION_PATH
        delay = await self._poll_server_once()
        if self._unconfirmed_difference is not None:
            delay = await self._poll_server_once()
        self._poll_after(delay)

    async def _poll_server_once(self) -> Duration:
        asked_at = self._real_time_timers.now()
        return self._follow_response(await self._sender.send_request(HttpRequest("GET", self._path)), asked_at)

    def _poll_after(self, delay: Duration) -> None:
        self._real_time_timers.call_at(self._real_time_timers.now() + delay, self._poll)

    def _poll(self) -> None:
        asked_at = self._real_time_timers.now()
        request = HttpRequest("GET", self._path)
        self._transport.send(request, lambda response: self._poll_after(self._follow_response(response, asked_at)))

    def _follow_response(self, response: HttpResponse, asked_at: Instant) -> Duration:
        status_document = decode_object(response.body) if response.code == 200 else {}
        instant, speed = status_document.get("instant"), status_document.get("speed")
        one_way_time: Duration = (self._real_time_timers.now() - asked_at) // 2
        if isinstance(instant, int) and isinstance(speed, float | int):
            server_instant = instant + int(one_way_time * speed)
            self.speed = float(speed)
            if abs(server_instant - self._kernel.clock()) > _CLOCK_TOLERANCE * speed:
                self._kernel.set_clock(server_instant, speed)
        elif response.server_time and (self._path == _VERSION_PATH or response.code in _NOT_BATCHYARD_CODES):
            self._path = _VERSION_PATH
            return self._follow_date(response.server_time + SECOND // 2 + one_way_time)
        return _SHORT_POLL_INTERVAL

    def _follow_date(self, server_instant: Instant) -> Duration:
        """Set the clock to the server's date once two responses confirm it; return the delay until the next poll.

        The clock is set back only if no callback has run on the event loop, and none is scheduled.
        """
        server_lead, last_difference = server_instant - self._kernel.clock(), self._unconfirmed_difference
        if abs(server_lead) <= _DATE_HEADER_TOLERANCE:
            self._unconfirmed_difference, self._is_reported = None, False
            return _POLL_INTERVAL
        self._unconfirmed_difference = server_lead
        if last_difference is None or abs(server_lead - last_difference) > _DATE_HEADER_TOLERANCE:
            return _SHORT_POLL_INTERVAL
        is_date_followed = server_lead > 0 or self._kernel.is_unused
        if not self._is_reported:
            direction_text = "behind" if server_lead > 0 else "ahead of"
            consequence_text = (
                "it is set to the server's time"
                if is_date_followed
                else "it is not set back until the next start of this process"
            )
            difference_text = f"{format_age(abs(server_lead))} {direction_text} the API server's clock"
            self._report(f"batchyard: this process's clock is {difference_text}: {consequence_text}")
        self._is_reported = not is_date_followed
        if is_date_followed:
            self._unconfirmed_difference = None
            self._kernel.set_clock(server_instant, 1.0)
        return _POLL_INTERVAL


# Machine clock: keeps a platform's clock synchronized with the wall clock, unless its time is accelerated.
#
# A platform counts time by a monotonic clock, which stops while the machine sleeps. After a sleep, or after the wall
# clock was set forward, the platform's clock jumps to it. Time that controllers have seen does not go back. If the wall
# clock was set back, the platform's clock stays ahead of it.


#: How often the wall clock is checked, and the tolerated difference.
_MACHINE_CHECK_INTERVAL: Final = 5 * SECOND
_MACHINE_CLOCK_TOLERANCE: Final = 2 * SECOND
_LOG: Final = logging.getLogger("batchyard")


class MachineClock:
    """Sets the clock of an event loop forward when the machine's wall clock is ahead of it."""

    def __init__(self, kernel: LiveKernel, real_time_timers: Kernel, clock: Callable[[], Instant]) -> None:
        self._kernel = kernel
        self._real_time_timers = real_time_timers
        self._clock = clock

    def follow(self) -> None:
        """Set the loop's clock forward if the wall clock is over 2 s ahead. Repeat every 5 s while the loop runs."""
        if self._kernel.is_stopped:
            return
        wall_time = self._clock()
        wall_clock_lead = wall_time - self._kernel.clock()
        if wall_clock_lead > _MACHINE_CLOCK_TOLERANCE:
            _LOG.warning(
                "the machine's clock jumped ahead by %s (sleep or clock change); the platform's clock is set forward",
                format_age(wall_clock_lead),
            )
            self._kernel.set_clock(wall_time, 1.0)
        self._real_time_timers.call_at(self._real_time_timers.now() + _MACHINE_CHECK_INTERVAL, self.follow)
