"""The order, the rate and the number in flight of a client's write requests."""

from heapq import heappop, heappush

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import MILLISECOND, MINUTE, SECOND
from batchyard.client.flow_control import EVENTS_WAITING_MAX, InFlightLimit, SendQueue, WritePriority, priority_of
from batchyard.client.transport import HttpResponse, RateLimit
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Create, Delete, Update, UpdateStatus, Write

START = 1_000 * SECOND


class SlowServer:
    """A server behind a SendQueue: answers each request after some time, and records the order of the requests."""

    def __init__(
        self, *, qps: float = 1000.0, burst: int = 1000, latency: int = 10 * MILLISECOND, parallel_max: int = 1000
    ) -> None:
        self.kernel = VirtualEventLoop(START)
        self.queue = SendQueue(self.kernel, RateLimit(qps, burst))
        self.latency = latency
        #: When each of the server's processes is free again.
        self.free_at = [START] * parallel_max
        self.code = 200
        self.sent: list[str] = []
        self.most_in_flight = 0

    def add(self, name: str, priority: WritePriority = WritePriority.REGULAR) -> None:
        self.queue.add(priority, lambda: self._send(name, priority))

    def run(self, seconds: int = 60) -> None:
        end_time = self.kernel.now() + seconds * SECOND
        self.kernel.call_at(end_time, lambda: None)  # the clock moves to the end
        self.kernel.run(end_time=end_time)

    def _send(self, name: str, priority: WritePriority) -> None:
        sent_at = self.kernel.now()
        self.sent.append(name)
        self.most_in_flight = max(self.most_in_flight, self.queue.in_flight)
        response = HttpResponse(self.code)
        end_time = max(heappop(self.free_at), sent_at) + self.latency
        heappush(self.free_at, end_time)
        self.kernel.call_at(end_time, lambda: self.queue.on_response(priority, sent_at, response))


def with_conditions(*types: str) -> Obj:
    conditions = [{"type": kind, "status": "True", "reason": "Given", "message": ""} for kind in types]
    return make.workload(conditions=conditions)


PENDING, RESERVED, EVICTED = with_conditions(), with_conditions("QuotaReserved"), with_conditions("Evicted")
EVENT = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "team"}}
QUEUE = make.cluster_queue("cq")


@pytest.mark.parametrize(
    ("write", "base", "priority"),
    [
        (UpdateStatus(RESERVED), PENDING, WritePriority.REGULAR),
        (UpdateStatus(PENDING), RESERVED, WritePriority.REGULAR),
        (UpdateStatus(EVICTED), RESERVED, WritePriority.EVICTION),
        (UpdateStatus(PENDING), PENDING, WritePriority.PENDING_REASON),
        (UpdateStatus(PENDING), None, WritePriority.REGULAR),
        (UpdateStatus(QUEUE), QUEUE, WritePriority.QUEUE_STATUS),
        (Update(QUEUE), QUEUE, WritePriority.REGULAR),
        (Create(EVENT), None, WritePriority.EVENT),
        (Delete(Key(scheme.WORKLOAD, "team", "w")), None, WritePriority.REGULAR),
    ],
)
def test_priority_of_write(write: Write, base: Obj | None, priority: WritePriority) -> None:
    assert priority_of([write], [base]) is priority


def test_submission_has_priority_of_its_most_urgent_write() -> None:
    writes: list[Write] = [UpdateStatus(QUEUE), Delete(Key(scheme.WORKLOAD, "team", "w"))]
    assert priority_of(writes, [QUEUE, None]) is WritePriority.REGULAR


def test_urgent_writes_are_sent_first_and_each_in_its_order() -> None:
    server = SlowServer(qps=100.0, burst=1)
    server.add("first")
    for number in range(3):
        server.add(f"event-{number}", WritePriority.EVENT)
        server.add(f"admission-{number}")
        server.add(f"eviction-{number}", WritePriority.EVICTION)
    server.run()
    names = [f"{kind}-{number}" for kind in ("admission", "eviction", "event") for number in range(3)]
    # The token of the first waiting request was its own; it was taken by the most urgent one.
    assert server.sent == ["first", *names]


