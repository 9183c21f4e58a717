"""Which keys wait to be looked at, which are under way, and which are to be looked at later.

Each controller has a lane; lanes of one rank share a line, so that their keys are taken in order of arrival. A key is
in a lane at most once, in one of three states: it waits in the line, its writes are under way, or they are and it is
wanted again. While its writes are under way it is not in the line: it enters it when they have landed.

A key has at most one wake-up, which the kernel knows by its ticket.
"""

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol, TypeAlias

from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.base.invariants import invariant
from batchyard.interfaces.client import Reader
from batchyard.interfaces.controller import Controller, Kernel, Outcome, Pace, Ticket, Work


class KeyState(Enum):
    """Where a key of a lane is."""

    WAITING = auto()
    UNDER_WAY = auto()
    UNDER_WAY_AND_WANTED = auto()


_WAITING, _UNDER_WAY, _WANTED = KeyState.WAITING, KeyState.UNDER_WAY, KeyState.UNDER_WAY_AND_WANTED


class WakeUp(NamedTuple):
    """When a key is to be looked at, and how the kernel knows of it."""

    at: Instant
    ticket: Ticket


class LookMeter(Protocol):
    """Measures how long controllers look at keys."""

    def begin(self) -> float:
        """A look begins; the mark from which it is measured."""

    def end(self, controller: str, began: float) -> None:
        """It is over."""


class Load(NamedTuple):
    """What a controller had to do: keys that wait now, and figures since the start."""

    name: str
    waiting: int
    adds: int
    succeeded: int
    delayed: int
    errors: int
    retries: int


class Lane:
    """The keys of one controller."""

    __slots__ = (
        "adds", "controller", "delayed", "due", "errors", "failures", "line", "reconciles", "retries", "states",
        "succeeded", "wake_ups",
    )  # fmt: skip

    def __init__(self, controller: Controller, line: "Line") -> None:
        self.controller = controller
        self.line = line
        self.states: dict[Key, KeyState] = {}
        self.wake_ups: dict[Key, WakeUp] = {}
        self.due: dict[Key, Instant] = {}  # keys taken before their time, with the instant to tell them
        self.failures: dict[Key, int] = {}  # how often in a row
        self.reconciles = 0
        #: How often a key entered the line; how many looks succeeded, asked to be repeated later, and failed; and how
        #: many keys were looked at again because of that.
        self.adds = self.succeeded = self.delayed = self.errors = self.retries = 0

    @property
    def waiting(self) -> int:
        """How many keys wait in the line, or will when their writes have landed."""
        return sum(state is not _UNDER_WAY for state in self.states.values())

    def load(self) -> Load:
        """What its controller had to do."""
        figures = self.adds, self.succeeded, self.delayed, self.errors, self.retries
        return Load(self.controller.name, self.waiting, *figures)

    def look(self, key: Key, reader: Reader, now: Instant, meter: LookMeter | None) -> Outcome:
        """What its controller wants of a key; nobody measures where time is virtual."""
        if meter is None:
            return self.controller.reconcile(key, reader, now)
        began = meter.begin()
        try:
            return self.controller.reconcile(key, reader, now)
        finally:
            meter.end(self.controller.name, began)

    def add(self, key: Key) -> None:
        """Ask for a look at a key: in the line, or after its writes have landed."""
        state = self.states.get(key)
        if state is None:
            self.states[key] = _WAITING
            self.adds += 1
            self.line.append((self, key))
        elif state is _UNDER_WAY:
            self.states[key] = _WANTED

    def conclude(self, *, is_delayed: bool) -> None:
        """Count a look that succeeded."""
        if is_delayed:
            self.delayed += 1
        else:
            self.succeeded += 1

    def depart(self, key: Key) -> None:
        """Note that writes of a key taken from the line are under way."""
        self.states[key] = _UNDER_WAY

    def land(self, key: Key) -> bool:
        """Note that the writes of a key have landed; whether it was wanted meanwhile."""
        return self.states.pop(key) is _WANTED

    def wake(self, key: Key, when: Instant) -> bool:
        """Put a key whose wake-up has come in the line; False if that wake-up was replaced."""
        waiting = self.wake_ups.get(key)
        if waiting is None or waiting.at != when:
            return False
        del self.wake_ups[key]
        self.add(key)
        return True

    def wake_early(self) -> Sequence[Ticket]:
        """Put the keys that only wait for their wake-up in the line, each to be told that its instant has come.

        The kernel need no longer wake them.
        """
        early = [(k, w) for k, w in self.wake_ups.items() if k not in self.failures and k not in self.states]
        early.sort(key=lambda item: item[1].at)
        for key, wake_up in early:
            del self.wake_ups[key]
            self.due[key] = wake_up.at
            self.add(key)
        return [wake_up.ticket for _, wake_up in early]


Line: TypeAlias = deque[tuple[Lane, Key]]


class WorkQueue:
    """The lanes of all controllers, and the lines of their ranks, the lowest first."""

    __slots__ = ("lanes", "lines")

    def __init__(self, controllers: Sequence[Controller]) -> None:
        lines: dict[int, Line] = {rank: deque() for rank in sorted({c.rank for c in controllers})}
        self.lines: Sequence[Line] = tuple(lines.values())
        self.lanes: Sequence[Lane] = tuple(Lane(controller, lines[controller.rank]) for controller in controllers)

    def __bool__(self) -> bool:
        """Whether any key waits in a line."""
        return any(self.lines)

    def lanes_for(self, kind: str) -> Sequence[Lane]:
        """The lanes of the controllers that want to hear of a kind, in the order they were given."""
        return tuple(lane for lane in self.lanes if lane.controller.kinds is None or kind in lane.controller.kinds)

    def validate(self) -> None:
        """Check what must hold between two pieces of work."""
        for lane in self.lanes:
            waiting = [key for key, state in lane.states.items() if state is _WAITING]
            lined = [key for other, key in lane.line if other is lane]
            invariant(sorted(waiting) == sorted(lined), "a key waits in the line exactly if it is said to")


# --- turns ---
#
# When controllers above the lowest rank may look: at once, or where they have a pace as often as that says.


class Turns:
    """See the module."""

    def __init__(self, kernel: Kernel, pace: Pace | None) -> None:
        self._kernel = kernel
        self._pace = pace
        self._is_awaited = False

    @property
    def is_awaited(self) -> bool:
        """Whether the next turn is yet to come, and the kernel knows of it."""
        return self._is_awaited

    def has_come(self, now: Instant, then: Work) -> bool:
        """Whether it is their turn; otherwise that work, which asks again, is done when it may be."""
        turn = now if self._pace is None else self._pace.next_turn()
        if turn <= now:
            return True
        if not self._is_awaited:
            self._is_awaited = True
            self._kernel.call_at(turn, lambda: self._come(then))
        return False

    def take(self, look: Work) -> None:
        """Take the turn: look."""
        if self._pace is None:
            look()
        else:
            self._pace.take(look)

    def _come(self, then: Work) -> None:
        self._is_awaited = False
        then()
