"""Runner of controllers: calls their reconcile functions for queued keys, and executes the writes they return.

On every change, each controller that watches the kind returns the keys to reconcile; a key is queued at most once. A
drain is one callback of the event loop. It takes the keys in order of rank and arrival, reconciles them, and submits
the writes in order. A key with outstanding writes is reconciled again only after all of them are complete, and after
the runner has received their watch events; a reconcile may allow some to be in flight (`in_flight_max`).

Controllers above the lowest rank run only while no key of a lower rank is queued and the client has settled. For a
client in process, settled means that no write is outstanding and no change is undelivered. So these controllers see all
consequences of their earlier writes. If one of their reconciles writes, the drain ends, and the delivery of the writes
starts the next drain. A client over the network always counts as settled. There these controllers see the state
received so far, and skip keys with outstanding writes. A throttle may limit how often they run.

A reconcile without writes sets or clears the delayed requeue of its key. After a reconcile with writes, the key is
reconciled again when the writes have changed an object; until then a reconcile can only make the requeue earlier. A key
with a delayed requeue is reconciled whenever the object with this key changes, unless the change is the status write of
a settled reconcile. When that object is deleted, the requeue is canceled, so that the clock does not advance for
obsolete requeues.

The writes of a reconcile stop at the first rejected write, unless they are independent. A reconcile succeeds when all
its writes succeed. Only then its events are recorded, except events of a single write. Errors are handled as follows:

- After a Conflict or NotFound, the key is retried at once, a limited number of times in a row.
- After that, and after other errors, it is retried with backoff from 1 ms to 30 s.
- After a Forbidden, the key is not retried until an object changes.
- A TemporarilyForbidden or InvalidObject is retried after 1 s to 1 min.
- A controller that writes for one object too often within a second pauses for this object, so that two controllers
  cannot undo each other's writes without end.
- An exception of a controller is a defect. The runner raises it with a note that names the controller and the key.
  With a `defects` handler, the exception is reported there instead; the key is retried with backoff.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from batchyard.api.errors import ApiError, Conflict, Forbidden, InvalidObject, NotFound, TemporarilyForbidden
from batchyard.api.meta import Key, key_of
from batchyard.base.instant import MILLISECOND, MINUTE, SECOND, Duration, Instant, exponential_backoff, format_age
from batchyard.base.primitives import invariant
from batchyard.controller_runtime.kernel import (
    WRITES_PER_SECOND_MAX,
    ControllerQueue,
    DelayedRequeue,
    OnDemandController,
    QueueStats,
    ReconcilePacer,
    ReconcileTimer,
    WorkQueue,
    WriteCounter,
)
from batchyard.interfaces.client import Delete, EventType, ObjectClient, ObjectWriter, WatchEvent, Write, WriteResult
from batchyard.interfaces.controller import Controller, EventRecord, Kernel, ReconcileResult, ReconcileThrottle
from batchyard.scheduling.messages import WRITE_LOOP, WRITE_REFUSED

KeysFor: TypeAlias = Callable[[WatchEvent, Instant], Iterable[Key]]
EventSink: TypeAlias = Callable[[Instant, str, EventRecord], None]
"""Records an event of a controller, given the instant, the controller's name and the event record."""
DefectReporter: TypeAlias = Callable[[Exception], None]
"""Reports an unexpected exception of a controller; it may raise the exception to stop the event loop."""

IMMEDIATE_RETRIES_MAX: Final = 10
BACKOFF_MIN: Final = MILLISECOND
BACKOFF_MAX: Final = 30 * SECOND
#: The backoff after a rejected write, as for rejected pods in pkg/controller/job of Kubernetes.
REFUSED_BACKOFF_MIN: Final = SECOND
REFUSED_BACKOFF_MAX: Final = MINUTE
#: The maximum backoff for rejected writes that do not depend on each other.
INDEPENDENT_BACKOFF_MAX: Final = 8 * SECOND
#: How long a controller pauses for an object that it writes too often.
WRITE_LOOP_PAUSE: Final = 30 * SECOND
_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


