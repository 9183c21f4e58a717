"""Flow control: limits of concurrent requests, fair queueing of requests by user, and fair writing of long responses.

The queue implements start-time fair queueing as Kubernetes' API Priority and Fairness does, with measured seconds
instead of seats. The flow that has used the least time is served first. An idle flow accumulates no credit. Urgent
items are served before all others. Source: k8s.io/apiserver, pkg/util/flowcontrol/fairqueuing.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeAlias, TypeVar

from batchyard.api.meta import Obj
from batchyard.api.scheme import FLOW_SCHEMA
from batchyard.apiserver.auth.authorization import RequestAttributes
from batchyard.apiserver.flow_schemas import KINDS, FlowSchema, FlowSchemaMatcher, deal_hand, is_exempt, level_objects
from batchyard.apiserver.request import ApiRequest, StatusError, UserInfo, flow_of, is_exempt_from_limits
from batchyard.apiserver.resources import subresource_before_subpath
from batchyard.interfaces.client import EventType, ObjectReader, WatchEvent
from batchyard.interfaces.controller import Work
from batchyard.metrics.definitions import metric
from batchyard.metrics.registry import Labels, gauge_text
from batchyard.server.clocks.wall import monotonic_seconds

_K = TypeVar("_K")


# The maximum number of requests in progress; further ones get a 429 with Retry-After.
#
# Source: k8s.io/apiserver, pkg/server/filters/maxinflight.go.


#: Maximum requests in progress, in total and of one user. A watch counts until it has started.
REQUESTS_MAX: Final = 800
USER_REQUESTS_MAX: Final = 400
RETRY_AFTER: Final = 1  # seconds
#: Maximum watches of one user, so that connections remain for other users.
USER_WATCHES_MAX: Final = 400


class ConcurrencyLimiter:
    """Limits the requests in progress, in total and for each user, and the watches of each user."""

    def __init__(self) -> None:
        self._request_counts: dict[str, int] = {}
        self._watch_counts: dict[str, int] = {}
        self._total = 0

    def enter(self, user: UserInfo, *, is_watch: bool = False) -> None:
        """Count a user's request as in progress until `leave`. Raises StatusError (429) if a limit is reached.

        Requests of members of `system:masters` are counted, but never rejected.
        """
        flow_name = flow_of(user)
        flow_request_count = self._request_counts.get(flow_name, 0)
        if not is_exempt_from_limits(user):
            if self._total >= REQUESTS_MAX or flow_request_count >= USER_REQUESTS_MAX:
                raise too_many_requests()
            if is_watch and self._watch_counts.get(flow_name, 0) >= USER_WATCHES_MAX:
                raise too_many_requests()
        self._total += 1
        self._request_counts[flow_name] = flow_request_count + 1

    def leave(self, user: UserInfo) -> None:
        """Count a user's request as answered, and no longer as in progress."""
        self._total -= 1
        _decrement_count(self._request_counts, flow_of(user))

    def begin_watch(self, user: UserInfo) -> None:
        """Count one more open watch of the user's flow; `end_watch` counts it as closed."""
        flow_name = flow_of(user)
        self._watch_counts[flow_name] = self._watch_counts.get(flow_name, 0) + 1

    def end_watch(self, user: UserInfo) -> None:
        """Count a watch of a user as ended."""
        _decrement_count(self._watch_counts, flow_of(user))


def too_many_requests() -> StatusError:
    """Return the error for too many requests: status 429 with a Retry-After header."""
    message = "Too many requests, please try again later."
    return StatusError(429, "TooManyRequests", message, {"retryAfterSeconds": RETRY_AFTER})


