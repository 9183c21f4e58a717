"""Order and rate of a client's write requests: the most urgent first, within the rate limit and the server's capacity.

A request waits until the rate limit has a token and fewer requests are in flight than the server takes without delay.
Sources: golang.org/x/time/rate, as client-go uses it, for the token bucket; D. Chiu and R. Jain, "Analysis of the
increase and decrease algorithms for congestion avoidance", for the number in flight.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from enum import IntEnum
from math import inf
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Obj, is_true
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.client.transport import HttpResponse, RateLimit, kind_of
from batchyard.interfaces.client import UpdateStatus, Write
from batchyard.interfaces.controller import Kernel, Work


class WritePriority(IntEnum):
    """The priority of a write in the queue of the client; writes with the lowest number are sent first."""

    #: What pods wait for: admissions, Jobs that start or stop, and all that is not listed below.
    REGULAR = 0
    #: Evictions of Workloads, which free quota for later admissions.
    EVICTION = 1
    PENDING_REASON = 2
    QUEUE_STATUS = 3
    EVENT = 4


_QUEUES: Final = frozenset({scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE, scheme.COHORT})


def priority_of(writes: Sequence[Write], base_objects: Sequence[Obj | None]) -> WritePriority:
    """Return the priority of writes that are sent one after the other: that of the most urgent one."""
    return min(map(_priority_of_write, writes, base_objects))


def _priority_of_write(write: Write, base: Obj | None) -> WritePriority:
    kind = kind_of(write)
    if kind == scheme.EVENT:
        return WritePriority.EVENT
    if not isinstance(write, UpdateStatus):
        return WritePriority.REGULAR
    if kind in _QUEUES:
        return WritePriority.QUEUE_STATUS
    if kind != scheme.WORKLOAD or base is None:
        return WritePriority.REGULAR
    if is_true(write.obj, "Evicted"):
        return WritePriority.EVICTION
    has_quota = is_true(base, "QuotaReserved") or is_true(write.obj, "QuotaReserved")
    return WritePriority.REGULAR if has_quota else WritePriority.PENDING_REASON


#: The bounds of the number of requests in flight; it starts with the minimum.
_IN_FLIGHT_MIN: Final = 4
_IN_FLIGHT_MAX: Final = 256
#: A response is slow if it takes longer than this multiple of the shortest recent latency: requests then wait in the
#: server.
_SLOW_FACTOR: Final = 2
#: The change of the limit after a round of slow responses, one for each request in flight, relative to the limit.
_SLOW_DECREASE: Final = 0.1
#: The shortest latency is that of this period and the one before it, so that it follows changes of the server.
_LATENCY_PERIOD: Final = 300 * SECOND
_OVERLOAD_INTERVAL: Final = SECOND
_OVERLOADED_CODES: Final = frozenset({429, 503})


class InFlightLimit:
    """The limit of requests in flight: fast responses raise it, slow responses and overloads lower it.

    A round of fast responses raises it by one, a round of slow responses lowers it by a tenth. An overload halves it,
    at most once a second. More requests would only wait in the server, and delay the requests of other clients.
    """

    def __init__(self) -> None:
        self._limit = float(_IN_FLIGHT_MIN)
        self._halved_at: Instant = 0
        self._period = 0
        #: The shortest latencies of this period and of the one before it.
        self._shortest_latencies: tuple[float, float] = (inf, inf)

    @property
    def count(self) -> int:
        """The number of requests that may be in flight now."""
        return int(self._limit)

    def record_latency(self, now: Instant, latency: Duration) -> None:
        """Adapt the limit to a successful response with this latency."""
        current, previous = self._shortest_latencies
        if now // _LATENCY_PERIOD != self._period:
            previous = current if now // _LATENCY_PERIOD == self._period + 1 else inf
            self._period, current = now // _LATENCY_PERIOD, inf
        self._shortest_latencies = min(current, latency), previous
        is_slow = latency > _SLOW_FACTOR * min(self._shortest_latencies)
        change = -_SLOW_DECREASE if is_slow else 1 / self._limit
        self._limit = min(_IN_FLIGHT_MAX, max(_IN_FLIGHT_MIN, self._limit + change))

    def record_overload(self, now: Instant) -> None:
        """Adapt the limit to a response of an overloaded server."""
        if now - self._halved_at >= _OVERLOAD_INTERVAL:
            self._limit, self._halved_at = max(_IN_FLIGHT_MIN, self._limit / 2), now


#: The most Events that wait to be sent. client-go's broadcaster has the same bound: tools/events/event_broadcaster.go.
EVENTS_WAITING_MAX: Final = 1000
#: Every n-th request is the oldest of the least urgent ones, so that none waits for ever.
_FAIRNESS_PERIOD: Final = 10
#: The number of requests in flight by priority, so that reports leave a busy server's capacity to decisions.
_IN_FLIGHT_MAX_BY_PRIORITY: Final = {
    WritePriority.REGULAR: _IN_FLIGHT_MAX,
    WritePriority.EVICTION: _IN_FLIGHT_MAX,
    WritePriority.PENDING_REASON: 4,
    WritePriority.QUEUE_STATUS: 2,
    WritePriority.EVENT: 1,
}


class PriorityQueue:
    """The requests of one priority: those that wait, in order of arrival, and the number in flight."""

    def __init__(self, priority: WritePriority) -> None:
        self.waiting: deque[Work] = deque()
        self.in_flight = 0
        self._in_flight_max = _IN_FLIGHT_MAX_BY_PRIORITY[priority]

    @property
    def may_send(self) -> bool:
        """Whether a request waits, and fewer requests are in flight than this priority allows."""
        return bool(self.waiting) and self.in_flight < self._in_flight_max


class SendQueue:
    """Requests that wait to be sent: the most urgent first, and in order of arrival within a priority.

    Every tenth request is one of the least urgent instead.
    """

    def __init__(self, timers: Kernel, limit: RateLimit) -> None:
        self._timers = timers
        self._limit = limit
        self._in_flight_limit = InFlightLimit()
        self._queues = {priority: PriorityQueue(priority) for priority in WritePriority}
        self._sent_count = 0
        self._is_wake_up_scheduled = False

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return sum(queue.in_flight for queue in self._queues.values())

    def add(self, priority: WritePriority, send: Work) -> None:
        """Queue a request, and call `send` once it may be sent.

        `send` must start one request, and pass the response to `on_response`.
        """
        self._queues[priority].waiting.append(send)
        self._send_waiting()

    def is_full(self, priority: WritePriority) -> bool:
        """Return whether a new request of this priority must be dropped: only Events are, if too many wait already."""
        return priority is WritePriority.EVENT and len(self._queues[priority].waiting) >= EVENTS_WAITING_MAX

    def waiting_counts(self) -> Mapping[WritePriority, int]:
        """Return the number of waiting requests by priority."""
        return {priority: len(queue.waiting) for priority, queue in self._queues.items()}

    def on_response(self, priority: WritePriority, sent_at: Instant, response: HttpResponse) -> None:
        """Count the response to a request of this priority, and send waiting requests."""
        now = self._timers.now()
        self._queues[priority].in_flight -= 1
        if response.code in _OVERLOADED_CODES:
            self._in_flight_limit.record_overload(now)
        elif priority <= WritePriority.EVICTION and 200 <= response.code < 300:
            # Writes of other priorities are of other kinds, with other latencies.
            self._in_flight_limit.record_latency(now, now - sent_at)
        self._send_waiting()

    def _send_waiting(self) -> None:
        while not self._is_wake_up_scheduled and self.in_flight < self._in_flight_limit.count:
            queues = self._sendable_queues()
            if not queues:
                return
            delay = self._limit.take_token(now := self._timers.now())
            if delay:
                self._is_wake_up_scheduled = True
                self._timers.call_at(now + delay, self._send_with_token)
                return
            self._send_next(queues)

    def _send_with_token(self) -> None:
        self._is_wake_up_scheduled = False
        self._send_next(self._sendable_queues())
        self._send_waiting()

    def _sendable_queues(self) -> Sequence[PriorityQueue]:
        return [queue for queue in self._queues.values() if queue.may_send]

    def _send_next(self, queues: Sequence[PriorityQueue]) -> None:
        """Send the oldest request of the first queue; every `_FAIRNESS_PERIOD`-th time, that of the last queue."""
        self._sent_count += 1
        queue = queues[0 if self._sent_count % _FAIRNESS_PERIOD else -1]
        queue.in_flight += 1
        queue.waiting.popleft()()
