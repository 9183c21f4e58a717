"""The runner: asks controllers what they want and does it. The only place where controllers have effects.

On every change each interested controller names the keys to look at; each waits once. A drain, one piece of work of
the kernel, takes them lowest rank first and in order of arrival, reconciles, and submits the writes in order. A key
whose writes are under way is not looked at before all of them have landed, which is after their own watch events.

Controllers above the lowest rank run only in quiet: no key of a lower rank waits, and the client has settled. In
process that is when no write is under way and no change undelivered: so they see all that follows from what they did
before, and each look of theirs that writes ends the drain; the delivery of its writes starts the next. Over a network
some write is always under way: there they see what has come, and of their own keys none whose writes are. Where they
have a pace they look no more often than that says: in real time many changes come while one look lasts, and are seen
together by the next.

A look that writes nothing says what there is to wait for: the wake-up of its key is the one it asks for, or none. One
that writes is looked at again when that has changed something; until then it can only hasten the wake-up. A key that
waits is looked at whenever the object of its name changes, and waits no longer when that goes. So no time passes for
wake-ups that nobody wants.

The writes of an outcome end with the first that is refused, unless they are independent. An outcome has succeeded
when all its writes have; only then are its events recorded, but for those that are told of one write alone. After a
Conflict or NotFound the key is looked at again at once, a bounded number of times in a row; after that, and after any
other error, later and later, from 1 ms to 30 s. What is forbidden stays so until something changes: its key is looked
at again when it is wanted again, not after a time; but for what is refused for now, which is tried again after 1 s to
1 min. An exception of a controller is a defect: it passes through, with a note of who and what; where somebody is to be
told of defects it is told to him, and all else goes on, the key later and later.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeAlias

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
from batchyard.base.instant import MILLISECOND, MINUTE, SECOND, Duration, Instant
from batchyard.base.invariants import invariant
from batchyard.controller_runtime.workqueue import Lane, Load, LookMeter, Turns, WakeUp, WorkQueue
from batchyard.interfaces.client import Client, Delete, EventType, WatchEvent, Write, Writer, WriteResult
from batchyard.interfaces.controller import Controller, EventRecord, Kernel, Outcome, Pace
from batchyard.scheduling.messages import WRITE_REFUSED

KeysFor: TypeAlias = Callable[[WatchEvent, Instant], Iterable[Key]]
EventSink: TypeAlias = Callable[[Instant, str, EventRecord], None]
"""Records an event: when, by which controller, what."""
Defects: TypeAlias = Callable[[Exception], None]
"""Is told of an exception that no controller should have raised; raises it where it is to stop everything."""

RETRIES_AT_ONCE_MAX: Final = 10
BACKOFF_MIN: Final = MILLISECOND
BACKOFF_MAX: Final = 30 * SECOND
#: As the Job controller where the API refuses a pod. Source: Kubernetes's pkg/controller/job.
REFUSED_BACKOFF_MIN: Final = SECOND
REFUSED_BACKOFF_MAX: Final = MINUTE
#: Of writes that do not depend on each other.
INDEPENDENT_BACKOFF_MAX: Final = 8 * SECOND
_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


def ignore_event(now: Instant, controller: str, record: EventRecord) -> None:
    """Record nothing."""


def stop_at_defect(error: Exception) -> None:
    """Let a defect pass through."""
    raise error


class Runner:
    """Feeds keys to controllers and executes what they want."""

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
        client: Client,
        controllers: Sequence[Controller],
        sink: EventSink = ignore_event,
        pace: Pace | None = None,
        defects: Defects = stop_at_defect,
    ) -> None:
        names = [controller.name for controller in controllers]
        invariant(len(set(names)) == len(names), f"controllers have different names: {names}")
        self._kernel = kernel
        self._client = client
        self._sink = sink
        self._turns = Turns(kernel, pace)
        self._defects = defects
        self._queue = WorkQueue(controllers)
        self._lanes_by_kind: dict[str, Sequence[tuple[KeysFor, Lane]]] = {}
        self._flights = 0
        self._draining_soon = False
        self._stopped = False
        self.meter: LookMeter | None = None
        client.subscribe(self.observe)

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Ask the controllers which keys to look at because of these changes.

        The client tells of every change. Objects that were there before are shown as if they were added now.
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
                except Exception as error:  # noqa: BLE001 - whatever it is, others hear of the change
                    self._defects(_noted(error, lane, f'was told of {kind} "{changed}" at instant {now}'))
                if changed in lane.wake_ups and changed not in lane.failures:
                    if event.type is _DELETED:
                        self._wake_at(lane, changed, None)
                    else:
                        lane.add(changed)
        self._drain_soon()

    def stop(self) -> None:
        """Do nothing any more, as after a crash; what waits is forgotten, even from within a drain."""
        self._stopped = True
        for line in self._queue.lines:
            line.clear()
        for lane in self._queue.lanes:
            for wake_up in lane.wake_ups.values():
                self._kernel.cancel(wake_up.ticket)
            lane.wake_ups.clear()

    @property
    def is_stopped(self) -> bool:
        """Whether it was told to do nothing any more."""
        return self._stopped

    @property
    def reconciles(self) -> int:
        """How often controllers were asked to reconcile."""
        return sum(lane.reconciles for lane in self._queue.lanes)

    def loads(self) -> Sequence[Load]:
        """What every controller had to do."""
        return [lane.load() for lane in self._queue.lanes]

    def flush_delayed(self, controllers: Iterable[str]) -> None:
        """Let the keys of these controllers that only wait for their `requeue_at` be looked at now.

        Each is told the instant it waited for as `now`, since that is when it wanted to act. Run the kernel up to the
        present instant afterwards. Keys that wait because their writes failed go on waiting.
        """
        for name in controllers:
            for ticket in self._lane(name).wake_early():
                self._kernel.cancel(ticket)
        self._drain_soon()

    def is_idle(self) -> bool:
        """Whether nothing waits or is under way but for wake-ups."""
        return not self._queue and self._flights == 0 and self._is_quiet()

    def failing(self) -> Sequence[tuple[str, Key, int]]:
        """Every key whose last writes failed: the controller, the key, how often in a row."""
        return [(lane.controller.name, key, n) for lane in self._queue.lanes for key, n in lane.failures.items()]

    def validate(self) -> None:
        """Check what must hold between two pieces of work."""
        self._queue.validate()
        invariant(self._flights >= 0, "no more outcomes land than were submitted")
        will_drain = self._draining_soon or self._turns.is_awaited
        invariant(will_drain or not self._queue or not self._is_quiet(), "keys do not wait without a drain")

    def _lane(self, controller: str) -> Lane:
        """The lane of a controller by name."""
        found = [lane for lane in self._queue.lanes if lane.controller.name == controller]
        invariant(len(found) == 1, f"there is a controller named {controller!r}")
        return found[0]

    def _drain_soon(self) -> None:
        """Ask the kernel for a drain, once, if a key waits."""
        if not self._draining_soon and self._queue:
            self._draining_soon = True
            self._kernel.call_soon(self._drain)

    def _drain(self) -> None:
        """Look at the keys that wait, rank by rank."""
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
        """Whether all that is to be seen before a decision has been: in process, all that follows from the last."""
        return self._client.settled()

    def _drain_when_quiet(self) -> None:
        """Drain again after the client's delivery; the landing of our own writes does that by itself."""
        if self._flights == 0:
            self._drain_soon()

    def _reconcile(self, lane: Lane, key: Key, now: Instant) -> None:
        """Let a controller look at a key, and do what it wants."""
        del lane.states[key]
        lane.reconciles += 1
        if lane.due:
            now = lane.due.pop(key, now)
        try:
            outcome = lane.look(key, self._client, now, self.meter)
        except Exception as error:  # noqa: BLE001 - whatever it is, others go on
            self._defects(_noted(error, lane, f'reconciled {key.kind} "{key}" at instant {now}'))
            lane.errors += 1
            self._retry(lane, key, error)
            return
        if outcome.writes:
            if outcome.requeue_at is not None:
                self._wake_by(lane, key, outcome.requeue_at)
            lane.depart(key)
            self._flights += 1
            _Flight(self, lane, key, outcome).take_off(self._client)
            return
        lane.conclude(is_delayed=outcome.requeue_at is not None)
        if outcome.requeue_at is not None or key in lane.wake_ups:
            self._wake_at(lane, key, outcome.requeue_at)
        if outcome.events or lane.failures:
            self._succeed(lane, key, outcome.events)

    def _landed(self, flight: "_Flight") -> None:
        """Conclude an outcome all of whose writes have an answer."""
        if self._stopped:
            return
        self._flights -= 1
        lane, key, error = flight.lane, flight.key, flight.error
        wanted = lane.land(key)
        events = flight.told()
        if error is None:
            lane.conclude(is_delayed=flight.outcome.requeue_at is not None)
            if events or lane.failures:
                self._succeed(lane, key, events)
        else:
            self._record(lane, [*events, *_told_of_refusal(lane, flight)])
        lane.errors += error is not None
        if error is not None and not _is_for_good(error):
            self._retry(lane, key, error, are_independent=flight.outcome.independent)
        elif wanted:
            lane.add(key)
        if not self._draining_soon:
            self._drain_soon()

    def _succeed(self, lane: Lane, key: Key, events: Sequence[EventRecord]) -> None:
        """Record the events and forget earlier failures."""
        lane.failures.pop(key, None)
        self._record(lane, events)

    def _record(self, lane: Lane, events: Sequence[EventRecord]) -> None:
        for record in events:
            self._sink(self._kernel.now(), lane.controller.name, record)

    def _retry(self, lane: Lane, key: Key, error: Exception, *, are_independent: bool = False) -> None:
        """Look at a key again whose writes failed: at once if somebody else was faster, else later and later.

        What it was wanted for meanwhile waits as well, so that its own half-done writes do not hasten it.
        """
        lane.retries += 1
        failures = lane.failures[key] = lane.failures.get(key, 0) + 1
        if isinstance(error, Conflict | NotFound) and failures <= RETRIES_AT_ONCE_MAX:
            lane.add(key)
        elif isinstance(error, RefusedForNow | InvalidObject):
            # Independent writes are of several objects: one that is refused must not hold up the others for long.
            longest = INDEPENDENT_BACKOFF_MAX if are_independent else REFUSED_BACKOFF_MAX
            self._wake_by(lane, key, self._kernel.now() + min(refused_backoff(failures), longest))
        else:
            self._wake_by(lane, key, self._kernel.now() + backoff(failures))

    def _wake_by(self, lane: Lane, key: Key, when: Instant) -> None:
        """Look at a key at an instant, or at an earlier one that it waits for."""
        waiting = lane.wake_ups.get(key)
        if waiting is None or waiting.at > when:
            self._wake_at(lane, key, when)

    def _wake_at(self, lane: Lane, key: Key, when: Instant | None) -> None:
        """Let that be the wake-up of a key, through the kernel even if it is now: a drain always ends."""
        waiting = lane.wake_ups.get(key)
        if waiting is not None:
            if waiting.at == when:
                return
            del lane.wake_ups[key]
            self._kernel.cancel(waiting.ticket)
        if when is not None:
            lane.wake_ups[key] = WakeUp(when, self._kernel.call_at(when, partial(self._wake, lane, key, when)))

    def _wake(self, lane: Lane, key: Key, when: Instant) -> None:
        """The wake-up of a key has come."""
        if lane.wake(key, when):
            self._drain_soon()


