"""The runner: calls the controllers' reconcile functions and executes their writes. No other code executes them.

On every change, each interested controller returns the keys to reconcile; a key is queued at most once. A drain is one
step of the event loop. It takes the keys in order of rank and arrival, reconciles them, and submits the writes in
order. A key with outstanding writes is not reconciled until all of them are complete, which is after their own watch
events.

Controllers above the lowest rank run only in quiet: no key of a lower rank is queued, and the client has settled. In
process, that means that no write is outstanding and no change undelivered. So these controllers see all consequences of
their earlier writes. A reconcile of theirs that writes ends the drain, and the delivery of its writes starts the next
one. Over a network, some write is always outstanding. There these controllers see the state received so far, and skip
keys with outstanding writes. If they have a pace, they run no more often than that. In real time, many changes arrive
during one reconcile, and the next one processes them together.

A reconcile that writes nothing sets the delayed requeue of its key, or clears it. After a reconcile that writes, the
key is reconciled again when the writes have changed something; until then a reconcile can only make the requeue
earlier. A key with a delayed requeue is reconciled whenever the object of its name changes. The requeue is cancelled
when that object is deleted. So the clock does not advance for obsolete requeues.

The writes of an outcome stop at the first rejected one, unless they are independent. An outcome succeeds when all its
writes do. Only then its events are recorded, except those attached to a single write. Errors are handled as follows:

- After a Conflict or NotFound, the key is retried at once, a limited number of times in a row.
- After that, and after other errors, it is retried with backoff from 1 ms to 30 s.
- After a Forbidden, the key is not retried until something changes.
- A RefusedForNow or InvalidObject is retried after 1 s to 1 min.
- An exception of a controller is a defect. It is passed on with a note that names the controller and the key. With a
  `defects` handler it is reported there instead; the key is retried with backoff, and all other work continues.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.errors import (
    ApiError,
    Conflict,
    Forbidden,
    InvalidObject,
    NamespaceTerminating,
    NotFound,
    RefusedForNow,
)
from batchyard.api.meta import Key, key_of
from batchyard.base import invariant
from batchyard.base.instant import MILLISECOND, MINUTE, SECOND, Duration, Instant, backoff
from batchyard.controller_runtime.kernel import Pacer, ReconcileTimer
from batchyard.interfaces.client import (
    Delete,
    EventType,
    ObjectClient,
    ObjectWriter,
    Reader,
    WatchEvent,
    Write,
    WriteResult,
)
from batchyard.interfaces.controller import (
    Controller,
    EventRecord,
    Kernel,
    ReconcileResult,
    ReconcileThrottle,
    Ticket,
)
from batchyard.scheduling.messages import WRITE_REFUSED

# --- workqueue ---
#
# Work queues: the keys that are queued, those with outstanding writes, and delayed requeues.
#
# Each controller has a lane. Lanes of one rank share a FIFO queue, so that their keys are taken in order of arrival. A
# key is in a lane at most once, in one of three states: queued, with outstanding writes, or with outstanding writes and
# to be queued again. A key with outstanding writes is not in the queue; it is queued when the writes are complete.
#
# A key has at most one delayed requeue, identified by its ticket in the event loop.


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


KeysFor: TypeAlias = Callable[[WatchEvent, Instant], Iterable[Key]]
EventSink: TypeAlias = Callable[[Instant, str, EventRecord], None]
"""Records an event: the instant, the controller, the record."""
Defects: TypeAlias = Callable[[Exception], None]
"""Reports an unexpected exception of a controller; raises it if it must stop everything."""

RETRIES_AT_ONCE_MAX: Final = 10
BACKOFF_MIN: Final = MILLISECOND
BACKOFF_MAX: Final = 30 * SECOND
#: As the Job controller does when the API rejects a pod. Source: Kubernetes's pkg/controller/job.
REFUSED_BACKOFF_MIN: Final = SECOND
REFUSED_BACKOFF_MAX: Final = MINUTE
#: For writes that do not depend on each other.
INDEPENDENT_BACKOFF_MAX: Final = 8 * SECOND
_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


def ignore_event(now: Instant, controller: str, record: EventRecord) -> None:
    """Record nothing."""


def stop_at_defect(error: Exception) -> None:
    """Raise the defect."""
    raise error


class Runner:
    """Queues keys for the controllers, reconciles them, and executes their writes."""

    __slots__ = (
        "_client",
        "_defects",
        "_draining_soon",
        "_flights",
        "_kernel",
        "_lanes_by_kind",
        "_queue",
        "_sink",
        "_stopped",
        "_turns",
        "meter",
    )

    def __init__(
        self,
        kernel: Kernel,
        client: ObjectClient,
        controllers: Sequence[Controller],
        sink: EventSink = ignore_event,
        pace: ReconcileThrottle | None = None,
        defects: Defects = stop_at_defect,
    ) -> None:
        names = [controller.name for controller in controllers]
        invariant(len(set(names)) == len(names), f"controllers have different names: {names}")
        self._kernel = kernel
        self._client = client
        self._sink = sink
        self._turns = Pacer(kernel, pace)
        self._defects = defects
        self._queue = WorkQueue(controllers)
        self._lanes_by_kind: dict[str, Sequence[tuple[KeysFor, ControllerQueue]]] = {}
        self._flights = 0
        self._draining_soon = False
        self._stopped = False
        self.meter: ReconcileTimer | None = None
        client.subscribe(self.observe)

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Queue the keys to reconcile because of these changes.

        The client reports every change. Existing objects are reported as additions at the start.
        """
        now = self._kernel.now()
        lanes_by_kind = self._lanes_by_kind
        for event in events:
            changed = event.key
            kind = changed.kind
            if kind not in lanes_by_kind:
                lanes_by_kind[kind] = [(lane.controller.keys_for, lane) for lane in self._queue.lanes_for(kind)]
            for keys_for, lane in lanes_by_kind[kind]:
                try:
                    for key in keys_for(event, now):
                        lane.add(key)
                except Exception as error:  # noqa: BLE001 - any exception; other controllers still get the change
                    self._defects(_noted(error, lane, f'mapped a change of {kind} "{changed}" at instant {now}'))
                if changed in lane.wake_ups and changed not in lane.failures:
                    if event.type is _DELETED:
                        self._wake_at(lane, changed, None)
                    else:
                        lane.add(changed)
        self._drain_soon()

    def stop(self) -> None:
        """Stop all work, as after a crash; drop all queued keys, even from within a drain."""
        self._stopped = True
        for line in self._queue.lines:
            line.clear()
        for lane in self._queue.lanes:
            for wake_up in lane.wake_ups.values():
                self._kernel.cancel(wake_up.ticket)
            lane.wake_ups.clear()

    @property
    def is_stopped(self) -> bool:
        """Whether the runner is stopped."""
        return self._stopped

    @property
    def reconciles(self) -> int:
        """The number of reconciles of all controllers."""
        return sum(lane.reconciles for lane in self._queue.lanes)

    def loads(self) -> Sequence[QueueStats]:
        """Return the queue statistics of each controller."""
        return [lane.load() for lane in self._queue.lanes]

    def flush_delayed(self, controllers: Iterable[str]) -> None:
        """Reconcile now the keys of these controllers that only wait for their `requeue_at`.

        Each reconcile gets the instant that it waited for as `now`. Run the event loop up to the present instant
        afterwards. Keys in backoff after failed writes keep waiting.
        """
        for name in controllers:
            for ticket in self._lane(name).wake_early():
                self._kernel.cancel(ticket)
        self._drain_soon()

    def is_idle(self) -> bool:
        """Whether no key is queued and no write outstanding; delayed requeues do not count."""
        return not self._queue and self._flights == 0 and self._is_quiet()

    def failing(self) -> Sequence[tuple[str, Key, int]]:
        """Return each key whose last writes failed: the controller, the key, the number of failures in a row."""
        return [(lane.controller.name, key, n) for lane in self._queue.lanes for key, n in lane.failures.items()]

    def validate(self) -> None:
        """Check the invariants between two pieces of work."""
        self._queue.validate()
        invariant(self._flights >= 0, "no more outcomes land than were submitted")
        will_drain = self._draining_soon or self._turns.is_awaited
        invariant(will_drain or not self._queue or not self._is_quiet(), "keys do not wait without a drain")

    def _lane(self, controller: str) -> ControllerQueue:
        """Return the lane of a controller by name."""
        found = [lane for lane in self._queue.lanes if lane.controller.name == controller]
        invariant(len(found) == 1, f"there is a controller named {controller!r}")
        return found[0]

    def _drain_soon(self) -> None:
        """Schedule a drain, once, if a key is queued."""
        if not self._draining_soon and self._queue:
            self._draining_soon = True
            self._kernel.call_soon(self._drain)

    def _drain(self) -> None:
        """Reconcile the queued keys, rank by rank."""
        if self._stopped:
            return
        self._draining_soon = False
        now = self._kernel.now()
        lowest = self._queue.lines[0]
        for line in self._queue.lines:
            while line:
                if line is lowest:
                    self._reconcile(*line.popleft(), now)
                    continue
                if not self._is_quiet():
                    self._drain_when_quiet()
                    return
                if not self._turns.has_come(now, self._drain_soon):
                    return
                self._turns.take(partial(self._reconcile, *line.popleft(), now))

    def _is_quiet(self) -> bool:
        """Whether all relevant changes have been delivered: in process, all consequences of the last decision."""
        return self._client.settled()

    def _drain_when_quiet(self) -> None:
        """Drain again after the client's delivery; if own writes are outstanding, their completion does that."""
        if self._flights == 0:
            self._drain_soon()

    def _reconcile(self, lane: ControllerQueue, key: Key, now: Instant) -> None:
        """Reconcile a key, and submit the writes."""
        del lane.states[key]
        lane.reconciles += 1
        if lane.due:
            now = lane.due.pop(key, now)
        try:
            outcome = lane.look(key, self._client, now, self.meter)
        except Exception as error:  # noqa: BLE001 - any exception; other keys continue
            self._defects(_noted(error, lane, f'reconciled {key.kind} "{key}" at instant {now}'))
            lane.errors += 1
            self._retry(lane, key, error)
            return
        if outcome.writes:
            if outcome.requeue_at is not None:
                self._wake_by(lane, key, outcome.requeue_at)
            lane.mark_submitted(key)
            self._flights += 1
            _OutstandingWrites(self, lane, key, outcome).submit_writes(self._client)
            return
        lane.conclude(is_delayed=outcome.requeue_at is not None)
        if outcome.requeue_at is not None or key in lane.wake_ups:
            self._wake_at(lane, key, outcome.requeue_at)
        if outcome.events or lane.failures:
            self._succeed(lane, key, outcome.events)

    def _writes_completed(self, flight: "_OutstandingWrites") -> None:
        """Complete an outcome whose writes all have responses."""
        if self._stopped:
            return
        self._flights -= 1
        lane, key, error = flight.lane, flight.key, flight.error
        wanted = lane.land(key)
        events = flight.recorded_events()
        if error is None:
            lane.conclude(is_delayed=flight.outcome.requeue_at is not None)
            if events or lane.failures:
                self._succeed(lane, key, events)
        else:
            self._record(lane, [*events, *_refusal_events(lane, flight)])
        lane.errors += error is not None
        if error is not None and not _is_for_good(error):
            self._retry(lane, key, error, are_independent=flight.outcome.independent)
        elif wanted:
            lane.add(key)
        if not self._draining_soon:
            self._drain_soon()

    def _succeed(self, lane: ControllerQueue, key: Key, events: Sequence[EventRecord]) -> None:
        """Record the events and reset the failures."""
        lane.failures.pop(key, None)
        self._record(lane, events)

    def _record(self, lane: ControllerQueue, events: Sequence[EventRecord]) -> None:
        for record in events:
            self._sink(self._kernel.now(), lane.controller.name, record)

    def _retry(self, lane: ControllerQueue, key: Key, error: Exception, *, are_independent: bool = False) -> None:
        """Retry a key whose writes failed: at once after a conflict, else with backoff.

        Changes meanwhile wait too, so that the key's own partial writes do not shorten the backoff.
        """
        lane.retries += 1
        failures = lane.failures[key] = lane.failures.get(key, 0) + 1
        if isinstance(error, Conflict | NotFound) and failures <= RETRIES_AT_ONCE_MAX:
            lane.add(key)
        elif isinstance(error, RefusedForNow | InvalidObject):
            # Independent writes concern several objects: a rejected one must not delay the others for long.
            longest = INDEPENDENT_BACKOFF_MAX if are_independent else REFUSED_BACKOFF_MAX
            self._wake_by(lane, key, self._kernel.now() + min(refused_backoff(failures), longest))
        else:
            self._wake_by(lane, key, self._kernel.now() + retry_backoff(failures))

    def _wake_by(self, lane: ControllerQueue, key: Key, when: Instant) -> None:
        """Requeue a key at an instant, unless it already waits for an earlier one."""
        waiting = lane.wake_ups.get(key)
        if waiting is None or waiting.at > when:
            self._wake_at(lane, key, when)

    def _wake_at(self, lane: ControllerQueue, key: Key, when: Instant | None) -> None:
        """Set the delayed requeue of a key, through the event loop even if it is due now, so that a drain ends."""
        waiting = lane.wake_ups.get(key)
        if waiting is not None:
            if waiting.at == when:
                return
            del lane.wake_ups[key]
            self._kernel.cancel(waiting.ticket)
        if when is not None:
            lane.wake_ups[key] = DelayedRequeue(when, self._kernel.call_at(when, partial(self._wake, lane, key, when)))

    def _wake(self, lane: ControllerQueue, key: Key, when: Instant) -> None:
        """Process a delayed requeue."""
        if lane.wake(key, when):
            self._drain_soon()