def _decrement_count(counts: dict[_K, int], key: _K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


#: If there are more flows than this, idle flows without outstanding charges are removed.
_IDLE_FLOWS_MAX: Final = 1000
_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _Flow(Generic[_T]):
    """The queued items of a flow (the requests of a user), and the time that the flow has used, in virtual seconds."""

    items: deque[_T] = field(default_factory=deque)
    used_time: float = 0.0


class FairQueue(Generic[_T]):
    """A fair queue of items by flow: urgent items come first, then items of the flow that has used the least time."""

    def __init__(self, expected_cost: float) -> None:
        """Create an empty queue. `expected_cost` is the cost of an item in seconds until `charge` sets the real one."""
        self._expected_cost = expected_cost
        self._flows: dict[str, _Flow[_T]] = {}
        #: A heap of the flows with queued items: used time when pushed, sequence number, and name.
        self._heap: list[tuple[float, int, str]] = []
        self._urgent: deque[_T] = deque()
        self._sequence = 0
        #: The virtual time: the used time of the flow that was served last.
        self._virtual_time = 0.0

    def __len__(self) -> int:
        return len(self._urgent) + sum(len(flow.items) for flow in self._flows.values())

    @property
    def has_urgent(self) -> bool:
        """Whether an urgent item is queued."""
        return bool(self._urgent)

    @property
    def has_non_urgent(self) -> bool:
        """Whether an item that is not urgent is queued."""
        return bool(self._heap)

    def waiting_count(self, name: str) -> int:
        """Return the number of queued items of the flow with this name."""
        flow = self._flows.get(name)
        return 0 if flow is None else len(flow.items)

    def put(self, name: str, item: _T, *, is_urgent: bool = False) -> None:
        """Queue an item under its flow's name; urgent items are served before all items that are not urgent."""
        if is_urgent:
            self._urgent.append(item)
            return
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = _Flow()
        flow.items.append(item)
        if len(flow.items) == 1:
            flow.used_time = max(flow.used_time, self._virtual_time)
            self._push_flow(name, flow)

    def take_next_item(self) -> tuple[str, _T]:
        """Remove the next item; return its flow's name ('' if urgent) and the item. Raises IndexError if empty."""
        if self._urgent:
            return "", self._urgent.popleft()
        while True:
            used_time, _, name = heappop(self._heap)
            flow = self._flows[name]
            if flow.used_time <= used_time:
                break
            self._push_flow(name, flow)  # its cost was charged meanwhile
        self._virtual_time = max(self._virtual_time, used_time)
        item = flow.items.popleft()
        flow.used_time += self._expected_cost
        if flow.items:
            self._push_flow(name, flow)
        if not self._heap:
            self._virtual_time = max(self._virtual_time, flow.used_time)
            if len(self._flows) > _IDLE_FLOWS_MAX:
                self._remove_idle_flows()
        return name, item

    def remove_first(self, name: str) -> None:
        """Remove the first item of a flow that has items: nothing waits for it any more."""
        flow = self._flows[name]
        flow.items.popleft()
        if not flow.items:
            self._heap = [entry for entry in self._heap if entry[2] != name]
            heapify(self._heap)

    def charge(self, name: str, cost_seconds: float) -> None:
        """Charge the measured cost of an item in seconds to its flow, instead of the expected cost.

        Unknown names are ignored, such as the '' of urgent items.
        """
        flow = self._flows.get(name)
        if flow is not None:
            flow.used_time = max(0.0, flow.used_time + cost_seconds - self._expected_cost)

    def clear(self) -> list[_T]:
        """Remove and return all queued items that are not urgent."""
        queued_items = [item for flow in self._flows.values() for item in flow.items]
        self._flows.clear()
        self._heap.clear()
        return queued_items

    def _push_flow(self, name: str, flow: _Flow[_T]) -> None:
        self._sequence += 1
        heappush(self._heap, (flow.used_time, self._sequence, name))

    def _remove_idle_flows(self) -> None:
        idle = [name for name, flow in self._flows.items() if not flow.items and flow.used_time <= self._virtual_time]
        for name in idle:
            del self._flows[name]


# Priority levels limit the requests that are executed at the same time, as in API Priority and Fairness.
#
# A request has one seat of its level from its start until its response is complete, or until its watch has started. A
# request without a free seat waits in one of the queues of its level, or is rejected. Levels do not borrow seats from
# each other. Source: k8s.io/apiserver, pkg/util/flowcontrol (apf_controller.go, fairqueuing/queueset), and
# pkg/server/filters/priority-and-fairness.go.


#: The seats that are divided among the priority levels by their shares. Kubernetes: 400 reads and 200 writes.
SEATS: Final = 600
#: Maximum time that a request waits for a seat: a quarter of the timeout of requests.
_WAIT_SECONDS_MAX: Final = 15.0
#: The subresources of requests that run for long, which need no seat. Source: k8s.io/apiserver,
#: pkg/server/filters/longrunning.go.
_LONG_RUNNING: Final = frozenset({"attach", "exec", "log", "portforward", "proxy"})
_RECENT_FLOWS_MAX: Final = 1024
_COUNTS_MAX: Final = 10_000
_FlowLabels: TypeAlias = tuple[str, str]


@dataclass(slots=True, eq=False)
class _WaitingRequest:
    """A request that waits for a seat until a deadline in monotonic seconds."""

    queue: str
    deadline: float
    labels: _FlowLabels
    start: Work
    reject: Work
    #: Whether it has started, or was rejected.
    is_over: bool = False


class PriorityLevel:
    """A priority level: its seats, the number of its executing requests, and the requests that wait in its queues."""

    def __init__(self, name: str, counts: "FlowCounts") -> None:
        self.name = name
        self.uid = ""
        #: The number of seats; None if the level is exempt.
        self.seats: int | None = 0
        self.executing_count = 0
        self._counts = counts
        #: Number of queues, hand size and length limit; None if requests without a seat are rejected.
        self._queuing: tuple[int, int, int] | None = None
        self._queues: FairQueue[_WaitingRequest] = FairQueue(1.0)
        self._arrivals: deque[_WaitingRequest] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting_count(self) -> int:
        """The number of requests that wait for a seat."""
        return len(self._queues)

    def configure(self, obj: Obj, share_sum: int) -> None:
        """Set the seats and the queues, and start the requests that have a seat now."""
        self.uid, limited = obj["metadata"].get("uid", ""), obj["spec"].get("limited") or {}
        shares = limited.get("nominalConcurrencyShares", 0)
        self.seats = None if is_exempt(obj) else math.ceil(SEATS * shares / share_sum)
        queuing = (limited.get("limitResponse") or {}).get("queuing")
        fields = ("queues", "handSize", "queueLengthLimit")
        self._queuing = None if queuing is None else (queuing[fields[0]], queuing[fields[1]], queuing[fields[2]])
        self._start_waiting()

    def admit(self, flow: "RequestFlow", start: Work, reject: Work) -> None:
        """Start a request if a seat is free; otherwise let it wait, or reject it."""
        if self.seats is None or self.executing_count < self.seats:
            self._start(flow.labels, start)
            return
        queue = self._shortest_queue(flow)
        if queue is None:
            self._counts.count_rejection(flow.labels, "concurrency-limit" if self._queuing is None else "queue-full")
            reject()
            return
        waiting = _WaitingRequest(queue, monotonic_seconds() + _WAIT_SECONDS_MAX, flow.labels, start, reject)
        self._queues.put(queue, waiting)
        self._arrivals.append(waiting)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WAIT_SECONDS_MAX, self._expire)

    def _shortest_queue(self, flow: "RequestFlow") -> str | None:
        """Return the name of the shortest queue of the flow's hand; None if it is full or the level has no queues."""
        if self._queuing is None:
            return None
        queue_count, hand_size, length_limit = self._queuing
        hand = map(str, deal_hand(flow.schema.flow_hash(flow.distinguisher), queue_count, hand_size))
        queue = min(hand, key=self._queues.waiting_count)
        return queue if self._queues.waiting_count(queue) < length_limit else None

    def release(self) -> None:
        """Free the seat of a request that is complete, and start the next waiting request."""
        self.executing_count -= 1
        if self._arrivals:
            self._start_waiting()

    def reject_all(self) -> None:
        """Reject all waiting requests, because the server shuts down."""
        for waiting in list(self._arrivals):
            self._reject(waiting, "cancelled")
        self._expire()

    def _start(self, labels: _FlowLabels, start: Work) -> None:
        self.executing_count += 1
        self._counts.dispatched[labels] = self._counts.dispatched.get(labels, 0) + 1
        start()

    def _start_waiting(self) -> None:
        while len(self._queues) and (self.seats is None or self.executing_count < self.seats):
            waiting = self._queues.take_next_item()[1]
            waiting.is_over = True
            self._start(waiting.labels, waiting.start)
        self._drop_ended()

    def _reject(self, waiting: _WaitingRequest, reason: str) -> None:
        if not waiting.is_over:
            self._queues.remove_first(waiting.queue)  # the requests of a queue end in the order of their arrival
            waiting.is_over = True
            self._counts.count_rejection(waiting.labels, reason)
            waiting.reject()

    def _drop_ended(self) -> None:
        while self._arrivals and self._arrivals[0].is_over:
            self._arrivals.popleft()

    def _expire(self) -> None:
        """Reject the requests that have waited for too long."""
        now = monotonic_seconds()
        for waiting in list(self._arrivals):
            if waiting.deadline > now:
                break
            self._reject(waiting, "time-out")
        self._drop_ended()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._arrivals:
            delay = max(0.0, self._arrivals[0].deadline - now)
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)


