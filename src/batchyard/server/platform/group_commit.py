"""Group commit: store changes that arrive during a journal write are written together in the next transaction.

A batch of `LARGE_BATCH_SIZE` changes is written without waiting for the transaction before it. A larger batch costs no
less per change, and the event loop would idle while all clients wait for their responses.

Callers that wait for a revision are notified when it is durable. Watches of API clients receive changes only then,
so that no client sees a change that a crash reverts. If the journal cannot be written (the disk is full), the state in
memory stays ahead of the journal. All waiting callers then get the error, and the platform must exit.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from batchyard.interfaces.client import WatchEvent
from batchyard.server.clocks.wall import monotonic_seconds
from batchyard.store.journal import RevisionJournal
from batchyard.store.journal_file import JournalError
from batchyard.store.memory import Store

# A thread that runs blocking work, one job after the other, off the event loop.
#
# `run_in_executor` costs two futures, a lock and a condition for each call. They form reference cycles that only the
# garbage collector frees, and a future reports its result one loop iteration later.


_T = TypeVar("_T")
_BackgroundJob: TypeAlias = tuple[Callable[[], Any], Callable[[Any], None]]


class BackgroundThread:
    """A background thread that runs queued functions in order. The thread starts with the first function."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_BackgroundJob | None] = SimpleQueue()
        self._worker: Thread | None = None

    def submit(self, work: Callable[[], _T], on_done: Callable[[_T | Exception], None]) -> None:
        """Queue a function; on the asyncio loop, `on_done` later gets its result or the exception that it raised."""
        if self._worker is None:
            self._worker = Thread(target=self._run, name="writer", daemon=True)
            self._worker.start()
        self._jobs.put((work, on_done))

    def end(self) -> None:
        """Wait until all queued functions have run, and stop the thread."""
        if self._worker is not None:
            self._jobs.put(None)
            self._worker.join()
            self._worker = None

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, on_done = job
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - the caller gets it as the result
                result = error
            self._loop.call_soon_threadsafe(on_done, result)
            del job, work, on_done, result


#: Compaction keeps this many revisions for watches to resume from. It runs when the history is twice as long.
HISTORY_REVISIONS: Final = 10_000
#: Compaction also keeps at most this many bytes of objects. It runs when the history holds twice as many.
HISTORY_BYTES: Final = 64 * 1024 * 1024
#: A batch of this many changes is written although an earlier transaction is still in progress.
LARGE_BATCH_SIZE: Final = 256
#: After a transaction, the commit mark reaches the disk within this time. It is flushed once for all transactions.
MARK_FLUSH_SECONDS: Final = 0.1
#: If more changes than this are not durable, the event loop pauses, since callers would wait longer and longer.
UNDURABLE_CHANGES_MAX: Final = 2048
#: After a transaction, the notified callers run for this many loop iterations before the next batch is written.
CALLBACK_ITERATIONS: Final = 3

_TransactionResult: TypeAlias = tuple[int, float]
"""The result of a transaction: the size of its objects in bytes, and its duration in seconds."""
DurableCallback: TypeAlias = Callable[[JournalError | None], None]
"""Called with None once a revision is durable, or with the error if it cannot become durable."""


class DurableWatch(Protocol):
    """A watch, or another consumer of store changes, that receives changes only once the journal holds them."""

    def process_changes(self, changes: Iterable[WatchEvent]) -> None:
        """Receive changes that are now durable in the journal."""

    def forget_changes(self, revision: int) -> None:
        """Stop to hold the changes up to a revision, which the history dropped because their objects are large."""

    def end(self) -> None:
        """End the watch, because no further changes follow."""


class ReplicationGate(Protocol):
    """Decides when changes that the journal holds are published, if the platform has a standby."""

    def process_written(self, changes: Sequence[WatchEvent]) -> None:
        """Pass the next changes in the journal to `GroupCommit.publish`, once the standby has them."""

    def refusal(self) -> JournalError | None:
        """Return why the platform must not respond now, because its standby may have taken over; None if it may."""


