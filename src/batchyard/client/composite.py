"""A client whose objects are those of a store and, beside them, the runs of this machine."""

from collections.abc import Callable, Sequence
from typing import Protocol

from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import Client, Delete, Listener, Write, WriteResult
from batchyard.interfaces.containers import RUN, Machine


class Answering(Client, Protocol):
    """A client that can tell the writers of others what became of their writes."""

    def answer(self, done: Callable[[WriteResult], None], result: WriteResult) -> None:
        """Tell a writer, through the kernel."""


class BesideMachine:
    """See the module. Of writes submitted together those to runs are done first."""

    def __init__(self, objects: Answering, machine: Machine) -> None:
        self._objects = objects
        self._machine = machine

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""
        return self._machine.run(key) if key.kind == RUN else self._objects.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """All objects of a kind, sorted by namespace and name; of runs those of a pod, by its uid."""
        return self._machine.runs(namespace) if kind == RUN else self._objects.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """All objects with an owner reference to that uid."""
        return self._objects.owned_by(uid, namespace)

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        """Take writes: those to runs are done at once, the others in order until one is refused."""
        others = [write for write in writes if not _is_to_run(write)]
        results = [WriteResult(self._machine.do(write)) for write in writes if _is_to_run(write)]
        if others:
            self._objects.submit(others, done)
        else:
            self._objects.answer(done, results[-1])

    def subscribe(self, listener: Listener) -> None:
        """Tell a listener of every later change, of objects and of runs."""
        self._objects.subscribe(listener)
        self._machine.subscribe(listener)

    def settled(self) -> bool:
        """Whether all changes of objects and all results of writes have been delivered."""
        return self._objects.settled()


def _is_to_run(write: Write) -> bool:
    if isinstance(write, Delete):
        return write.key.kind == RUN
    return bool(write.obj["kind"] == "Run" and write.obj["apiVersion"].startswith(RUN.partition(".")[2]))