def test_least_urgent_writes_get_a_share() -> None:
    server = SlowServer(qps=100.0, burst=1)
    for number in range(100):
        server.add(str(number))
    server.add("event", WritePriority.EVENT)
    server.run()
    assert server.sent.index("event") < 12


def test_rate_is_limited() -> None:
    server = SlowServer(qps=10.0, burst=3)
    for number in range(25):
        server.add(str(number))
    assert len(server.sent) == 3
    server.run(1)
    assert len(server.sent) == 13


def test_fast_server_gets_more_requests_in_flight() -> None:
    server = SlowServer(qps=1e6, burst=10**6, latency=100 * MILLISECOND)
    for number in range(5000):
        server.add(str(number))
    begun = len(server.sent)
    server.run()
    assert begun == 4
    assert 64 < server.most_in_flight <= 256
    assert server.queue.in_flight == 0


def test_events_leave_capacity_to_other_requests() -> None:
    server = SlowServer(latency=SECOND)
    for number in range(100):
        server.add(str(number), WritePriority.EVENT)
    assert server.queue.in_flight == 1
    for number in range(20):
        server.add(f"admission-{number}")
    assert server.queue.in_flight == 4
    server.run(120)
    assert len(server.sent) == 120


def test_requests_do_not_wait_in_the_server() -> None:
    server = SlowServer(qps=1e6, burst=10**6, latency=10 * MILLISECOND, parallel_max=8)
    for number in range(20_000):
        server.add(str(number))
    server.run(600)
    assert len(server.sent) == 20_000
    assert 8 < server.most_in_flight <= 24


def test_limit_follows_latency() -> None:
    limit = InFlightLimit()
    for _ in range(1000):
        limit.record_latency(0, MILLISECOND)
    fast_count = limit.count
    assert 32 < fast_count < 256
    for _ in range(fast_count):
        limit.record_latency(SECOND, 3 * MILLISECOND)
    assert fast_count // 2 < limit.count < fast_count
    for _ in range(1000):
        limit.record_latency(SECOND, 3 * MILLISECOND)
    assert limit.count == 4


def test_limit_grows_again_on_a_server_that_has_become_slower() -> None:
    limit = InFlightLimit()
    limit.record_latency(0, MILLISECOND)
    for minute in range(4, 14):
        for _ in range(100):
            limit.record_latency(minute * MINUTE, 10 * MILLISECOND)
    assert limit.count > 8


def test_limit_grows_by_one_per_round_of_fast_responses() -> None:
    limit = InFlightLimit()
    for _ in range(10):
        limit.record_latency(SECOND, MILLISECOND)
    assert limit.count == 5 + 1


@pytest.mark.parametrize("code", [429, 503])
def test_overload_halves_limit_once_a_second(code: int) -> None:
    server = SlowServer(qps=1e6, burst=10**6)
    for number in range(5000):
        server.add(str(number))
    server.run()
    server.code, counts = code, []
    for second in range(10):
        server.most_in_flight = 0
        for number in range(500):
            server.add(f"{second}-{number}")
        server.run(2)
        counts.append(server.most_in_flight)
    assert counts[0] > 32
    assert counts[-1] == 4


def test_queue_is_full_for_events_only() -> None:
    server = SlowServer(qps=0.001, burst=1)
    server.add("first")
    for _ in range(EVENTS_WAITING_MAX):
        assert not server.queue.is_full(WritePriority.EVENT)
        server.add("event", WritePriority.EVENT)
    assert server.queue.is_full(WritePriority.EVENT)
    assert not server.queue.is_full(WritePriority.REGULAR)
    assert server.queue.waiting_counts()[WritePriority.EVENT] == EVENTS_WAITING_MAX
