"""Group commit: changes gather while the last ones are written, and are written together.

Once so many have gathered that more would not make it cheaper they do not wait for the last ones: else the thread that
makes them would have nothing to do while all who may ask for something wait for their answers.

Whoever waits for a revision is told when it is durable; watches outside the process are fed then and not before, so
that nobody has seen what a crash takes back. Where the journal cannot be written any more (the disk is full) the state
in memory is ahead of it for good: whoever waits is told that nothing was kept, and the platform has to end.
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
from batchyard.store.commit_mark import JournalError
from batchyard.store.journal import Journal
from batchyard.store.memory import Store

# --- writer ---
#
# A thread that does what would hold the event loop up, one thing after the other.
#
# `run_in_executor` does the same by way of two futures, a lock and a condition for each, which refer to each other
# until
# garbage is looked for; and a future tells of its result a turn of the loop later.


_T = TypeVar("_T")
_Job: TypeAlias = tuple[Callable[[], Any], Callable[[Any], None]]


class Writer:
    """See the module. It begins with the first thing to do."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: Thread | None = None

    def do(self, work: Callable[[], _T], done: Callable[[_T | Exception], None]) -> None:
        """Do that; the loop is told what comes of it, or what went wrong."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name="writer", daemon=True)
            self._thread.start()
        self._jobs.put((work, done))

    def end(self) -> None:
        """Do what waits, and no more."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, done = job
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                result = error
            self._loop.call_soon_threadsafe(done, result)
            del job, work, done, result


#: Compaction keeps so many revisions for watches to go on from, and comes when there are twice as many.
HISTORY: Final = 10_000
#: And no more bytes of objects than these, but for twice as many before it is looked at.
HISTORY_BYTES: Final = 64 * 1024 * 1024
#: So many changes are written though the last ones are not yet.
ENOUGH: Final = 256
#: With so many changes that are not durable yet no more are to be made: whoever waits would wait ever longer.
BEHIND_MAX: Final = 2048
#: For so many turns of the loop those go on who were told, before what has gathered is written.
TURNS: Final = 3

_Written: TypeAlias = tuple[int, float]
"""Of a transaction: how many bytes its objects have, and the seconds it took."""
Told: TypeAlias = Callable[[JournalError | None], None]
"""Is told that a revision is durable, or why it never will be."""


class Follower(Protocol):
    """A watch, or whoever else is fed with what became durable."""

    def feed(self, changes: Iterable[WatchEvent]) -> None:
        """Take in what happened."""

    def end(self) -> None:
        """Nothing will come any more."""


