"""A client that fails: it loses what a crash loses, and answers writes with conflicts.

The platform writes through it where a scenario has such faults. A crash comes between two writes: what was written
before is there, the rest of the outcome is lost, and nobody hears of anything any more.
"""

from collections.abc import Callable, Sequence

from batchyard.api.errors import Conflict
from batchyard.api.meta import Key, Obj
from batchyard.client.local import LocalClient
from batchyard.interfaces.client import Listener, Write, WriteResult


class Trouble:
    """What goes wrong between the platform and its objects: some writes meet a conflict, or a crash comes."""

    def __init__(self, conflicts: float = 0.0) -> None:
        #: The share of writes that meet a conflict when nothing else goes wrong, from 0 to 1.
        self.conflicts_always = conflicts
        #: The share of writes that meet a conflict now; they are spread evenly.
        self.conflicts = conflicts
        #: Called after each write of the platform that was taken, with how many there were.
        self.on_write: Callable[[int], None] | None = None
        self._asked = 0
        self._written = 0

    def refuses(self) -> bool:
        """Whether the next write meets a conflict."""
        self._asked += 1
        return int(self._asked * self.conflicts) > int((self._asked - 1) * self.conflicts)

    def wrote(self) -> None:
        """A write was taken."""
        self._written += 1
        if self.on_write is not None:
            self.on_write(self._written)


class FaultyClient:
    """A client in front of the one that works, until a crash."""

    def __init__(self, client: LocalClient, trouble: Trouble) -> None:
        self._client = client
        self._trouble = trouble
        self._listeners: list[Listener] = []
        self._is_cut = False

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""
        return self._client.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """All objects of a kind, sorted by namespace and name."""
        return self._client.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """What an owner in a namespace, or in none (''), has by its uid, sorted by kind, namespace and name."""
        return self._client.owned_by(uid, namespace)

    def subscribe(self, listener: Listener) -> None:
        """Tell a listener of every later change, until the crash."""
        self._listeners.append(listener)
        self._client.subscribe(listener)

    def settled(self) -> bool:
        """Whether all changes and all results of writes have been delivered."""
        return self._client.settled()

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        """Take writes until a crash comes; refuse one, if a conflict is to come."""
        for write in writes:
            if self._is_cut:
                return
            result = self._attempt(write)
            if result.error is not None:
                break
        self._client.answer(done, result)

    def _attempt(self, write: Write) -> WriteResult:
        if self._trouble.refuses():
            return WriteResult(None, Conflict("the object has been modified; please apply your changes again"))
        result = self._client.attempt(write)
        if result.error is None:
            self._trouble.wrote()
        return result

    def cut(self) -> None:
        """The crash: nothing is told any more, nothing is written."""
        self._is_cut = True
        for listener in self._listeners:
            self._client.unsubscribe(listener)
        self._listeners.clear()