def ignore_event(now: Instant, controller: str, record: EventRecord) -> None:
    """Discard an event record of a controller."""


def raise_defect(error: Exception) -> None:
    """Raise a controller's unexpected exception, so that the event loop stops."""
    raise error


class Runner:
    """Runner of all controllers: queues keys, calls reconcile functions, and submits their writes to the API client."""

    __slots__ = (
        "_client",
        "_defects",
        "_is_drain_scheduled",
        "_kernel",
        "_outstanding",
        "_pacer",
        "_queue",
        "_queues_by_kind",
        "_sink",
        "_stopped",
        "_write_counter",
        "meter",
    )

    def __init__(
        self,
        kernel: Kernel,
        client: ObjectClient,
        controllers: Sequence[Controller],
        sink: EventSink = ignore_event,
        throttle: ReconcileThrottle | None = None,
        defects: DefectReporter = raise_defect,
    ) -> None:
        names = [controller.name for controller in controllers]
        invariant(len(set(names)) == len(names), f"each controller has a unique name; the names are {names}")
        self._kernel = kernel
        self._client = client
        self._sink = sink
        self._pacer = ReconcilePacer(kernel, throttle)
        self._defects = defects
        self._queue = WorkQueue(controllers)
        self._queues_by_kind: dict[str, Sequence[tuple[KeysFor, ControllerQueue]]] = {}
        self._outstanding = 0
        self._is_drain_scheduled = False
        self._stopped = False
        self._write_counter = WriteCounter()
        self.meter: ReconcileTimer | None = None
        for controller in controllers:
            if isinstance(controller, OnDemandController):
                controller.on_load = self._queues_by_kind.clear
        client.subscribe(self.observe)

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Queue the keys that the controllers must reconcile because of these watch events.

        The client reports every change. At the start, existing objects are reported as ADDED events.
        """
        now = self._kernel.now()
        queues_by_kind = self._queues_by_kind
        for event in events:
            event_key = event.key
            kind = event_key.kind
            if kind not in queues_by_kind:
                watching_queues = self._queue.queues_for_kind(kind)
                queues_by_kind[kind] = [(queue.controller.keys_for, queue) for queue in watching_queues]
            for keys_for, queue in queues_by_kind[kind]:
                try:
                    for key in keys_for(event, now):
                        queue.add(key)
                except Exception as error:  # noqa: BLE001 - any exception; other controllers still get the change
                    self._defects(
                        _with_controller_note(
                            error,
                            queue,
                            f'determined the keys to reconcile after a change of {kind} "{event_key}" at instant {now}',
                        )
                    )
                delayed_requeues = queue.delayed_requeues
                if delayed_requeues and event_key in delayed_requeues and event_key not in queue.failures:
                    if event.type is _DELETED:
                        self._requeue_at(queue, event_key, None)
                    elif not queue.settled_statuses or not queue.is_settled_by(event):
                        queue.add(event_key)
        self._schedule_drain()

    def stop(self) -> None:
        """Stop all controllers immediately, as a crash would, and drop all queued and delayed keys."""
        self._stopped = True
        for rank_queue in self._queue.rank_queues:
            rank_queue.clear()
        for queue in self._queue.queues:
            for delayed_requeue in queue.delayed_requeues.values():
                self._kernel.cancel(delayed_requeue.ticket)
            queue.delayed_requeues.clear()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    @property
    def reconciles(self) -> int:
        """How many times any controller's reconcile function was called since the runner started."""
        return sum(queue.reconciles for queue in self._queue.queues)

    def queue_stats(self) -> Sequence[QueueStats]:
        """Return the work queue statistics of each controller."""
        return [queue.stats() for queue in self._queue.queues]

    def flush_delayed(self, controllers: Iterable[str]) -> None:
        """Queue now the keys of these controllers that only wait for a delayed requeue (`requeue_at`).

        Each reconcile gets the instant of its delayed requeue as `now`. The caller must then run the event loop up to
        the present instant. Keys in backoff after failed writes keep waiting.
        """
        for name in controllers:
            for ticket in self._queue.queue_of(name).requeue_early():
                self._kernel.cancel(ticket)
        self._schedule_drain()

    def is_idle(self) -> bool:
        """Return whether no key is queued, no write is outstanding and the client has settled; ignore delayed keys."""
        return not self._queue and self._outstanding == 0 and self._is_settled()

    def failing_keys(self) -> Sequence[tuple[str, Key, int]]:
        """Return the keys whose last reconcile failed: (controller name, key, consecutive failures)."""
        return [(queue.controller.name, key, n) for queue in self._queue.queues for key, n in queue.failures.items()]

    def validate(self) -> None:
        """Check the runner's invariants between two callbacks of the event loop; raise InvariantError if violated."""
        self._queue.validate()
        invariant(self._outstanding >= 0, "no more reconciles complete their writes than submitted writes")
        will_drain = self._is_drain_scheduled or self._pacer.is_wake_up_scheduled
        invariant(
            will_drain or not self._queue or not self._is_settled(),
            "a drain is scheduled while keys are queued and the client has settled",
        )

    def _schedule_drain(self) -> None:
        if not self._is_drain_scheduled and self._queue:
            self._is_drain_scheduled = True
            self._kernel.call_soon(self._drain_queue)

    def _drain_queue(self) -> None:
        if self._stopped:
            return
        self._is_drain_scheduled = False
        now = self._kernel.now()
        lowest_rank_queue = self._queue.rank_queues[0]
        for rank_queue in self._queue.rank_queues:
            while rank_queue:
                if rank_queue is lowest_rank_queue:
                    self._reconcile(*rank_queue.popleft(), now)
                    continue
                if not self._is_settled():
                    self._drain_when_settled()
                    return
                if not self._pacer.may_reconcile(now, self._schedule_drain):
                    return
                self._pacer.run_reconcile(partial(self._reconcile, *rank_queue.popleft(), now))

    def _is_settled(self) -> bool:
        return self._client.is_settled()

    def _drain_when_settled(self) -> None:
        """Schedule a drain of the queues if no write is outstanding; otherwise completed writes will schedule it."""
        if self._outstanding == 0:
            self._schedule_drain()

    def _reconcile(self, queue: ControllerQueue, key: Key, now: Instant) -> None:
        del queue.states[key]
        queue.reconciles += 1
        if queue.early_due_times:
            now = queue.early_due_times.pop(key, now)
        try:
            reconcile_result = queue.reconcile_key(key, self._client, now, self.meter)
        except Exception as error:  # noqa: BLE001 - any exception; other keys continue
            self._defects(_with_controller_note(error, queue, f'reconciled {key.kind} "{key}" at instant {now}'))
            queue.errors += 1
            self._retry(queue, key, error)
            return
        if reconcile_result.writes:
            if self._write_counter.exceeds_limit(queue, key, now):
                self._record_events(queue, [EventRecord(key, "Warning", WRITE_LOOP, _write_loop_message(queue))])
                self._requeue_at(queue, key, self._kernel.now() + WRITE_LOOP_PAUSE)
                return
            if reconcile_result.requeue_at is not None:
                self._requeue_by(queue, key, reconcile_result.requeue_at)
                if reconcile_result.is_settled:
                    queue.expect_settled(key, reconcile_result)
            for outstanding_writes in self._start_writes(queue, key, reconcile_result):
                outstanding_writes.submit_writes(self._client)
            return
        queue.count_success(is_delayed=reconcile_result.requeue_at is not None)
        if reconcile_result.requeue_at is not None or key in queue.delayed_requeues:
            self._requeue_at(queue, key, reconcile_result.requeue_at)
        if reconcile_result.events or queue.failures:
            self._record_success(queue, key, reconcile_result.events)

    def _start_writes(
        self, queue: ControllerQueue, key: Key, reconcile_result: ReconcileResult
    ) -> Sequence["_OutstandingWrites"]:
        in_flight_max = reconcile_result.in_flight_max
        if not in_flight_max:
            queue.mark_submitted(key)
            self._outstanding += 1
            return [_OutstandingWrites(self, queue, key, reconcile_result)]
        queue.mark_in_flight(key, len(reconcile_result.writes), in_flight_max)
        self._outstanding += len(reconcile_result.writes)
        return [_OutstandingWrites(self, queue, key, one) for one in _split_writes(reconcile_result)]

    def _complete_writes(self, writes: "_OutstandingWrites") -> None:
        if self._stopped:
            return
        self._outstanding -= 1
        queue, key, error = writes.queue, writes.key, writes.error
        if queue.settled_statuses:
            queue.settled_statuses.pop(key, None)  # for a rejected write, no watch event arrives
        if writes.outcome.in_flight_max:
            must_requeue = queue.complete_in_flight(key, writes.outcome.in_flight_max)
        else:
            must_requeue = queue.complete_writes(key)
        events = writes.recorded_events()
        if error is None:
            queue.count_success(is_delayed=writes.outcome.requeue_at is not None)
            if events or queue.failures:
                self._record_success(queue, key, events)
        else:
            self._record_events(queue, [*events, *_rejection_events(queue, writes)])
        queue.errors += error is not None
        if error is not None and not _is_permanent_error(error):
            self._retry(queue, key, error, are_independent=writes.outcome.independent)
        elif must_requeue or writes.must_requeue:
            queue.add(key)
        if not self._is_drain_scheduled:
            self._schedule_drain()

    def _record_success(self, queue: ControllerQueue, key: Key, events: Sequence[EventRecord]) -> None:
        queue.failures.pop(key, None)
        self._record_events(queue, events)

    def _record_events(self, queue: ControllerQueue, events: Sequence[EventRecord]) -> None:
        for record in events:
            self._sink(self._kernel.now(), queue.controller.name, record)

    def _retry(self, queue: ControllerQueue, key: Key, error: Exception, *, are_independent: bool = False) -> None:
        """Schedule a retry of a key whose reconcile or writes failed.

        The first retries after a Conflict or NotFound are immediate, all others are delayed by a backoff. Changes do
        not shorten the backoff, because the key's own partial writes cause changes.
        """
        queue.retries += 1
        failure_count = queue.failures[key] = queue.failures.get(key, 0) + 1
        if isinstance(error, Conflict | NotFound) and failure_count <= IMMEDIATE_RETRIES_MAX:
            queue.add(key)
        elif isinstance(error, TemporarilyForbidden | InvalidObject):
            # Independent writes concern several objects: a rejected one must not delay the others for long.
            backoff_max = INDEPENDENT_BACKOFF_MAX if are_independent else REFUSED_BACKOFF_MAX
            self._requeue_by(queue, key, self._kernel.now() + min(rejection_backoff(failure_count), backoff_max))
        else:
            self._requeue_by(queue, key, self._kernel.now() + retry_backoff(failure_count))

    def _requeue_by(self, queue: ControllerQueue, key: Key, due_time: Instant) -> None:
        delayed_requeue = queue.delayed_requeues.get(key)
        if delayed_requeue is None or delayed_requeue.at > due_time:
            self._requeue_at(queue, key, due_time)

    def _requeue_at(self, queue: ControllerQueue, key: Key, due_time: Instant | None) -> None:
        requeue = queue.delayed_requeues.get(key)
        if requeue is not None:
            if requeue.at == due_time:
                return
            del queue.delayed_requeues[key]
            self._kernel.cancel(requeue.ticket)
        if due_time is not None:
            ticket = self._kernel.call_at(due_time, partial(self._process_requeue, queue, key, due_time))
            queue.delayed_requeues[key] = DelayedRequeue(due_time, ticket)

    def _process_requeue(self, queue: ControllerQueue, key: Key, due_time: Instant) -> None:
        if queue.process_requeue(key, due_time):
            self._schedule_drain()


