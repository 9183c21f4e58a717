"""A client with faults: it drops what a crash loses, and rejects writes with conflicts.

The platform uses it if the scenario has such faults. A crash comes between two writes: earlier writes are stored, the
rest of the outcome is lost, and no further events are delivered.
"""

from collections.abc import Callable, Sequence

from batchyard.api.errors import Conflict
from batchyard.api.meta import Key, Obj
from batchyard.client.local import LocalClient
from batchyard.interfaces.client import Listener, Write, WriteResult


class WriteFaults:
    """Faults between the platform and the store: the rate of conflicts, and a callback that can crash the platform."""

    def __init__(self, conflicts: float = 0.0) -> None:
        #: The baseline share of writes that conflict, from 0 to 1.
        self.conflicts_always = conflicts
        #: The current share of writes that conflict; they are spread evenly.
        self.conflicts = conflicts
        #: Called after each accepted write of the platform, with the number of these writes.
        self.on_write: Callable[[int], None] | None = None
        self._asked = 0
        self._written = 0

    def refuses(self) -> bool:
        """Whether the next write meets a conflict."""
        self._asked += 1
        return int(self._asked * self.conflicts) > int((self._asked - 1) * self.conflicts)

    def wrote(self) -> None:
        """Count an accepted write."""
        self._written += 1
        if self.on_write is not None:
            self.on_write(self._written)


class FaultyClient:
    """A client in front of the real one, until a crash."""

    def __init__(self, client: LocalClient, trouble: WriteFaults) -> None:
        self._client = client
        self._trouble = trouble
        self._listeners: list[Listener] = []
        self._is_cut = False

    def get(self, key: Key) -> Obj | None:
        """Return the object, or None."""
        return self._client.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name."""
        return self._client.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the objects controlled by an owner, by its uid and namespace (or none), sorted by kind and name."""
        return self._client.owned_by(uid, namespace)

    def subscribe(self, listener: Listener) -> None:
        """Subscribe a listener to later changes, until the crash."""
        self._listeners.append(listener)
        self._client.subscribe(listener)

    def settled(self) -> bool:
        """Whether all changes and all results of writes have been delivered."""
        return self._client.settled()

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        """Apply writes in order until a crash or an error; some are rejected with a conflict."""
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
        """Crash: deliver no more events, and accept no more writes."""
        self._is_cut = True
        for listener in self._listeners:
            self._client.unsubscribe(listener)
        self._listeners.clear()
