"""The virtual event loop, the pacing of reconciles, and the work queues of controllers.

The loop runs scheduled callbacks in order of (instant, arrival).

Later callbacks are in a heap, callbacks of the present instant in a FIFO queue. When the queue is empty, the clock
moves to the first instant of the heap, and all callbacks of that instant move to the queue. A callback added for the
present instant goes to the end of the queue. A canceled callback stays in the heap until its instant, or until most of
the heap is canceled. Each callback runs to completion and may add others. None runs inside the call that adds it.

If callbacks keep adding callbacks for the same instant, the clock would never advance. So the loop counts the callbacks
of each instant, and raises EndlessInstant beyond a limit.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, NoReturn, Protocol, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.base.instant import SECOND, Instant
from batchyard.base.primitives import invariant, rare_garbage_collection
from batchyard.interfaces.client import Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import Controller, Kernel, ReconcileResult, ReconcileThrottle, Ticket, Work

WORK_PER_INSTANT_MAX: Final = 10_000_000
#: How many reconciles of one object may write within a second. Controllers write for an object a few times a second.
WRITES_PER_SECOND_MAX: Final = 500
_CANCELED_WORK_MAX: Final = 1_000  # the heap may hold this much canceled work, plus as much as live work


class EndlessInstant(Exception):  # noqa: N818 - the name is the condition
    """Raised if too many callbacks run at one instant: they keep adding callbacks, and the clock does not advance."""


class VirtualEventLoop:
    """Discrete-event loop whose virtual clock jumps from one scheduled callback to the next."""

    __slots__ = (
        "_arrivals",
        "_due_work",
        "_heap",
        "_is_running",
        "_now",
        "_scheduled_work",
        "_steps_limit",
        "_work_per_instant_max",
        "steps",
    )

    def __init__(self, start_time: Instant = 0, *, work_per_instant_max: int = WORK_PER_INSTANT_MAX) -> None:
        self._now = start_time
        self._heap: list[tuple[Instant, Ticket]] = []  # the first entry is not canceled
        self._scheduled_work: dict[Ticket, Work] = {}  # the work in the heap that is not canceled
        self._due_work: deque[Work] = deque()
        self._arrivals = 0
        self._work_per_instant_max = work_per_instant_max
        self._steps_limit = work_per_instant_max  # the limit of `steps` until the clock moves
        self._is_running = False
        self.steps = 0

    def now(self) -> Instant:
        """Return the present time of the virtual clock."""
        return self._now

    def call_at(self, instant: Instant, work: Work) -> Ticket:
        """Schedule a callback for an instant (now if past); return a ticket with which it can be canceled."""
        self._arrivals += 1
        if instant <= self._now:
            self._due_work.append(work)
        else:
            heappush(self._heap, (instant, self._arrivals))
            self._scheduled_work[self._arrivals] = work
        return self._arrivals

    def cancel(self, ticket: Ticket) -> None:
        """Cancel a callback that is not due yet, so that the clock does not advance for it; otherwise do nothing."""
        if self._scheduled_work.pop(ticket, None) is None:
            return
        if len(self._heap) > 2 * len(self._scheduled_work) + _CANCELED_WORK_MAX:
            self._heap = [entry for entry in self._heap if entry[1] in self._scheduled_work]
            heapify(self._heap)
        self._drop_canceled_work()

    def call_soon(self, work: Work) -> None:
        """Schedule a callback for the present instant, after all callbacks that are due now."""
        self._due_work.append(work)

    def skip_to(self, instant: Instant) -> None:
        """Move the clock forward; all callbacks scheduled until this instant become due now, in order."""
        if instant <= self._now:
            return
        self._now = instant
        self._steps_limit = self.steps + self._work_per_instant_max
        work_heap = self._heap
        while work_heap and work_heap[0][0] <= instant:
            work = self._scheduled_work.pop(heappop(work_heap)[1], None)
            if work is not None:
                self._due_work.append(work)
        self._drop_canceled_work()

    def pending_count(self) -> int:
        """Return the number of callbacks that are scheduled and not canceled."""
        return len(self._scheduled_work) + len(self._due_work)

    def next_instant(self) -> Instant | None:
        """Return the instant of the next scheduled callback; None if none is scheduled."""
        if self._due_work:
            return self._now
        return self.next_later()

    def next_later(self) -> Instant | None:
        """Return the instant of the next callback that is not due yet; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def step(self, end_time: Instant | None = None) -> bool:
        """Move the clock to the next callback and run it; return False if none is due up to `end_time`."""
        return self._run_exclusively(end_time, 1) == 1

    def run(self, end_time: Instant | None = None, *, steps_max: int | None = None) -> int:
        """Run the callbacks due up to and including `end_time`, at most `steps_max`; return how many ran.

        The clock stays at the instant of the last callback; it does not move to `end_time`.
        """
        with rare_garbage_collection():
            return self._run_exclusively(end_time, steps_max)

    def validate(self) -> None:
        """Check the invariants of the event loop between two callbacks; raise InvariantError if one is violated."""
        invariant(all(entry[0] > self._now for entry in self._heap), "all work in the heap is later than now")
        invariant(not self._heap or self._heap[0][1] in self._scheduled_work, "the first in the heap is not canceled")
        invariant(self.steps <= self._steps_limit, "the work of one instant does not exceed the limit")

    def _run_exclusively(self, end_time: Instant | None, steps_max: int | None) -> int:
        invariant(not self._is_running, "the event loop is not run from within its own work")
        self._is_running = True
        try:
            return self._run_due_work(end_time, steps_max)
        finally:
            self._is_running = False

    def _run_due_work(self, end_time: Instant | None, steps_max: int | None) -> int:
        due_work, first_step_number = self._due_work, self.steps
        last_step_number = first_step_number + steps_max if steps_max is not None else sys.maxsize
        end_instant = end_time if end_time is not None else sys.maxsize
        if self._now > end_instant:
            return 0
        while self.steps < last_step_number and (due_work or self._advance_clock(end_instant)):
            stop_step_number = min(last_step_number, self._steps_limit)
            while due_work and self.steps < stop_step_number:
                self.steps += 1
                due_work.popleft()()
            if due_work and self.steps < last_step_number:
                self._raise_endless_instant()
        return self.steps - first_step_number

    def _advance_clock(self, end_instant: Instant) -> bool:
        if not self._heap or self._heap[0][0] > end_instant:
            return False
        self.skip_to(self._heap[0][0])
        return True

    def _drop_canceled_work(self) -> None:
        work_heap, scheduled_work = self._heap, self._scheduled_work
        while work_heap and work_heap[0][1] not in scheduled_work:
            heappop(work_heap)

    def _raise_endless_instant(self) -> NoReturn:
        next_work = self._due_work[0]
        name = getattr(getattr(next_work, "func", next_work), "__qualname__", type(next_work).__name__)
        raise EndlessInstant(
            f"the clock does not advance: more than {self._work_per_instant_max:,} callbacks ran at one time, "
            f"and the next is {name}; this is a bug in batchyard: report it with the input"
        )


