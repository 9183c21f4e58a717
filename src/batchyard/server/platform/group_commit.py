"""Group commit: changes that arrive during a journal write are batched into the next transaction.

A batch of `ENOUGH` changes is written without waiting for the transaction before it, because a larger batch is not
cheaper. Otherwise the event loop would idle while all clients wait for their responses.

Callers that wait for a revision are notified when it is durable. Watches of other processes receive changes only then,
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
from batchyard.server.clocks.wall import ticks
from batchyard.store.journal import RevisionJournal
from batchyard.store.journal_file import JournalError
from batchyard.store.memory import Store

# --- writer ---
#
# A thread that runs blocking work, one job after the other, off the event loop.
#
# `run_in_executor` costs two futures, a lock and a condition for each call. They form reference cycles that only the
# garbage collector frees, and a future reports its result one loop iteration later.


_T = TypeVar("_T")
_Job: TypeAlias = tuple[Callable[[], Any], Callable[[Any], None]]


class BackgroundThread:
    """A background thread with a queue of jobs, started by the first job."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._worker: Thread | None = None

    def do(self, work: Callable[[], _T], done: Callable[[_T | Exception], None]) -> None:
        """Queue a job. Its result, or the exception it raised, is passed to `done` on the event loop."""
        if self._worker is None:
            self._worker = Thread(target=self._run, name="writer", daemon=True)
            self._worker.start()
        self._jobs.put((work, done))

    def end(self) -> None:
        """Run the queued jobs, then stop the thread."""
        if self._worker is not None:
            self._jobs.put(None)
            self._worker.join()
            self._worker = None

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - the caller gets it as the result
                result = error
            self._loop.call_soon_threadsafe(done, result)
            del job, work, done, result


#: Compaction keeps this many revisions for watches to resume from. It runs when the history is twice as long.
HISTORY: Final = 10_000
#: Compaction also keeps at most this many bytes of objects. It runs when the history holds twice as many.
HISTORY_BYTES: Final = 64 * 1024 * 1024
#: A batch of this many changes is written although an earlier transaction is still in progress.
ENOUGH: Final = 256
#: At this many changes that are not durable, no further work starts: callers would wait longer and longer.
BEHIND_MAX: Final = 2048
#: After a commit, the notified callers run for this many loop iterations before the next batch is written.
TURNS: Final = 3

_Written: TypeAlias = tuple[int, float]
"""Of a transaction: the size of its objects in bytes, and its duration in seconds."""
DurableCallback: TypeAlias = Callable[[JournalError | None], None]
"""Called once a revision is durable (with None), or with the reason why it never will be."""


class DurableWatch(Protocol):
    """A watch or another consumer that receives changes once they are durable."""

    def feed(self, changes: Iterable[WatchEvent]) -> None:
        """Receive changes."""

    def end(self) -> None:
        """End: no further changes follow."""