class _OutstandingWrites:
    """The outstanding writes of one outcome."""

    __slots__ = ("error", "key", "lane", "left", "outcome", "refused", "runner", "succeeded")

    def __init__(self, runner: Runner, lane: ControllerQueue, key: Key, outcome: ReconcileResult) -> None:
        self.runner = runner
        self.lane = lane
        self.key = key
        self.outcome = outcome
        self.left = len(outcome.writes) if outcome.independent else 1
        self.error: ApiError | None = None  # of the first failed write
        self.refused: Write | None = None  # the write that failed first
        self.succeeded: list[EventRecord] = []

    def submit_writes(self, writer: ObjectWriter) -> None:
        """Submit the writes; independent ones separately."""
        outcome = self.outcome
        if outcome.of_writes:
            for place, write in enumerate(outcome.writes):
                writer.submit([write], partial(self.complete_one, place))
        elif outcome.independent:
            for write in outcome.writes:
                writer.submit([write], self.land)
        else:
            writer.submit(outcome.writes, self.land)

    def recorded_events(self) -> Sequence[EventRecord]:
        """Return the events to record: all of the outcome if it succeeded."""
        if self.error is None:
            return [*self.succeeded, *self.outcome.events] if self.succeeded else self.outcome.events
        if self.refused is not None and self.outcome.if_refused is not None:
            refusal = self.outcome.if_refused(self.refused, self.error)
            return self.succeeded if refusal is None else [*self.succeeded, refusal]
        return self.succeeded

    def complete_one(self, place: int, result: WriteResult) -> None:
        """Process the result of one of several independent writes."""
        if result.error is None:
            self.succeeded += self.outcome.of_writes.get(place, ())
        self.land(result)

    def land(self, result: WriteResult) -> None:
        """Process the result of writes that were submitted together."""
        self.left -= 1
        if self.error is None:
            self.error, self.refused = result.error, result.refused
        if self.left == 0:
            self.runner._writes_completed(self)