class _OutstandingWrites:
    __slots__ = (
        "error",
        "key",
        "must_requeue",
        "outcome",
        "queue",
        "rejected_write",
        "runner",
        "succeeded_events",
        "unfinished_count",
    )

    def __init__(self, runner: Runner, queue: ControllerQueue, key: Key, outcome: ReconcileResult) -> None:
        self.runner = runner
        self.queue = queue
        self.key = key
        self.outcome = outcome
        self.unfinished_count = len(outcome.writes) if outcome.independent else 1
        self.error: ApiError | None = None  # of the first failed write
        self.rejected_write: Write | None = None  # the write that failed first
        self.must_requeue = False
        self.succeeded_events: list[EventRecord] = []

    def submit_writes(self, writer: ObjectWriter) -> None:
        reconcile_result = self.outcome
        if reconcile_result.events_by_write or reconcile_result.on_result is not None:
            for position, write in enumerate(reconcile_result.writes):
                writer.submit([write], partial(self.process_independent_result, position))
        elif reconcile_result.independent:
            for write in reconcile_result.writes:
                writer.submit([write], self.process_result)
        else:
            writer.submit(reconcile_result.writes, self.process_result)

    def recorded_events(self) -> Sequence[EventRecord]:
        if self.error is None:
            return [*self.succeeded_events, *self.outcome.events] if self.succeeded_events else self.outcome.events
        if self.rejected_write is not None and self.outcome.event_if_rejected is not None:
            refusal_event = self.outcome.event_if_rejected(self.rejected_write, self.error)
            return self.succeeded_events if refusal_event is None else [*self.succeeded_events, refusal_event]
        return self.succeeded_events

    def process_independent_result(self, position: int, result: WriteResult) -> None:
        if result.error is None:
            self.succeeded_events += self.outcome.events_by_write.get(position, ())
        if self.outcome.on_result is not None:
            self.must_requeue |= self.outcome.on_result(self.outcome.writes[position], result.error)
        self.process_result(result)

    def process_result(self, result: WriteResult) -> None:
        self.unfinished_count -= 1
        if self.error is None:
            self.error, self.rejected_write = result.error, result.rejected_write
        if self.unfinished_count == 0:
            self.runner._complete_writes(self)


