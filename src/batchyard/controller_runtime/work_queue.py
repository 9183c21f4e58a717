"""Work queues of the controllers: the keys to reconcile, their states, and their delayed requeues.

Each controller has a ControllerQueue. The controllers of one rank share a FIFO queue, so that their keys are taken in
order of arrival. A key is in a ControllerQueue at most once. It has at most one delayed requeue.
"""

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple, TypeAlias

from batchyard.api.meta import Key
from batchyard.base import invariant
from batchyard.base.instant import Instant
from batchyard.controller_runtime.kernel import ReconcileTimer
from batchyard.interfaces.client import Reader
from batchyard.interfaces.controller import Controller, ReconcileResult, Ticket


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


class ControllerQueue:
    """Work queue of one controller: the states, delayed requeues and failure counts of its keys, and statistics."""

    __slots__ = (
        "adds", "controller", "delayed", "delayed_requeues", "early_due_times", "errors", "failures", "in_flight",
        "rank_queue", "reconciles", "retries", "states", "succeeded",
    )  # fmt: skip

    def __init__(self, controller: Controller, rank_queue: "RankQueue") -> None:
        self.controller = controller
        self.rank_queue = rank_queue
        self.states: dict[Key, KeyState] = {}
        self.delayed_requeues: dict[Key, DelayedRequeue] = {}
        #: The keys that `requeue_early` queued, with the instant to pass to the reconcile function.
        self.early_due_times: dict[Key, Instant] = {}
        self.failures: dict[Key, int] = {}  # the number of failures in a row
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