class RequestFlow:
    """The flow of a request: its FlowSchema, its priority level, and what distinguishes it from other flows."""

    __slots__ = ("distinguisher", "headers", "labels", "level", "schema")

    def __init__(self, schema: FlowSchema, level: PriorityLevel, distinguisher: str) -> None:
        self.schema, self.level, self.distinguisher = schema, level, distinguisher
        #: The labels of metrics.
        self.labels: _FlowLabels = (level.name, schema.name)
        #: The response headers that identify the FlowSchema and the priority level.
        self.headers = (
            ("x-kubernetes-pf-flowschema-uid", schema.uid),
            ("x-kubernetes-pf-prioritylevel-uid", level.uid),
        )


class FlowCounts:
    """The numbers of dispatched and rejected requests, by priority level and FlowSchema."""

    def __init__(self) -> None:
        self.dispatched: dict[Labels, int] = {}
        self.rejected: dict[Labels, int] = {}

    def limit_size(self) -> None:
        """Start from 0 again if there are counts of very many FlowSchemas, most of which were deleted."""
        for counts in (self.dispatched, self.rejected):
            if len(counts) > _COUNTS_MAX:
                counts.clear()

    def count_rejection(self, labels: _FlowLabels, reason: str) -> None:
        """Count a request that was rejected for a reason, such as `queue-full`."""
        key = (*labels, reason)
        self.rejected[key] = self.rejected.get(key, 0) + 1


