"""Watches: cursors into the revision log, read at the watcher's own pace.

A watch is never called; it is asked. So a slow watcher delays nobody and nothing is called re-entrantly. `revision` is
where it stands: a bookmark for whoever wants to watch on from there later.
"""

from collections.abc import Sequence

from batchyard.ports.client import WatchEvent
from batchyard.store.log import RevisionLog


class Watch:
    """All changes after a revision, each taken once."""

    __slots__ = ("_log", "revision")

    def __init__(self, log: RevisionLog, since: int) -> None:
        self._log = log
        self.revision = since

    def take(self) -> Sequence[WatchEvent]:
        """The changes since the last call; Expired if the window of history has moved past them."""
        if self.revision == self._log.revision:
            return ()
        events = self._log.since(self.revision)
        self.revision = self._log.revision
        return events