class ReconcileTimer(Protocol):
    """Interface of a meter that measures how long reconciles take."""

    def begin(self) -> float:
        """Return the start time of a reconcile, to be passed to `end`."""

    def end(self, controller: str, began_at: float) -> None:
        """Record the duration of a controller's reconcile that started at `began_at`."""


class WriteCounter:
    """Counts the reconciles with writes of each key of an object within a second."""

    __slots__ = ("_counts", "_second")

    def __init__(self) -> None:
        self._counts: dict[tuple[ControllerQueue, Key], int] = {}
        self._second = 0

    def exceeds_limit(self, queue: "ControllerQueue", key: Key, now: Instant) -> bool:
        """Count a reconcile with writes; return whether there are more than WRITES_PER_SECOND_MAX for an object.

        A controller may also have a key for all its work, which is not limited.
        """
        second = now // SECOND
        if second != self._second:
            self._second = second
            self._counts.clear()
        count = self._counts[queue, key] = self._counts.get((queue, key), 0) + 1
        return count > WRITES_PER_SECOND_MAX and ("." in key.kind or scheme.is_built_in(key.kind))


class ReconcilePacer:
    """Delays the reconciles of low-priority controllers (rank above the lowest) until a throttle allows them."""

    def __init__(self, kernel: Kernel, throttle: ReconcileThrottle | None) -> None:
        self._kernel = kernel
        self._throttle = throttle
        self._is_wake_up_scheduled = False

    @property
    def is_wake_up_scheduled(self) -> bool:
        """Whether the event loop will retry a delayed reconcile when the throttle allows it."""
        return self._is_wake_up_scheduled

    def may_reconcile(self, now: Instant, retry: Work) -> bool:
        """Return whether a reconcile may run now. If not, schedule `retry`, unless a retry is scheduled already."""
        next_turn_at = now if self._throttle is None else self._throttle.next_turn()
        if next_turn_at <= now:
            return True
        if not self._is_wake_up_scheduled:
            self._is_wake_up_scheduled = True
            self._kernel.call_at(next_turn_at, lambda: self._wake_up(retry))
        return False

    def run_reconcile(self, reconcile: Work) -> None:
        """Run a reconcile, through the throttle if there is one, which measures the duration."""
        if self._throttle is None:
            reconcile()
        else:
            self._throttle.run_reconcile(reconcile)

    def _wake_up(self, retry: Work) -> None:
        self._is_wake_up_scheduled = False
        retry()