def _split_writes(result: ReconcileResult) -> Sequence[ReconcileResult]:
    events_by_write = result.events_by_write
    return [
        replace(result, writes=[write], events_by_write={0: events_by_write.get(position, ())})
        for position, write in enumerate(result.writes)
    ]


def _rejection_events(queue: ControllerQueue, writes: _OutstandingWrites) -> Sequence[EventRecord]:
    error, rejected_write = writes.error, writes.rejected_write
    if rejected_write is None or writes.outcome.event_if_rejected is not None or not queue.failures.get(writes.key):
        return ()
    if not isinstance(error, TemporarilyForbidden | InvalidObject):
        return ()
    written_key = rejected_write.key if isinstance(rejected_write, Delete) else key_of(rejected_write.obj)
    regarding_key = written_key if writes.outcome.independent else writes.key
    kind = written_key.kind.partition(".")[0]
    message = f"{type(rejected_write).__name__} of {kind} {written_key}: {error}"
    return [EventRecord(regarding_key, "Warning", WRITE_REFUSED, message)]


def _write_loop_message(queue: ControllerQueue) -> str:
    pause = format_age(WRITE_LOOP_PAUSE)
    return f"{queue.controller.name} writes more than {WRITES_PER_SECOND_MAX} times a second, and pauses for {pause}"


def _is_permanent_error(error: ApiError) -> bool:
    """Return whether a rejected write must not be retried until an object changes: Forbidden, but not temporarily."""
    return isinstance(error, Forbidden) and not isinstance(error, TemporarilyForbidden)


def rejection_backoff(failure_count: int) -> Duration:
    """Return the retry delay after this many consecutive rejected writes: it doubles from 1 s up to 1 min."""
    return exponential_backoff(REFUSED_BACKOFF_MIN, REFUSED_BACKOFF_MAX, failure_count)


def _with_controller_note(error: Exception, queue: ControllerQueue, action: str) -> Exception:
    error.add_note(f"while {queue.controller.name} {action}")
    return error


def retry_backoff(failure_count: int) -> Duration:
    """Return the delay before a retry after this many consecutive failures: it doubles from 1 ms up to 30 s."""
    return exponential_backoff(BACKOFF_MIN, BACKOFF_MAX, failure_count)
