"""Flow control: limits of concurrent requests, fair queueing of requests by user, and fair writing of long responses.

The queue implements start-time fair queueing as Kubernetes' API Priority and Fairness does, with measured seconds
instead of seats. The flow that has used the least time is served first. An idle flow accumulates no credit. Urgent
items are served before all others. Source: k8s.io/apiserver, pkg/util/flowcontrol/fairqueuing.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from batchyard.apiserver.request import StatusError, UserInfo, flow_of, is_exempt_from_limits
from batchyard.interfaces.controller import Work
from batchyard.server.clocks.wall import monotonic_seconds

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


def _decrement_count(counts_by_flow: dict[str, int], flow_name: str) -> None:
    counts_by_flow[flow_name] -= 1
    if not counts_by_flow[flow_name]:
        del counts_by_flow[flow_name]


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