# Work queues of the controllers: the keys to reconcile, their states, and their delayed requeues.
#
# Each controller has a ControllerQueue. The controllers of one rank share a FIFO queue, so that their keys are taken in
# order of arrival. A key is in a ControllerQueue at most once. It has at most one delayed requeue.


class KeyState(Enum):
    """State of an object key in a ControllerQueue: queued, or waiting for the results of its writes.

    A key that waits for results is queued again after them if it was added meanwhile (WRITING_AND_REQUEUED). All other
    keys have no state, even if they have writes in flight, as long as their controller allows that number.
    """

    WAITING = auto()
    WRITING = auto()
    WRITING_AND_REQUEUED = auto()


_WAITING, _WRITING, _WRITING_AND_REQUEUED = KeyState.WAITING, KeyState.WRITING, KeyState.WRITING_AND_REQUEUED


class DelayedRequeue(NamedTuple):
    """The due time of a key's delayed requeue, and the ticket that cancels this requeue in the event loop."""

    at: Instant
    ticket: Ticket


class QueueStats(NamedTuple):
    """Statistics of a controller's work queue: keys queued now, and counts of reconciles since the runner started."""

    name: str
    queued_count: int
    adds: int
    succeeded: int
    delayed: int
    errors: int
    retries: int


class AnnotatedKinds(NamedTuple):
    """Kinds of which an on-demand controller needs only the objects with an annotation."""

    kinds: Sequence[str]
    annotation: str


class OnDemandController:
    """A controller of kinds that few users have: it is created at the first change of an object of these kinds.

    Until then, the runner does not pass it changes of the other kinds that it watches, such as pods. Such a controller
    must find objects that are older than its first change by itself.
    """

    rank = 0

    def __init__(
        self,
        name: str,
        first_kinds: Sequence[str],
        create: Callable[[], Controller],
        is_first: Callable[[WatchEvent], bool] | None = None,
        annotated: AnnotatedKinds | None = None,
    ) -> None:
        """Create the stand-in of a controller of rank 0. `create` creates it when a kind of `first_kinds` changes.

        With `is_first`, only a change for which this function returns True creates the controller. A change of an
        object in `annotated` creates it too.
        """
        self.name = name
        self.kinds: Sequence[str] | None = first_kinds if annotated is None else (*first_kinds, *annotated.kinds)
        self._annotated = annotated
        self._create = create
        self._is_first = is_first
        self._controller: Controller | None = None
        #: Called when `kinds` has changed.
        self.on_load: Callable[[], None] = _ignore_load

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the keys that the controller returns; create the controller if it does not exist yet."""
        if self._controller is None and not self._creates_controller(event):
            return ()
        controller = self._load()
        keys = controller.keys_for(event, now)
        if controller.kinds is not self.kinds:
            self.kinds = controller.kinds
            self.on_load()
        return keys

    def _creates_controller(self, event: WatchEvent) -> bool:
        annotated = self._annotated
        if annotated is not None and event.key.kind in annotated.kinds:
            annotations = event.obj["metadata"].get("annotations")
            return bool(annotations) and annotated.annotation in annotations
        return self._is_first is None or self._is_first(event)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Reconcile a key by the controller."""
        return self._load().reconcile(key, reader, now)

    def _load(self) -> Controller:
        controller = self._controller
        if controller is None:
            controller = self._controller = self._create()
            self.kinds = controller.kinds
            self.on_load()
        return controller


