"""The order, the rate and the number in flight of a client's write requests."""

import pytest

import make
from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import MILLISECOND, SECOND
from batchyard.client.flow_control import EVENTS_WAITING_MAX, InFlightLimit, SendQueue, WritePriority, priority_of
from batchyard.client.transport import HttpResponse, RateLimit
from batchyard.controller_runtime.kernel import VirtualEventLoop
from batchyard.interfaces.client import Create, Delete, Update, UpdateStatus, Write

START = 1_000 * SECOND


class SlowServer:
    """A server behind a SendQueue: answers each request after some time, and records the order of the requests."""

    def __init__(self, *, qps: float = 1000.0, burst: int = 1000, latency: int = 10 * MILLISECOND) -> None:
        self.kernel = VirtualEventLoop(START)
        self.queue = SendQueue(self.kernel, RateLimit(qps, burst))
        self.latency = latency
        self.code = 200
        self.sent: list[str] = []
        self.most_in_flight = 0

    def add(self, name: str, priority: WritePriority = WritePriority.REGULAR) -> None:
        self.queue.add(priority, lambda: self._send(name, priority))

    def run(self, seconds: int = 60) -> None:
        self.kernel.run(end_time=self.kernel.now() + seconds * SECOND)

    def _send(self, name: str, priority: WritePriority) -> None:
        sent_at = self.kernel.now()
        self.sent.append(name)
        self.most_in_flight = max(self.most_in_flight, self.queue.in_flight)
        response = HttpResponse(self.code)
        self.kernel.call_at(sent_at + self.latency, lambda: self.queue.on_response(priority, sent_at, response))


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
    server = SlowServer(qps=10.0, burst=5)
    for number in range(25):
        server.add(str(number))
    assert len(server.sent) == 5
    server.run(1)
    assert len(server.sent) == 15


def test_fast_server_gets_more_requests_in_flight() -> None:
    server = SlowServer(qps=1e6, burst=10**6, latency=100 * MILLISECOND)
    for number in range(5000):
        server.add(str(number))
    begun = len(server.sent)
    server.run()
    assert begun == 32
    assert 100 < server.most_in_flight <= 256
    assert server.queue.in_flight == 0


def test_events_leave_capacity_to_other_requests() -> None:
    server = SlowServer(latency=SECOND)
    for number in range(100):
        server.add(str(number), WritePriority.EVENT)
    assert server.queue.in_flight == 1
    for number in range(20):
        server.add(f"admission-{number}")
    assert server.queue.in_flight == 1 + 20
    server.run(100)
    assert len(server.sent) == 120


@pytest.mark.parametrize(("code", "latency", "expected_count"), [(429, 1, 4), (503, 1, 4), (200, 2 * SECOND, 32)])
def test_overloaded_server_gets_fewer_requests_in_flight(code: int, latency: int, expected_count: int) -> None:
    limit = InFlightLimit()
    for _ in range(1000):
        limit.record(0, 1, 200)
    assert limit.count > 32
    for second in range(1, 10):
        limit.record(second * SECOND, latency, code)
        limit.record(second * SECOND + 1, latency, code)  # the same overload
    assert limit.count == expected_count


def test_limit_grows_by_one_per_round_of_fast_responses() -> None:
    limit = InFlightLimit()
    for second in range(1, 10):
        limit.record(second * SECOND, 1, 429)
    limit.record(20 * SECOND, 1, 200)
    assert limit.count == 4
    for _ in range(10):
        limit.record(20 * SECOND, 1, 200)
    assert limit.count == 5 + 1


def test_queue_is_full_for_events_only() -> None:
    server = SlowServer(qps=0.001, burst=1)
    server.add("first")
    for _ in range(EVENTS_WAITING_MAX):
        assert not server.queue.is_full(WritePriority.EVENT)
        server.add("event", WritePriority.EVENT)
    assert server.queue.is_full(WritePriority.EVENT)
    assert not server.queue.is_full(WritePriority.REGULAR)
    assert server.queue.waiting_counts()[WritePriority.EVENT] == EVENTS_WAITING_MAX
