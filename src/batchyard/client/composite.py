"""A client that combines the objects of a store with the container runs of this machine."""

from collections.abc import Callable, Sequence
from typing import Protocol

from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import Delete, Listener, ObjectClient, Write, WriteResult
from batchyard.interfaces.containers import RUN, ContainerRuntime


class ResultDeliveringClient(ObjectClient, Protocol):
    """A client that can also deliver results of writes done elsewhere."""

    def answer(self, done: Callable[[WriteResult], None], result: WriteResult) -> None:
        """Deliver a result to its writer from the event loop."""


class CompositeClient:
    """Sends writes of runs to the machine and all others to the client; in one submission, runs come first."""

    def __init__(self, objects: ResultDeliveringClient, machine: ContainerRuntime) -> None:
        self._objects = objects
        self._machine = machine

    def get(self, key: Key) -> Obj | None:
        """Return the object, or None."""
        return self._machine.run(key) if key.kind == RUN else self._objects.get(key)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name; for runs those of a pod, by its uid."""
        return self._machine.runs(namespace) if kind == RUN else self._objects.list(kind, namespace)

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return all objects with an owner reference to that uid."""
        return self._objects.owned_by(uid, namespace)

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        """Apply writes: those of runs at once, the others in order until one is rejected."""
        others = [write for write in writes if not _is_to_run(write)]
        results = [WriteResult(self._machine.do(write)) for write in writes if _is_to_run(write)]
        if others:
            self._objects.submit(others, done)
        else:
            self._objects.answer(done, results[-1])

    def subscribe(self, listener: Listener) -> None:
        """Call the listener with every later change of objects and runs."""
        self._objects.subscribe(listener)
        self._machine.subscribe(listener)

    def settled(self) -> bool:
        """Whether all changes of objects and all results of writes have been delivered."""
        return self._objects.settled()


def _is_to_run(write: Write) -> bool:
    if isinstance(write, Delete):
        return write.key.kind == RUN
    return bool(write.obj["kind"] == "Run" and write.obj["apiVersion"].startswith(RUN.partition(".")[2]))