class GroupCommit:
    """Writes store changes to the journal in batches, and then notifies waiting callers and watches."""

    def __init__(
        self, store: Store, journal: RevisionJournal, loop: asyncio.AbstractEventLoop, on_failure: Callable[[], None]
    ) -> None:
        self._store = store
        self._journal = journal
        self._loop = loop
        self._writer = BackgroundThread(loop)
        self._on_failure = on_failure
        self._collected_changes: list[WatchEvent] = []
        self._waiting_callers: deque[tuple[int, DurableCallback]] = deque()
        self._watches: dict[DurableWatch, None] = {}
        #: The number of transactions that the writer thread has not completed, and whether a batch is scheduled.
        self._transactions_in_progress = 0
        self._is_batch_scheduled = False
        #: Whether a write has failed or is in progress. Used only by the writer thread.
        self._is_broken = False
        #: The revision up to which a compaction of the journal was requested.
        self._compaction_floor = journal.compacted_revision
        self._all_written: asyncio.Future[None] | None = None
        self._mark_flush_timer: asyncio.TimerHandle | None = None
        self._is_ending = False
        #: The bytes of objects that each transaction in the history wrote, with its last revision, and their sum.
        self._transaction_sizes: deque[tuple[int, int]] = deque()
        self._history_size = 0
        #: Called with the duration of each transaction in seconds.
        self.on_commit: Callable[[float], None] = _ignore_commit
        #: The error because of which the journal is no longer written; None while it is written.
        self.failure: JournalError | None = None
        #: The last revision that is durable, and the last one in the journal, which a standby may lack.
        self.durable_revision = self.written_revision = store.revision
        #: Decides when changes in the journal are durable; None without a standby.
        self.replication: ReplicationGate | None = None
        store.listen(self._collect_change)

    def events_since(self, revision: int) -> Sequence[WatchEvent]:
        """Return the durable changes after a revision. Raises ExpiredRevision if some were dropped."""
        return [change for change in self.changes_since(revision) if change.revision <= self.durable_revision]

    def changes_since(self, revision: int) -> Sequence[WatchEvent]:
        """Return all changes after a revision, durable or not. Raises ExpiredRevision if some were dropped."""
        return self._store.changes_since(revision)

    def subscribe(self, watch: DurableWatch) -> None:
        """Register a watch, which receives all changes that become durable from now on.

        After `end_watches`, the watch is ended at once.
        """
        self._watches[watch] = None
        if self._is_ending:
            watch.end()

    def unsubscribe(self, watch: object) -> None:
        """Unregister a watch, which then receives no more changes."""
        self._watches.pop(watch, None)  # type: ignore[call-overload]

    def when_durable(self, revision: int, on_durable: DurableCallback) -> None:
        """Call `on_durable` with None once a revision is in the journal, or with the error if it cannot be written."""
        refusal = None if self.replication is None else self.replication.refusal()
        if refusal is not None:
            on_durable(refusal)
        elif revision <= self.durable_revision or self.failure is not None:
            on_durable(None if revision <= self.durable_revision else self.failure)
        else:
            self._waiting_callers.append((revision, on_durable))

    def is_writing(self) -> bool:
        """Return whether a transaction of the journal is in progress."""
        return self._transactions_in_progress > 0

    def is_behind(self) -> bool:
        """Return whether more than UNDURABLE_CHANGES_MAX changes wait for the journal, so that work must pause.

        After a failure of the journal, return False.
        """
        return self._store.revision - self.durable_revision > UNDURABLE_CHANGES_MAX and self.failure is None

    def fail(self, error: JournalError) -> None:
        """Reject all waiting and later writes with an error, and end the platform."""
        self._process_journal_failure(error)

    def end_watches(self) -> None:
        """End all registered watches and all watches that are registered later, because the platform shuts down."""
        self._is_ending = True
        for watch in list(self._watches):
            watch.end()

    async def close(self) -> None:
        """Wait until the remaining changes are written or a write has failed, then stop the writer thread."""
        while self._collected_changes or self._transactions_in_progress:
            if self._all_written is None or self._all_written.done():
                self._all_written = self._loop.create_future()
            await asyncio.shield(self._all_written)
        if self._mark_flush_timer is not None:
            self._mark_flush_timer.cancel()
        self._writer.end()

    def _collect_change(self, change: WatchEvent) -> None:
        if self.failure is not None:
            return
        self._collected_changes.append(change)
        if len(self._collected_changes) >= LARGE_BATCH_SIZE:
            self._start_transaction()
        elif not self._transactions_in_progress and not self._is_batch_scheduled:
            self._is_batch_scheduled = True
            self._loop.call_soon(self._write_batch_after, 0)

    def _write_batch_after(self, iterations: int) -> None:
        if iterations:
            self._loop.call_soon(self._write_batch_after, iterations - 1)
            return
        self._is_batch_scheduled = False
        if self._collected_changes and not self._transactions_in_progress:
            self._start_transaction()

    def _start_transaction(self) -> None:
        changes, self._collected_changes = self._collected_changes, []
        self._transactions_in_progress += 1
        self._writer.submit(partial(self._append_changes, changes), partial(self._process_result, changes))

    def _process_result(self, changes: Sequence[WatchEvent], result: _TransactionResult | Exception) -> None:
        self._transactions_in_progress -= 1
        try:
            if isinstance(result, Exception):
                self._process_journal_failure(result)
            else:
                self._process_success(changes, *result)
        finally:
            self._schedule_next_batch()

    def _process_success(self, changes: Sequence[WatchEvent], object_bytes: int, transaction_seconds: float) -> None:
        self.on_commit(transaction_seconds)
        self.written_revision = changes[-1].revision
        self._record_size(object_bytes)
        if self._mark_flush_timer is None:
            self._mark_flush_timer = self._loop.call_later(MARK_FLUSH_SECONDS, self._flush_commit_mark)
        if self.replication is None:
            self.publish(changes)
        else:
            self.replication.process_written(changes)

    def publish(self, changes: Sequence[WatchEvent]) -> None:
        """Pass durable changes to the watches, and notify the callers that wait for them."""
        self.durable_revision = changes[-1].revision
        self._deliver_to_watches(changes)
        while self._waiting_callers and self._waiting_callers[0][0] <= self.durable_revision:
            self._waiting_callers.popleft()[1](None)
        if self.durable_revision - self._compaction_floor > 2 * HISTORY_REVISIONS:
            self._compact_journal(self.durable_revision - HISTORY_REVISIONS)
        if self._history_size > 2 * HISTORY_BYTES:
            self._shorten_watch_history()

    def _schedule_next_batch(self) -> None:
        """Schedule the next batch, late enough that it includes changes by the callers that were just notified.

        If all changes are written, resume `close`.
        """
        if self._transactions_in_progress:
            return
        if self._collected_changes:
            if not self._is_batch_scheduled:
                self._is_batch_scheduled = True
                self._loop.call_soon(self._write_batch_after, CALLBACK_ITERATIONS)
        elif self._all_written is not None and not self._all_written.done():
            self._all_written.set_result(None)

    def _deliver_to_watches(self, changes: Sequence[WatchEvent]) -> None:
        """Pass durable changes to all watches. An exception of one watch does not affect other watches."""
        with ExitStack() as stack:
            for watch in reversed(self._watches):
                stack.callback(watch.process_changes, changes)

    def _record_size(self, object_bytes: int) -> None:
        self._transaction_sizes.append((self.written_revision, object_bytes))
        self._history_size += object_bytes
        while self._transaction_sizes[0][0] <= self.written_revision - 2 * HISTORY_REVISIONS:
            self._history_size -= self._transaction_sizes.popleft()[1]

    def _shorten_watch_history(self) -> None:
        revision = 0
        while self._history_size > HISTORY_BYTES and self._transaction_sizes[0][0] <= self.durable_revision:
            revision, transaction_size = self._transaction_sizes.popleft()
            self._history_size -= transaction_size
        self._store.forget_changes(revision)
        for watch in list(self._watches):
            watch.forget_changes(revision)
        self._compact_journal(revision)

    def _compact_journal(self, floor: int) -> None:
        if floor > self._compaction_floor:
            self._compaction_floor = floor
            self._writer.submit(
                partial(self._run_write, partial(self._journal.compact, floor)), self._process_maintenance
            )

    def _flush_commit_mark(self) -> None:
        self._mark_flush_timer = None
        if self.failure is None:
            self._writer.submit(partial(self._run_write, self._journal.flush_commit_mark), self._process_maintenance)

    def _process_maintenance(self, result: Exception | None) -> None:
        if result is not None:
            self._process_journal_failure(result)

    def _process_journal_failure(self, error: Exception) -> None:
        if self.failure is not None:
            return
        self.failure = (
            error
            if isinstance(error, JournalError)
            else JournalError(
                f"unexpected {type(error).__name__} in a write of the journal: {error}; restart the platform"
            )
        )
        self._collected_changes.clear()
        while self._waiting_callers:
            self._waiting_callers.popleft()[1](self.failure)
        self._on_failure()

    # --- on the writer thread ---

    def _append_changes(self, changes: Sequence[WatchEvent]) -> _TransactionResult:
        began_at = monotonic_seconds()
        return self._run_write(partial(self._journal.append, changes)), monotonic_seconds() - began_at

    def _run_write(self, work: Callable[[], _T]) -> _T:
        """Run a write of the journal. Raises JournalError if an earlier write failed: the journal must have no gaps."""
        if self._is_broken:
            raise JournalError("an earlier write to the journal failed, so no more are accepted: restart the platform")
        self._is_broken = True
        result = work()
        self._is_broken = False
        return result


def _ignore_commit(_seconds: float) -> None:
    pass
