"""The append-only log of revisions: each change once, in order, with a bounded window of history.

Every change to the store is one entry with the next revision. Listeners are called with each entry as it is appended. A
listener must not append, so no listener is called re-entrantly. The durable log is such a listener. Watches read the
window at their own pace instead (memory.py). An entry that has left the window is gone, and a watch that still needs it
must list again.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.errors import ApiError
from batchyard.api.meta import Key, Obj
from batchyard.base.invariants import invariant
from batchyard.interfaces.client import WatchEvent

Listener: TypeAlias = Callable[[WatchEvent], None]

WINDOW: Final = 1024  # number of entries; enough for a watcher that is a few batches late


class Expired(ApiError):  # noqa: N818 - named as the reasons of Kubernetes
    """The revision has left the window of history (410 Gone): list again and watch from there."""

    reason = "Expired"


class RecoveredStore(NamedTuple):
    """The recovered state of a store: the current objects, and the last changes in order, up to its revision."""

    revision: int
    objects: Mapping[Key, Obj]
    changes: Sequence[WatchEvent]


class RevisionLog:
    """All changes in order of revision; the last `window` of them can be read again."""

    __slots__ = ("_entries", "_listeners", "_reporting", "revision")

    def __init__(self, window: int = WINDOW, recovered: RecoveredStore | None = None) -> None:
        invariant(window >= 1, "the window of history holds at least one entry")
        self._entries: deque[WatchEvent] = deque(recovered.changes if recovered else (), maxlen=window)
        self._listeners: list[Listener] = []
        self._reporting = False
        self.revision = recovered.revision if recovered else 0

    def listen(self, listener: Listener) -> None:
        """Call this listener with every later entry, in order."""
        self._listeners.append(listener)

    def append(self, entry: WatchEvent) -> None:
        """Add the next entry and call the listeners."""
        assert not self._reporting, "a listener of the log must not write"
        self._reporting = True
        self.revision = entry.revision
        self._entries.append(entry)
        for listener in self._listeners:
            listener(entry)
        self._reporting = False

    def since(self, revision: int) -> Sequence[WatchEvent]:
        """Return all entries after a revision; Expired if the window no longer reaches back to it."""
        wanted = self.revision - revision
        invariant(wanted >= 0, "a requested revision is not newer than the log")
        if wanted > len(self._entries):
            oldest = self.revision - len(self._entries)
            raise Expired(f"too old resource version: {revision} ({oldest}); list again and watch from there")
        return list(islice(self._entries, len(self._entries) - wanted, None))

    def forget(self, revision: int) -> None:
        """Drop the entries up to a revision, although there is room for more."""
        while self._entries and self._entries[0].revision <= revision:
            self._entries.popleft()

    def validate(self) -> None:
        """Check the invariants between two appends."""
        revisions = [entry.revision for entry in self._entries]
        last = self.revision
        invariant(revisions == list(range(last - len(revisions) + 1, last + 1)), "the window has no gap")