def _refusal_events(lane: ControllerQueue, flight: _OutstandingWrites) -> Sequence[EventRecord]:
    """Return an Event about a write rejected at least twice, unless its controller reports rejections itself."""
    error, refused = flight.error, flight.refused
    if refused is None or flight.outcome.if_refused is not None or not lane.failures.get(flight.key):
        return ()
    if not isinstance(error, RefusedForNow | InvalidObject) or isinstance(error, NamespaceTerminating):
        return ()
    written = refused.key if isinstance(refused, Delete) else key_of(refused.obj)
    about = written if flight.outcome.independent else flight.key
    kind = written.kind.partition(".")[0]
    message = f"{type(refused).__name__} of {kind} {written}: {error}"
    return [EventRecord(about, "Warning", WRITE_REFUSED, message)]


def _is_for_good(error: ApiError) -> bool:
    """Report whether an error persists until something changes."""
    return isinstance(error, Forbidden) and not isinstance(error, RefusedForNow)


def refused_backoff(failures: int) -> Duration:
    """Return the backoff after so many rejections: doubling from 1 s up to 1 min."""
    return backoff(REFUSED_BACKOFF_MIN, REFUSED_BACKOFF_MAX, failures)


def _noted(error: Exception, lane: ControllerQueue, what: str) -> Exception:
    """Return the error with a note of the controller and its action."""
    error.add_note(f"while {lane.controller.name} {what}")
    return error


def retry_backoff(failures: int) -> Duration:
    """Return the backoff after so many failures in a row: doubling from 1 ms up to 30 s."""
    return backoff(BACKOFF_MIN, BACKOFF_MAX, failures)
