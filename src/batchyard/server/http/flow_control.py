"""Flow control: limits of concurrent requests, fair queueing of requests, and turns of long responses.

The queue is start-time fair queueing as in Kubernetes' API Priority and Fairness, with measured seconds instead of
seats. The flow that has used the least time is served first. An idle flow accumulates no credit. Urgent items come
first. Source: k8s.io/apiserver, pkg/util/flowcontrol/fairqueuing.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from batchyard.apiserver.request import StatusError, UserInfo, flow_of, is_exempt
from batchyard.interfaces.controller import Work
from batchyard.server.clocks.wall import ticks

# --- concurrency limits ---
#
# The maximum number of requests in progress; further ones get a 429 with Retry-After.
#
# Source: k8s.io/apiserver, pkg/server/filters/maxinflight.go.


#: Maximum requests in progress, in total and of one user. A watch counts until it has started.
ALL_MAX: Final = 800
USER_MAX: Final = 400
RETRY_AFTER: Final = 1  # seconds
#: Maximum watches of one user, so that connections remain for other users.
WATCHES_MAX: Final = 400


class ConcurrencyLimiter:
    """The requests and watches in progress, by flow."""

    def __init__(self) -> None:
        self._by_flow: dict[str, int] = {}
        self._watches: dict[str, int] = {}
        self._all = 0

    def enter(self, user: UserInfo, *, is_watch: bool = False) -> None:
        """Count a request until `leave`. Raises Refused if too many are in progress, in total or of the user's flow.

        The owner's requests are counted, but never rejected.
        """
        flow = flow_of(user)
        of_flow = self._by_flow.get(flow, 0)
        if not is_exempt(user):
            if self._all >= ALL_MAX or of_flow >= USER_MAX:
                raise too_many()
            if is_watch and self._watches.get(flow, 0) >= WATCHES_MAX:
                raise too_many()
        self._all += 1
        self._by_flow[flow] = of_flow + 1

    def leave(self, user: UserInfo) -> None:
        """Count a request of a user as answered."""
        self._all -= 1
        _take_one(self._by_flow, flow_of(user))

    def begin_watch(self, user: UserInfo) -> None:
        """Count a watch of a user until `end_watch`."""
        flow = flow_of(user)
        self._watches[flow] = self._watches.get(flow, 0) + 1

    def end_watch(self, user: UserInfo) -> None:
        """Count a watch of a user as ended."""
        _take_one(self._watches, flow_of(user))


def too_many() -> StatusError:
    """Return the 429 response for too many requests."""
    message = "Too many requests, please try again later."
    return StatusError(429, "TooManyRequests", message, {"retryAfterSeconds": RETRY_AFTER})


def _take_one(counts: dict[str, int], user: str) -> None:
    counts[user] -= 1
    if not counts[user]:
        del counts[user]


#: Above this number, idle flows whose used time has passed are forgotten.
_FLOWS_MAX: Final = 1000
_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _Flow(Generic[_T]):
    """The items of a flow, and the time it has used, in virtual seconds."""

    items: deque[_T] = field(default_factory=deque)
    used: float = 0.0


class FairQueue(Generic[_T]):
    """The queued items by flow, and the virtual time."""

    def __init__(self, expected: float) -> None:
        """`expected` is the cost of an item in seconds, until its measured cost is charged."""
        self._expected = expected
        self._flows: dict[str, _Flow[_T]] = {}
        #: A heap of the flows with items: their used time when pushed, a sequence number, and their name.
        self._turns: list[tuple[float, int, str]] = []
        self._urgent: deque[_T] = deque()
        self._number = 0
        #: The virtual time: the used time of the flow that was served last.
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._urgent) + sum(len(flow.items) for flow in self._flows.values())

    @property
    def has_urgent(self) -> bool:
        """Whether an urgent item is queued."""
        return bool(self._urgent)

    @property
    def has_others(self) -> bool:
        """Whether an item is queued that is not urgent."""
        return bool(self._turns)

    def waiting(self, name: str) -> int:
        """Return the number of queued items of a flow."""
        flow = self._flows.get(name)
        return 0 if flow is None else len(flow.items)

    def put(self, name: str, item: _T, *, is_urgent: bool = False) -> None:
        """Add an item of a flow."""
        if is_urgent:
            self._urgent.append(item)
            return
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = _Flow()
        flow.items.append(item)
        if len(flow.items) == 1:
            flow.used = max(flow.used, self._now)
            self._line_up(name, flow)

    def take(self) -> tuple[str, _T]:
        """Remove and return the next item and its flow ('' if urgent). IndexError if the queue is empty."""
        if self._urgent:
            return "", self._urgent.popleft()
        while True:
            used, _, name = heappop(self._turns)
            flow = self._flows[name]
            if flow.used <= used:
                break
            self._line_up(name, flow)  # its cost was charged meanwhile
        self._now = max(self._now, used)
        item = flow.items.popleft()
        flow.used += self._expected
        if flow.items:
            self._line_up(name, flow)
        if not self._turns:
            self._now = max(self._now, flow.used)
            if len(self._flows) > _FLOWS_MAX:
                self._forget()
        return name, item

    def charge(self, name: str, seconds: float) -> None:
        """Replace the expected cost of an item by its measured cost."""
        flow = self._flows.get(name)
        if flow is not None:
            flow.used = max(0.0, flow.used + seconds - self._expected)

    def clear(self) -> list[_T]:
        """Remove and return all items except urgent ones."""
        found = [item for flow in self._flows.values() for item in flow.items]
        self._flows.clear()
        self._turns.clear()
        return found

    def _line_up(self, name: str, flow: _Flow[_T]) -> None:
        self._number += 1
        heappush(self._turns, (flow.used, self._number, name))

    def _forget(self) -> None:
        """Forget idle flows whose used time is behind the virtual time."""
        gone = [name for name, flow in self._flows.items() if not flow.items and flow.used <= self._now]
        for name in gone:
            del self._flows[name]


# --- turns ---
#
# Parts of long responses take turns: one per iteration of the event loop, so that sockets are polled in between.


#: The expected seconds for a part.
_EXPECTED: Final = 0.001


class ResponseTurns:
    """The queued parts of all responses, in fair order by the time that the parts of each user took."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: FairQueue[Work] = FairQueue(_EXPECTED)
        self._is_due = False

    def of(self, user: UserInfo) -> Callable[[Work], None]:
        """Return a function that queues parts of a user's responses."""
        flow, is_urgent = flow_of(user), is_exempt(user)

        def take_turn(work: Work) -> None:
            self._queue.put(flow, work, is_urgent=is_urgent)
            self._come_soon()

        return take_turn

    def _come_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        self._is_due = False
        flow, work = self._queue.take()
        if self._queue.has_urgent or self._queue.has_others:
            self._come_soon()
        began = ticks()
        try:
            work()
        finally:
            self._queue.charge(flow, ticks() - began)
