"""A client's own limit of requests a second. Source: golang.org/x/time/rate, as client-go uses it."""

from batchyard.base.instant import SECOND, Duration, Instant


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
