"""A queue that shares time between flows: the flow that has used the least time is served first.

It is start-time fair queueing, as in Kubernetes' API Priority and Fairness, with measured seconds instead of seats. A
flow without requests saves up nothing: it begins where the others are. Urgent items come first.
Source: k8s.io/apiserver, pkg/util/flowcontrol/fairqueuing.
"""

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

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
