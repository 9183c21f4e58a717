"""Work queues: the keys that are queued, those with outstanding writes, and delayed requeues.

Each controller has a lane. Lanes of one rank share a FIFO queue, so that their keys are taken in order of arrival. A
key is in a lane at most once, in one of three states: queued, with outstanding writes, or with outstanding writes and
to be queued again. A key with outstanding writes is not in the queue; it is queued when the writes are complete.

A key has at most one delayed requeue, identified by its ticket in the event loop.
"""

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol, TypeAlias

from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.base.invariants import invariant
from batchyard.interfaces.client import Reader
from batchyard.interfaces.controller import Controller, Kernel, ReconcileResult, ReconcileThrottle, Ticket, Work


class KeyState(Enum):
    """The state of a key in a lane."""

    WAITING = auto()
    UNDER_WAY = auto()
    UNDER_WAY_AND_WANTED = auto()


_WAITING, _UNDER_WAY, _WANTED = KeyState.WAITING, KeyState.UNDER_WAY, KeyState.UNDER_WAY_AND_WANTED


class DelayedRequeue(NamedTuple):
    """A delayed requeue of a key: the instant, and the ticket in the event loop."""

    at: Instant
    ticket: Ticket


class ReconcileTimer(Protocol):
    """Measures the duration of reconciles."""

    def begin(self) -> float:
        """Start a measurement; return its start mark."""

    def end(self, controller: str, began: float) -> None:
        """End a measurement."""


class QueueStats(NamedTuple):
    """The queue statistics of a controller: the present depth, and counts since the start."""

    name: str
    waiting: int
    adds: int
    succeeded: int
    delayed: int
    errors: int
    retries: int


class ControllerQueue:
    """The keys of one controller: their states, delayed requeues, failures and counts."""

    __slots__ = (
        "adds", "controller", "delayed", "due", "errors", "failures", "line", "reconciles", "retries", "states",
        "succeeded", "wake_ups",
    )  # fmt: skip

    def __init__(self, controller: Controller, line: "RankQueue") -> None:
        self.controller = controller
        self.line = line
        self.states: dict[Key, KeyState] = {}
        self.wake_ups: dict[Key, DelayedRequeue] = {}
        self.due: dict[Key, Instant] = {}  # keys requeued early, with the instant to pass to reconcile
        self.failures: dict[Key, int] = {}  # the number of failures in a row
        self.reconciles = 0
        #: How often a key was queued; how many reconciles succeeded, asked for a later requeue, and failed; and how
        #: many keys were retried because of that.
        self.adds = self.succeeded = self.delayed = self.errors = self.retries = 0

    @property
    def waiting(self) -> int:
        """The number of keys that are queued, or will be when their writes are complete."""
        return sum(state is not _UNDER_WAY for state in self.states.values())

    def load(self) -> QueueStats:
        """Return the queue statistics."""
        figures = self.adds, self.succeeded, self.delayed, self.errors, self.retries
        return QueueStats(self.controller.name, self.waiting, *figures)

    def look(self, key: Key, reader: Reader, now: Instant, meter: ReconcileTimer | None) -> ReconcileResult:
        """Reconcile a key, measured if there is a meter; in virtual time there is none."""
        if meter is None:
            return self.controller.reconcile(key, reader, now)
        began = meter.begin()
        try:
            return self.controller.reconcile(key, reader, now)
        finally:
            meter.end(self.controller.name, began)

    def add(self, key: Key) -> None:
        """Queue a key: now, or after its outstanding writes."""
        state = self.states.get(key)
        if state is None:
            self.states[key] = _WAITING
            self.adds += 1
            self.line.append((self, key))
        elif state is _UNDER_WAY:
            self.states[key] = _WANTED

    def conclude(self, *, is_delayed: bool) -> None:
        """Count a successful reconcile."""
        if is_delayed:
            self.delayed += 1
        else:
            self.succeeded += 1

    def mark_submitted(self, key: Key) -> None:
        """Mark a key taken from the queue as having outstanding writes."""
        self.states[key] = _UNDER_WAY

    def land(self, key: Key) -> bool:
        """Mark the writes of a key as complete; return whether it is to be queued again."""
        return self.states.pop(key) is _WANTED

    def wake(self, key: Key, when: Instant) -> bool:
        """Queue a key whose delayed requeue is due; False if that requeue was replaced."""
        waiting = self.wake_ups.get(key)
        if waiting is None or waiting.at != when:
            return False
        del self.wake_ups[key]
        self.add(key)
        return True

    def wake_early(self) -> Sequence[Ticket]:
        """Queue the keys that only wait for their delayed requeue, each with its instant.

        Return the tickets to cancel in the event loop.
        """
        early = [(k, w) for k, w in self.wake_ups.items() if k not in self.failures and k not in self.states]
        early.sort(key=lambda item: item[1].at)
        for key, wake_up in early:
            del self.wake_ups[key]
            self.due[key] = wake_up.at
            self.add(key)
        return [wake_up.ticket for _, wake_up in early]


RankQueue: TypeAlias = deque[tuple[ControllerQueue, Key]]


class WorkQueue:
    """The lanes of all controllers, and the queues of their ranks, the lowest first."""

    __slots__ = ("lanes", "lines")

    def __init__(self, controllers: Sequence[Controller]) -> None:
        lines: dict[int, RankQueue] = {rank: deque() for rank in sorted({c.rank for c in controllers})}
        self.lines: Sequence[RankQueue] = tuple(lines.values())
        self.lanes: Sequence[ControllerQueue] = tuple(
            ControllerQueue(controller, lines[controller.rank]) for controller in controllers
        )

    def __bool__(self) -> bool:
        """Whether any key is queued."""
        return any(self.lines)

    def lanes_for(self, kind: str) -> Sequence[ControllerQueue]:
        """Return the lanes of the controllers that watch a kind, in the given order."""
        return tuple(lane for lane in self.lanes if lane.controller.kinds is None or kind in lane.controller.kinds)

    def validate(self) -> None:
        """Check the invariants between two pieces of work."""
        for lane in self.lanes:
            waiting = [key for key, state in lane.states.items() if state is _WAITING]
            lined = [key for other, key in lane.line if other is lane]
            invariant(sorted(waiting) == sorted(lined), "a key is in the queue exactly if its state is WAITING")


# --- turns ---
#
# Pacing: controllers above the lowest rank run at once, or at most as often as their pace allows.


class Pacer:
    """The pace of controllers above the lowest rank, and whether a later turn is scheduled."""

    def __init__(self, kernel: Kernel, pace: ReconcileThrottle | None) -> None:
        self._kernel = kernel
        self._pace = pace
        self._is_awaited = False

    @property
    def is_awaited(self) -> bool:
        """Whether the next turn is scheduled in the event loop."""
        return self._is_awaited

    def has_come(self, now: Instant, then: Work) -> bool:
        """Report whether the turn has come; if not, schedule `then`, which asks again, for that time."""
        turn = now if self._pace is None else self._pace.next_turn()
        if turn <= now:
            return True
        if not self._is_awaited:
            self._is_awaited = True
            self._kernel.call_at(turn, lambda: self._come(then))
        return False

    def take(self, look: Work) -> None:
        """Use the turn: run the reconcile."""
        if self._pace is None:
            look()
        else:
            self._pace.take(look)

    def _come(self, then: Work) -> None:
        self._is_awaited = False
        then()