class _Flight:
    """The writes of one outcome, under way."""

    __slots__ = ("error", "key", "lane", "left", "outcome", "refused", "runner", "succeeded")

    def __init__(self, runner: Runner, lane: Lane, key: Key, outcome: Outcome) -> None:
        self.runner = runner
        self.lane = lane
        self.key = key
        self.outcome = outcome
        self.left = len(outcome.writes) if outcome.independent else 1
        self.error: ApiError | None = None  # the first
        self.refused: Write | None = None  # which it is of
        self.succeeded: list[EventRecord] = []

    def take_off(self, writer: Writer) -> None:
        """Submit the writes, each by itself where they are independent."""
        outcome = self.outcome
        if outcome.of_writes:
            for place, write in enumerate(outcome.writes):
                writer.submit([write], partial(self.land_one, place))
        elif outcome.independent:
            for write in outcome.writes:
                writer.submit([write], self.land)
        else:
            writer.submit(outcome.writes, self.land)

    def told(self) -> Sequence[EventRecord]:
        """What is recorded of all this: all of it if all succeeded."""
        if self.error is None:
            return [*self.succeeded, *self.outcome.events] if self.succeeded else self.outcome.events
        if self.refused is not None and self.outcome.if_refused is not None:
            refusal = self.outcome.if_refused(self.refused, self.error)
            return self.succeeded if refusal is None else [*self.succeeded, refusal]
        return self.succeeded

    def land_one(self, place: int, result: WriteResult) -> None:
        """One of several independent writes has its answer."""
        if result.error is None:
            self.succeeded += self.outcome.of_writes.get(place, ())
        self.land(result)

    def land(self, result: WriteResult) -> None:
        """What was submitted together has its answer."""
        self.left -= 1
        if self.error is None:
            self.error, self.refused = result.error, result.refused
        if self.left == 0:
            self.runner._landed(self)


def _told_of_refusal(lane: Lane, flight: _Flight) -> Sequence[EventRecord]:
    """An Event about a write that was refused twice or more, unless its controller reports refusals itself."""
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
    """Whether an error stays what it is until something changes."""
    return isinstance(error, Forbidden) and not isinstance(error, RefusedForNow)


def refused_backoff(failures: int) -> Duration:
    """How long to wait after so many refusals for now: doubling from 1 s up to 1 min."""
    return min(REFUSED_BACKOFF_MIN << min(failures - 1, 32), REFUSED_BACKOFF_MAX)


def _noted(error: Exception, lane: Lane, what: str) -> Exception:
    """The error with a note of who did what."""
    error.add_note(f"while {lane.controller.name} {what}")
    return error


def backoff(failures: int) -> Duration:
    """How long to wait after so many failures in a row: doubling from 1 ms up to 30 s."""
    return min(BACKOFF_MIN << min(failures - 1, 32), BACKOFF_MAX)