def _ignore_load() -> None:
    pass


class ControllerQueue:
    """Work queue of one controller: the states, delayed requeues and failure counts of its keys, and statistics."""

    __slots__ = (
        "adds", "controller", "delayed", "delayed_requeues", "early_due_times", "errors", "failures", "in_flight",
        "rank_queue", "reconciles", "retries", "settled_statuses", "states", "succeeded",
    )  # fmt: skip

    def __init__(self, controller: Controller, rank_queue: "RankQueue") -> None:
        self.controller = controller
        self.rank_queue = rank_queue
        self.states: dict[Key, KeyState] = {}
        self.delayed_requeues: dict[Key, DelayedRequeue] = {}
        #: The keys that `requeue_early` queued, with the instant to pass to the reconcile function.
        self.early_due_times: dict[Key, Instant] = {}
        self.failures: dict[Key, int] = {}  # the number of failures in a row
        #: The statuses that settled reconciles wrote, until their watch events arrive.
        self.settled_statuses: dict[Key, object] = {}
        #: The number of writes without a result, for keys that are reconciled while writes are in flight.
        self.in_flight: dict[Key, int] = {}
        self.reconciles = 0
        #: Counts: queued keys; successful reconciles without and with a delayed requeue; failed reconciles; retries.
        self.adds = self.succeeded = self.delayed = self.errors = self.retries = 0

    @property
    def queued_count(self) -> int:
        """The number of keys that are queued, or will be when their outstanding writes are complete."""
        return sum(state is not _WRITING for state in self.states.values())

    def stats(self) -> QueueStats:
        """Return the statistics of the controller's work queue."""
        counts = self.adds, self.succeeded, self.delayed, self.errors, self.retries
        return QueueStats(self.controller.name, self.queued_count, *counts)

    def reconcile_key(self, key: Key, reader: Reader, now: Instant, meter: ReconcileTimer | None) -> ReconcileResult:
        """Call the controller's reconcile function for a key; record the duration unless `meter` is None."""
        if meter is None:
            return self.controller.reconcile(key, reader, now)
        began_at = meter.begin()
        try:
            return self.controller.reconcile(key, reader, now)
        finally:
            meter.end(self.controller.name, began_at)

    def add(self, key: Key) -> None:
        """Queue a key for a reconcile, now or after its outstanding writes; a queued key stays in its place."""
        key_state = self.states.get(key)
        if key_state is None:
            self.states[key] = _WAITING
            self.adds += 1
            self.rank_queue.append((self, key))
        elif key_state is _WRITING:
            self.states[key] = _WRITING_AND_REQUEUED

    def count_success(self, *, is_delayed: bool) -> None:
        """Count a successful reconcile in the statistics, by whether it requested a delayed requeue."""
        if is_delayed:
            self.delayed += 1
        else:
            self.succeeded += 1

    def expect_settled(self, key: Key, result: ReconcileResult) -> None:
        """Record the status that a settled reconcile writes, if its requeue time is the key's delayed requeue."""
        (write,) = result.writes
        requeue = self.delayed_requeues.get(key)
        if isinstance(write, UpdateStatus) and requeue is not None and requeue.at == result.requeue_at:
            self.settled_statuses[key] = write.obj["status"]

    def is_settled_by(self, event: WatchEvent) -> bool:
        """Return whether a watch event shows exactly the status that a settled reconcile of its object wrote."""
        status = self.settled_statuses.pop(event.key, None)
        return status is not None and status is event.obj.get("status")

    def mark_submitted(self, key: Key) -> None:
        """Mark a key as having outstanding writes, which postpone its next reconcile."""
        self.states[key] = _WRITING

    def complete_writes(self, key: Key) -> bool:
        """Mark the writes of a key as complete; return whether the key was queued again in the meantime."""
        return self.states.pop(key) is _WRITING_AND_REQUEUED

    def mark_in_flight(self, key: Key, write_count: int, in_flight_max: int) -> None:
        """Add to a key's writes in flight; more than `in_flight_max` postpone the next reconcile of the key."""
        in_flight = self.in_flight[key] = self.in_flight.get(key, 0) + write_count
        if in_flight > in_flight_max:
            self.states[key] = _WRITING

    def complete_in_flight(self, key: Key, in_flight_max: int) -> bool:
        """Count the result of one of a key's writes in flight; return whether the caller must queue the key.

        This is the case after the last result. If `add` was called while more than `in_flight_max` writes were in
        flight, it is also the case as soon as at most `in_flight_max` are left.
        """
        remaining = self.in_flight.pop(key) - 1
        if remaining:
            self.in_flight[key] = remaining
        if remaining > in_flight_max or self.states.get(key, _WAITING) is _WAITING:
            return not remaining
        return self.complete_writes(key) or not remaining

    def process_requeue(self, key: Key, due_time: Instant) -> bool:
        """Queue a key whose delayed requeue is due; return False if the requeue was replaced or canceled."""
        delayed_requeue = self.delayed_requeues.get(key)
        if delayed_requeue is None or delayed_requeue.at != due_time:
            return False
        del self.delayed_requeues[key]
        self.add(key)
        return True

    def requeue_early(self) -> Sequence[Ticket]:
        """Queue now all keys that only wait for a delayed requeue, in order of their due times.

        Return the tickets of these requeues, which the caller must cancel in the event loop.
        """
        waiting = [(k, r) for k, r in self.delayed_requeues.items() if k not in self.failures and k not in self.states]
        waiting.sort(key=lambda key_and_requeue: key_and_requeue[1].at)
        for key, requeue in waiting:
            del self.delayed_requeues[key]
            self.early_due_times[key] = requeue.at
            self.add(key)
        return [requeue.ticket for _, requeue in waiting]


