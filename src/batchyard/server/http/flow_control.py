"""A queue that shares time between flows: the flow that has used the least time is served first.

It is start-time fair queueing, as in Kubernetes' API Priority and Fairness, with measured seconds instead of seats. A
flow without requests saves up nothing: it begins where the others are. Urgent items come first.
Source: k8s.io/apiserver, pkg/util/flowcontrol/fairqueuing.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

from batchyard.apiserver.auth.authentication import User, flow_of, is_exempt
from batchyard.apiserver.request import Refused
from batchyard.interfaces.controller import Work
from batchyard.server.clocks.wall import ticks

# --- overload ---
#
# How many requests may be under way: beyond that, whoever asks is told to come back.
#
# Source: k8s.io/apiserver, pkg/server/filters/maxinflight.go.


#: Requests under way: of all, and of one user. A watch is under way until it has begun.
ALL_MAX: Final = 800
USER_MAX: Final = 400
RETRY_AFTER: Final = 1  # seconds
#: Watches of one user: of the connections that there may be, some are left to others.
WATCHES_MAX: Final = 400


class Load:
    """The requests and watches that are under way, of each flow."""

    def __init__(self) -> None:
        self._by_flow: dict[str, int] = {}
        self._watches: dict[str, int] = {}
        self._all = 0

    def enter(self, user: User, *, is_watch: bool = False) -> None:
        """Count a request until it leaves; Refused where there are too many, or too many of the user's flow.

        The owner's requests are counted, and never refused.
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

    def leave(self, user: User) -> None:
        """A request of a user is answered."""
        self._all -= 1
        _take_one(self._by_flow, flow_of(user))

    def begin_watch(self, user: User) -> None:
        """Count a watch of a user until it ends."""
        flow = flow_of(user)
        self._watches[flow] = self._watches.get(flow, 0) + 1

    def end_watch(self, user: User) -> None:
        """A watch of a user has ended."""
        _take_one(self._watches, flow_of(user))


def too_many() -> Refused:
    """The refusal of whoever asks too much at once."""
    told = "Too many requests, please try again later."
    return Refused(429, "TooManyRequests", told, {"retryAfterSeconds": RETRY_AFTER})


def _take_one(counts: dict[str, int], user: str) -> None:
    counts[user] -= 1
    if not counts[user]:
        del counts[user]


#: Idle flows that are remembered until their time has passed.
_FLOWS_MAX: Final = 1000
_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _Flow(Generic[_T]):
    """The items of a flow, and how much time it has used, in virtual seconds."""

    items: deque[_T] = field(default_factory=deque)
    used: float = 0.0


class FairQueue(Generic[_T]):
    """Items by flow."""

    def __init__(self, expected: float) -> None:
        """Each item counts as so many seconds until its cost is known."""
        self._expected = expected
        self._flows: dict[str, _Flow[_T]] = {}
        #: The flows that have items: what each had used when it was put there, and the order of arrival.
        self._turns: list[tuple[float, int, str]] = []
        self._urgent: deque[_T] = deque()
        self._number = 0
        #: How much time the flow that was served last had used.
        self._now = 0.0

    def __len__(self) -> int:
        return len(self._urgent) + sum(len(flow.items) for flow in self._flows.values())

    @property
    def has_urgent(self) -> bool:
        """Whether an urgent item waits."""
        return bool(self._urgent)

    @property
    def has_others(self) -> bool:
        """Whether an item waits that is not urgent."""
        return bool(self._turns)

    def waiting(self, name: str) -> int:
        """How many items of a flow wait."""
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
        """The next item, and its flow: '' where it is urgent. IndexError if there is none."""
        if self._urgent:
            return "", self._urgent.popleft()
        while True:
            used, _, name = heappop(self._turns)
            flow = self._flows[name]
            if flow.used <= used:
                break
            self._line_up(name, flow)  # its cost became known meanwhile
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
        """Count what an item of a flow took."""
        flow = self._flows.get(name)
        if flow is not None:
            flow.used = max(0.0, flow.used + seconds - self._expected)

    def clear(self) -> list[_T]:
        """Remove all items but urgent ones, and return them."""
        found = [item for flow in self._flows.values() for item in flow.items]
        self._flows.clear()
        self._turns.clear()
        return found

    def _line_up(self, name: str, flow: _Flow[_T]) -> None:
        self._number += 1
        heappush(self._turns, (flow.used, self._number, name))

    def _forget(self) -> None:
        """Forget idle flows whose time has passed."""
        gone = [name for name, flow in self._flows.items() if not flow.items and flow.used <= self._now]
        for name in gone:
            del self._flows[name]


# --- turns ---
#
# Parts of long answers take turns: one at a time, and between two the event loop looks at its sockets.


#: Seconds that a part is expected to take.
_EXPECTED: Final = 0.001


class Turns:
    """The parts that wait for their turn; users share the time by what their parts took before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: FairQueue[Work] = FairQueue(_EXPECTED)
        self._is_due = False

    def of(self, user: User) -> Callable[[Work], None]:
        """A function that puts parts of a user's answers in the queue."""
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