class GroupCommit:
    """See the module."""

    def __init__(
        self, store: Store, journal: Journal, loop: asyncio.AbstractEventLoop, on_failure: Callable[[], None]
    ) -> None:
        self._store = store
        self._journal = journal
        self._loop = loop
        self._writer = Writer(loop)
        self._on_failure = on_failure
        self._gathered: list[WatchEvent] = []
        self._waiting: deque[tuple[int, Told]] = deque()
        self._watches: dict[Follower, None] = {}
        #: How many transactions the thread that writes has yet to tell of, and whether what gathers is looked at soon.
        self._handed_over = 0
        self._is_due = False
        #: Whether something was begun and did not come to its end; for the thread that writes.
        self._is_broken = False
        #: Up to where the journal is compact, or was asked to be.
        self._floor = journal.floor
        self._settled: asyncio.Future[None] | None = None
        self._is_ending = False
        #: How many bytes of objects each transaction wrote, of those that history holds; and all of them.
        self._sizes: deque[tuple[int, int]] = deque()
        self._bytes = 0
        #: Is told how many seconds each transaction took.
        self.on_commit: Callable[[float], None] = _nobody
        #: Why nothing is kept any more; None as long as all is.
        self.failure: JournalError | None = None
        #: The last revision that is durable.
        self.durable = store.revision
        store.listen(self._gather)

    def since(self, revision: int) -> Sequence[WatchEvent]:
        """The durable changes after a revision; Expired where they are no longer known."""
        return [change for change in self.changes_since(revision) if change.revision <= self.durable]

    def changes_since(self, revision: int) -> Sequence[WatchEvent]:
        """All changes after a revision, durable or not; Expired where they are no longer known."""
        return self._store.changes_since(revision)

    def join(self, watch: Follower) -> None:
        """Feed a watch with all that becomes durable."""
        self._watches[watch] = None
        if self._is_ending:
            watch.end()

    def leave(self, watch: object) -> None:
        """Feed a watch no more."""
        self._watches.pop(watch, None)  # type: ignore[call-overload]

    def when_durable(self, revision: int, done: Told) -> None:
        """Call back once a revision is durable, or once it is known that it never will be."""
        if revision <= self.durable or self.failure is not None:
            done(None if revision <= self.durable else self.failure)
        else:
            self._waiting.append((revision, done))

    def is_behind(self) -> bool:
        """Whether more is made than is written."""
        return self._store.revision - self.durable > BEHIND_MAX and self.failure is None

    def end_watches(self) -> None:
        """End all watches, those that are yet to come too."""
        self._is_ending = True
        for watch in list(self._watches):
            watch.end()

    async def close(self) -> None:
        """Write what is left."""
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
            self._loop.call_soon(self._come, 0)

    def _come(self, turns: int) -> None:
        """Have written what has gathered after so many turns, unless that is to wait for what is written now."""
        if turns:
            self._loop.call_soon(self._come, turns - 1)
            return
        self._is_due = False
        if self._gathered and not self._handed_over:
            self._hand_over()

    def _hand_over(self) -> None:
        changes, self._gathered = self._gathered, []
        self._handed_over += 1
        self._writer.do(partial(self._append, changes), partial(self._written, changes))

    def _written(self, changes: Sequence[WatchEvent], result: _Written | Exception) -> None:
        """Take note of a transaction; whoever has a defect is told of by the loop, and the rest is written."""
        self._handed_over -= 1
        try:
            if isinstance(result, Exception):
                self._fail(result)
            else:
                self._keep(changes, *result)
        finally:
            self._go_on()

    def _keep(self, changes: Sequence[WatchEvent], size: int, seconds: float) -> None:
        self.on_commit(seconds)
        self.durable = changes[-1].revision
        self._weigh(size)
        self._tell(changes)
        while self._waiting and self._waiting[0][0] <= self.durable:
            self._waiting.popleft()[1](None)
        if self.durable - self._floor > 2 * HISTORY:
            self._compact(self.durable - HISTORY)
        if self._bytes > 2 * HISTORY_BYTES:
            self._forget()

    def _go_on(self) -> None:
        """Come back for what has gathered once those who were just told had turns: what they do is written with it."""
        if self._handed_over:
            return
        if self._gathered:
            if not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._come, TURNS)
        elif self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

    def _tell(self, changes: Sequence[WatchEvent]) -> None:
        """Feed all watches; a defect in one keeps nothing from the others."""
        with ExitStack() as stack:
            for watch in reversed(self._watches):
                stack.callback(watch.feed, changes)

    def _weigh(self, size: int) -> None:
        """Take note of what the last transaction wrote, and no more of what history has lost."""
        self._sizes.append((self.durable, size))
        self._bytes += size
        while self._sizes[0][0] <= self.durable - 2 * HISTORY:
            self._bytes -= self._sizes.popleft()[1]

    def _forget(self) -> None:
        """Keep less history than there is room for: its objects are large."""
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
        """Keep nothing any more; whoever waits is told."""
        if self.failure is not None:
            return
        self.failure = error if isinstance(error, JournalError) else JournalError(f"a defect: {error!r}")
        self._gathered.clear()
        while self._waiting:
            self._waiting.popleft()[1](self.failure)
        self._on_failure()

    # --- by the thread that writes ---

    def _append(self, changes: Sequence[WatchEvent]) -> _Written:
        began = ticks()
        return self._in_order(partial(self._journal.append, changes)), ticks() - began

    def _in_order(self, work: Callable[[], _T]) -> _T:
        """What comes after something that was not written is not written either."""
        if self._is_broken:
            raise JournalError("what came before was not written")
        self._is_broken = True
        result = work()
        self._is_broken = False
        return result


def _nobody(_seconds: float) -> None:
    pass