RankQueue: TypeAlias = deque[tuple[ControllerQueue, Key]]


class WorkQueue:
    """Work queues of all controllers, and one FIFO queue of keys per controller rank, the lowest rank first."""

    __slots__ = ("queues", "rank_queues")

    def __init__(self, controllers: Sequence[Controller]) -> None:
        rank_queues: dict[int, RankQueue] = {rank: deque() for rank in sorted({c.rank for c in controllers})}
        self.rank_queues: Sequence[RankQueue] = tuple(rank_queues.values())
        self.queues: Sequence[ControllerQueue] = tuple(
            ControllerQueue(controller, rank_queues[controller.rank]) for controller in controllers
        )

    def __bool__(self) -> bool:
        """Return whether any key is queued for a reconcile."""
        return any(self.rank_queues)

    def queue_of(self, controller: str) -> ControllerQueue:
        """Return the work queue of the controller with this name; raise InvariantError if there is none."""
        named_queues = [queue for queue in self.queues if queue.controller.name == controller]
        invariant(len(named_queues) == 1, f"exactly one controller is named {controller!r}")
        return named_queues[0]

    def queues_for_kind(self, kind: str) -> Sequence[ControllerQueue]:
        """Return the queues of the controllers that watch a kind of object, in the order of the controllers."""
        return tuple(queue for queue in self.queues if queue.controller.kinds is None or kind in queue.controller.kinds)

    def validate(self) -> None:
        """Check that a key is in a FIFO queue if and only if its state is WAITING; raise InvariantError otherwise."""
        for queue in self.queues:
            waiting_keys = [key for key, state in queue.states.items() if state is _WAITING]
            queued_keys = [key for owner, key in queue.rank_queue if owner is queue]
            queue_invariant = "a key is in its rank's queue if and only if its state is WAITING"
            invariant(sorted(waiting_keys) == sorted(queued_keys), queue_invariant)
