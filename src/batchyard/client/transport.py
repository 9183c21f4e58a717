"""What lies between a client and an API server elsewhere: requests and answers as values, and who carries them."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from batchyard.base.instant import MILLISECOND, SECOND, Duration, Instant
from batchyard.base.seeded_draws import draw


class HttpRequest(NamedTuple):
    """One request; its path with its query."""

    method: str
    path: str
    body: bytes = b""
    #: How long its answer may take.
    within: Duration = 30 * SECOND
    #: The form its answer is to have.
    accept: str = "application/json"
    #: The form of its body.
    content_type: str = "application/json"


class HttpAnswer(NamedTuple):
    """What became of a request. Without an answer its code is 0."""

    code: int
    body: bytes = b""
    #: What the server asks to wait before the next try.
    retry_after: Duration | None = None
    #: Why there is no answer, or why a watch broke off.
    trouble: str = ""
    #: Whether the server may have had the request.
    was_sent: bool = True
    #: What time it was for the server, in whole seconds; 0 where it does not say.
    told_at: Instant = 0


class Transport(Protocol):
    """Carries requests to one server, as one user. It calls back through the kernel, never from within."""

    def send(self, request: HttpRequest, answered: Callable[[HttpAnswer], None]) -> None:
        """Send a request; tell of its answer, once."""

    def watch(
        self,
        request: HttpRequest,
        told: Callable[[Sequence[bytes]], None],
        ended: Callable[[HttpAnswer], None],
    ) -> None:
        """Send a request whose answer goes on; tell of its lines as they come, first of none, and of its end, once."""


# --- reading only ---
#
# A transport that carries no writes: whoever has it can change nothing, whatever he tries.


_READS: Final = "GET"


class WriteRefusedError(Exception):
    """Somebody who is to read only has tried to write: a defect."""


class ReadingOnly:
    """See the module. Carries requests over another transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def send(self, request: HttpRequest, answered: Callable[[HttpAnswer], None]) -> None:
        """Send a request that reads; WriteRefusedError for any other."""
        if request.method != _READS or request.body:
            raise WriteRefusedError(f"{request.method} {request.path}")
        self._transport.send(request, answered)

    def watch(
        self,
        request: HttpRequest,
        told: Callable[[Sequence[bytes]], None],
        ended: Callable[[HttpAnswer], None],
    ) -> None:
        """Send a request whose answer goes on; WriteRefusedError if it is none that reads."""
        if request.method != _READS or request.body:
            raise WriteRefusedError(f"{request.method} {request.path}")
        self._transport.watch(request, told, ended)


# --- rate limit ---
#
# A client's own limit of requests a second. Source: golang.org/x/time/rate, as client-go uses it.


class RateLimit:
    """So many requests at once, and so many a second in the long run; who comes too early waits in line."""

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = float(burst)
        self._left = float(burst)
        self._as_of: Instant | None = None

    def wait(self, now: Instant) -> Duration:
        """Take one request from what is allowed; how long to wait before it is sent."""
        passed = 0 if self._as_of is None else now - self._as_of
        self._as_of = now
        self._left = min(self._burst, self._left + passed / SECOND * self._qps) - 1
        return 0 if self._left >= 0 else int(-self._left / self._qps * SECOND)


# --- backoff ---
#
# How long to wait before another try: longer with each that failed, up to a bound, and not as long as others.


FIRST: Final = 200 * MILLISECOND
LONGEST: Final = 30 * SECOND


def backoff(failures: int, seed: int, *names: str) -> Duration:
    """The wait after so many failures in a row: half of it certain, half of it by chance."""
    if not failures:
        return 0
    whole = min(FIRST << min(failures - 1, 32), LONGEST)
    return whole // 2 + draw(seed, *names, str(failures)) % (whole // 2 + 1)
