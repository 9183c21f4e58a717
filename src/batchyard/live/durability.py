"""Group commit: changes gather while the last ones are written, and are written together.

Whoever waits for a revision is told when it is durable; watches outside the process are fed then and not before, so
that nobody has seen what a crash takes back. Where the journal cannot be written any more (the disk is full) the state
in memory is ahead of it for good: whoever waits is told that nothing was kept, and the platform has to end.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final, Protocol, TypeAlias

from batchyard.live.clock import ticks
from batchyard.live.writer import Writer
from batchyard.ports.client import WatchEvent
from batchyard.store.journal import Journal
from batchyard.store.mark import JournalError
from batchyard.store.memory import Store

#: Compaction keeps so many revisions for watches to go on from, and comes when there are twice as many.
HISTORY: Final = 10_000
#: And no more bytes of objects than these, but for twice as many before it is looked at.
HISTORY_BYTES: Final = 64 * 1024 * 1024
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
        self._writing: asyncio.Task[None] | None = None
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

    def end_watches(self) -> None:
        """End all watches, those that are yet to come too."""
        self._is_ending = True
        for watch in list(self._watches):
            watch.end()

    async def close(self) -> None:
        """Write what is left."""
        while self._writing is not None:
            await self._writing
        self._writer.end()

    def _gather(self, change: WatchEvent) -> None:
        if self.failure is not None:
            return
        self._gathered.append(change)
        if self._writing is None:
            self._writing = self._loop.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._gathered:
                await self._write_gathered()
                await self._one_turn()
        except JournalError as error:
            self._fail(error)
        finally:
            self._writing = None
            if self._gathered:  # somebody who was told has a defect: the loop tells of it, and the rest is written
                self._writing = self._loop.create_task(self._write())

    async def _write_gathered(self) -> None:
        changes, self._gathered = self._gathered, []
        began = ticks()
        size = await self._writer.do(partial(self._journal.append, changes))
        self.on_commit(ticks() - began)
        self.durable = changes[-1].revision
        self._weigh(size)
        self._tell(changes)
        while self._waiting and self._waiting[0][0] <= self.durable:
            self._waiting.popleft()[1](None)
        if self.durable - self._journal.floor > 2 * HISTORY:
            await self._writer.do(partial(self._journal.compact, self.durable - HISTORY))
        if self._bytes > 2 * HISTORY_BYTES:
            await self._forget()

    async def _one_turn(self) -> None:
        """Let those go on who were just told: what they do next is written together."""
        turned = self._loop.create_future()
        self._loop.call_soon(self._loop.call_soon, turned.set_result, None)
        await turned

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

    async def _forget(self) -> None:
        """Keep less history than there is room for: its objects are large."""
        revision = 0
        while self._bytes > HISTORY_BYTES:
            revision, size = self._sizes.popleft()
            self._bytes -= size
        self._store.forget_changes(revision)
        if revision > self._journal.floor:
            await self._writer.do(partial(self._journal.compact, revision))

    def _fail(self, error: JournalError) -> None:
        """Keep nothing any more; whoever waits is told."""
        self.failure = error
        self._gathered.clear()
        while self._waiting:
            self._waiting.popleft()[1](error)
        self._on_failure()


def _nobody(_seconds: float) -> None:
    pass