class GroupCommit:
    """Uncommitted changes, the callers that wait for a revision, and the watches fed with durable changes."""

    def __init__(
        self, store: Store, journal: RevisionJournal, loop: asyncio.AbstractEventLoop, on_failure: Callable[[], None]
    ) -> None:
        self._store = store
        self._journal = journal
        self._loop = loop
        self._writer = BackgroundThread(loop)
        self._on_failure = on_failure
        self._gathered: list[WatchEvent] = []
        self._waiting: deque[tuple[int, DurableCallback]] = deque()
        self._watches: dict[DurableWatch, None] = {}
        #: The transactions that the writer thread has not completed, and whether `_come` is scheduled.
        self._handed_over = 0
        self._is_due = False
        #: Whether a write started and did not complete. Used by the writer thread only.
        self._is_broken = False
        #: The revision up to which the journal is compacted, or a compaction is requested.
        self._floor = journal.floor
        self._settled: asyncio.Future[None] | None = None
        self._is_ending = False
        #: The object bytes that each transaction of the history wrote, by its last revision, and their sum.
        self._sizes: deque[tuple[int, int]] = deque()
        self._bytes = 0
        #: Called with the duration of each transaction in seconds.
        self.on_commit: Callable[[float], None] = _ignore_commit
        #: Why the journal is no longer written; None while it is.
        self.failure: JournalError | None = None
        #: The last revision that is durable.
        self.durable = store.revision
        store.listen(self._gather)

    def since(self, revision: int) -> Sequence[WatchEvent]:
        """Return the durable changes after a revision. Raises Expired if they are compacted."""
        return [change for change in self.changes_since(revision) if change.revision <= self.durable]

    def changes_since(self, revision: int) -> Sequence[WatchEvent]:
        """Return all changes after a revision, durable or not. Raises Expired if they are compacted."""
        return self._store.changes_since(revision)

    def join(self, watch: DurableWatch) -> None:
        """Feed a watch with all changes that become durable."""
        self._watches[watch] = None
        if self._is_ending:
            watch.end()

    def leave(self, watch: object) -> None:
        """Stop feeding a watch."""
        self._watches.pop(watch, None)  # type: ignore[call-overload]

    def when_durable(self, revision: int, done: DurableCallback) -> None:
        """Call `done` once a revision is durable, or once it is known that it never will be."""
        if revision <= self.durable or self.failure is not None:
            done(None if revision <= self.durable else self.failure)
        else:
            self._waiting.append((revision, done))

    def is_behind(self) -> bool:
        """Whether the journal is too far behind the state in memory."""
        return self._store.revision - self.durable > BEHIND_MAX and self.failure is None

    def end_watches(self) -> None:
        """End all watches, including those that join later."""
        self._is_ending = True
        for watch in list(self._watches):
            watch.end()

    async def close(self) -> None:
        """Write the remaining changes, then stop the writer thread."""
        while self._gathered or self._handed_over:
            if self._settled is None or self._settled.done():
                self._settled = self._loop.create_future()
            await asyncio.shield(self._settled)
        self._writer.end()

    def _gather(self, change: WatchEvent) -> None:
        if self.failure is not None:
            return
        self._gathered.append(change)
        if len(self._gathered) >= ENOUGH:
            self._hand_over()
        elif not self._handed_over and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._write_batch_after, 0)

    def _write_batch_after(self, turns: int) -> None:
        """Write the gathered changes after this many loop iterations, unless a transaction is in progress by then."""
        if turns:
            self._loop.call_soon(self._write_batch_after, turns - 1)
            return
        self._is_due = False
        if self._gathered and not self._handed_over:
            self._hand_over()

    def _hand_over(self) -> None:
        changes, self._gathered = self._gathered, []
        self._handed_over += 1
        self._writer.do(partial(self._append, changes), partial(self._written, changes))

    def _written(self, changes: Sequence[WatchEvent], result: _Written | Exception) -> None:
        """Record the result of a transaction. An exception of a callback does not stop the next batch."""
        self._handed_over -= 1
        try:
            if isinstance(result, Exception):
                self._fail(result)
            else:
                self._keep(changes, *result)
        finally:
            self._schedule_next_batch()

    def _keep(self, changes: Sequence[WatchEvent], size: int, seconds: float) -> None:
        self.on_commit(seconds)
        self.durable = changes[-1].revision
        self._record_size(size)
        self._feed_watches(changes)
        while self._waiting and self._waiting[0][0] <= self.durable:
            self._waiting.popleft()[1](None)
        if self.durable - self._floor > 2 * HISTORY:
            self._compact(self.durable - HISTORY)
        if self._bytes > 2 * HISTORY_BYTES:
            self._forget()

    def _schedule_next_batch(self) -> None:
        """Schedule the next batch, after the notified callers had time to run: their changes are written with it."""
        if self._handed_over:
            return
        if self._gathered:
            if not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._write_batch_after, TURNS)
        elif self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _feed_watches(self, changes: Sequence[WatchEvent]) -> None:
        """Feed all watches. An exception in one does not affect the others."""
        with ExitStack() as stack:
            for watch in reversed(self._watches):
                stack.callback(watch.feed, changes)

    def _record_size(self, size: int) -> None:
        """Record the size of the last transaction, and drop the sizes of revisions that left the history."""
        self._sizes.append((self.durable, size))
        self._bytes += size
        while self._sizes[0][0] <= self.durable - 2 * HISTORY:
            self._bytes -= self._sizes.popleft()[1]

    def _forget(self) -> None:
        """Shorten the history to `HISTORY_BYTES`, because its objects are large."""
        revision = 0
        while self._bytes > HISTORY_BYTES:
            revision, size = self._sizes.popleft()
            self._bytes -= size
        self._store.forget_changes(revision)
        self._compact(revision)

    def _compact(self, floor: int) -> None:
        if floor > self._floor:
            self._floor = floor
            self._writer.do(partial(self._in_order, partial(self._journal.compact, floor)), self._compacted)

    def _compacted(self, result: Exception | None) -> None:
        if result is not None:
            self._fail(result)

    def _fail(self, error: Exception) -> None:
        """Stop writing to the journal, and report the error to all waiting callers."""
        if self.failure is not None:
            return
        self.failure = error if isinstance(error, JournalError) else JournalError(f"a defect: {error!r}")
        self._gathered.clear()
        while self._waiting:
            self._waiting.popleft()[1](self.failure)
        self._on_failure()

    # --- on the writer thread ---

    def _append(self, changes: Sequence[WatchEvent]) -> _Written:
        began = ticks()
        return self._in_order(partial(self._journal.append, changes)), ticks() - began

    def _in_order(self, work: Callable[[], _T]) -> _T:
        """Run a write, unless an earlier one failed: the journal must not have gaps. Raises JournalError."""
        if self._is_broken:
            raise JournalError("an earlier write failed")
        self._is_broken = True
        result = work()
        self._is_broken = False
        return result


def _ignore_commit(_seconds: float) -> None:
    pass