class PriorityAndFairness:
    """The priority levels, and the FlowSchemas that assign requests to them."""

    def __init__(self, attributes_of: Callable[[ApiRequest], RequestAttributes], objects: ObjectReader) -> None:
        """Create the levels; `attributes_of` returns the attributes of a request, with the impersonated user."""
        self._attributes_of = attributes_of
        self._objects = objects
        self._levels: dict[str, PriorityLevel] = {}
        self._counts = FlowCounts()
        self._is_outdated = True
        self._matcher = FlowSchemaMatcher((), ())
        #: Recent flows by the name of their FlowSchema and what distinguishes them.
        self._flows: dict[tuple[str, str], RequestFlow] = {}

    def observe(self, event: WatchEvent) -> None:
        """Note a change of a FlowSchema or priority level; must receive all object changes."""
        if event.key.kind not in KINDS:
            return
        is_same = event.type is EventType.MODIFIED and event.old is not None and event.obj["spec"] == event.old["spec"]
        self._is_outdated = self._is_outdated or not is_same

    def assign(self, request: ApiRequest) -> RequestFlow | None:
        """Return the flow of a request; None for a request that runs for long without being a watch."""
        if self._is_outdated:
            self._refresh()
        if subresource_before_subpath(request.path) in _LONG_RUNNING:
            return None
        user, read = request.user, partial(self._attributes_of, request)
        if "impersonate-user" in request.headers:
            user = read().user
        schema, distinguisher = self._matcher.find_schema(user, request.path, read), ""
        if schema.method == "ByUser":
            distinguisher = user.name
        elif schema.method:
            distinguisher = read().namespace
        return self._flows.get((schema.name, distinguisher)) or self._add_flow(schema, distinguisher)

    def _add_flow(self, schema: FlowSchema, distinguisher: str) -> RequestFlow:
        if len(self._flows) >= _RECENT_FLOWS_MAX:
            self._flows.clear()
        flow = RequestFlow(schema, self._levels[schema.level], distinguisher)
        self._flows[schema.name, distinguisher] = flow
        return flow

    def reject_waiting(self) -> None:
        """Reject all waiting requests, because the server shuts down."""
        for level in self._levels.values():
            level.reject_all()

    def _refresh(self) -> None:
        self._is_outdated = False
        self._flows.clear()
        self._counts.limit_size()
        objects = level_objects(self._objects)
        shares = [(obj["spec"].get("limited") or {}).get("nominalConcurrencyShares", 0) for obj in objects.values()]
        self._levels = {name: self._levels.get(name) or PriorityLevel(name, self._counts) for name in objects}
        self._matcher = FlowSchemaMatcher(self._objects.list(FLOW_SCHEMA), objects)
        for name, obj in objects.items():
            self._levels[name].configure(obj, sum(shares) or 1)

    def texts(self) -> Iterator[str]:
        """Yield the exposition text of the metrics of API Priority and Fairness."""
        levels = [level for level in self._levels.values() if level.seats is not None]
        values_by_name: dict[str, dict[Labels, int]] = {
            "dispatched_requests_total": self._counts.dispatched,
            "rejected_requests_total": self._counts.rejected,
            "nominal_limit_seats": {(level.name,): level.seats or 0 for level in levels},
            "current_executing_seats": {(level.name,): level.executing_count for level in levels},
            "current_inqueue_seats": {(level.name,): level.waiting_count for level in levels},
        }
        for name, values in values_by_name.items():
            yield gauge_text(metric(f"apiserver_flowcontrol_{name}"), list(values.items()))


# Parts of long responses are written in turns, one per iteration of the asyncio loop, so that sockets are polled in
# between.


#: The expected duration of writing a part in seconds.
_EXPECTED_TURN_SECONDS: Final = 0.001


class ResponseTurns:
    """Runs callbacks of users, such as writing a part of a long response, one per iteration of the asyncio loop.

    Fair queueing by the time spent on each user determines their order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: FairQueue[Work] = FairQueue(_EXPECTED_TURN_SECONDS)
        self._is_scheduled = False

    def scheduler_for(self, user: UserInfo) -> Callable[[Work], None]:
        """Return a function that queues a callback of this user; fair queueing among users decides when it runs."""
        flow_name, is_urgent = flow_of(user), is_exempt_from_limits(user)

        def queue_work(work: Work) -> None:
            self._queue.put(flow_name, work, is_urgent=is_urgent)
            self._schedule_turn()

        return queue_work

    def _schedule_turn(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._is_scheduled = False
        flow_name, work = self._queue.take_next_item()
        if self._queue.has_urgent or self._queue.has_non_urgent:
            self._schedule_turn()
        began_at = monotonic_seconds()
        try:
            work()
        finally:
            self._queue.charge(flow_name, monotonic_seconds() - began_at)
