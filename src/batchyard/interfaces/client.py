"""Reading and writing objects: what a controller sees of the world, and the writes it may intend.

A Reader never blocks: it is a cache of the objects, in process or filled by watches. A Writer takes writes and
answers later, through the kernel, after their own watch events have been delivered.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias

from batchyard.api.errors import ApiError
from batchyard.api.meta import Key, Obj


class EventType(StrEnum):
    """What happened to an object, as watches say it."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class WatchEvent(NamedTuple):
    """One change. `old` is None when the object was added; for DELETED, `obj` is the last state."""

    type: EventType
    key: Key
    obj: Obj
    old: Obj | None
    revision: int


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object. Its uid and creation time are kept where given, else made."""

    obj: Obj


@dataclass(frozen=True, slots=True)
class Update:
    """Replace metadata, spec and all else but the status. A resourceVersion in the object must be the current one."""

    obj: Obj
    #: Who cares for which field from now on, as `managedFields` has it; None: as it was.
    managed_fields: Sequence[Obj] | None = None
    #: Replace the status too: it is no part of its own.
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class UpdateStatus:
    """Replace the status alone. A resourceVersion in the object must be the current one."""

    obj: Obj
    managed_fields: Sequence[Obj] | None = None


class Propagation(StrEnum):
    """What becomes of the objects that a deleted one owns: they go after it, or before it, or stay without it."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object; with finalizers it is only marked, and goes when the last one is removed.

    A pod that may be running is marked too: its kubelet stops it, and deletes it with no grace.
    """

    key: Key
    #: Seconds a pod has to stop; None: what its spec says. Nothing else has grace.
    grace: int | None = None
    propagation: Propagation = Propagation.BACKGROUND
    #: The object is deleted only if this is its uid.
    uid: str | None = None


Write: TypeAlias = Create | Update | UpdateStatus | Delete


class WriteResult(NamedTuple):
    """What became of a write: the object as stored, or the error."""

    obj: Obj | None
    error: ApiError | None = None
    #: Of several that were submitted together, the one that was refused.
    refused: Write | None = None


class Reader(Protocol):
    """The objects as last seen."""

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """All objects of a kind, sorted by namespace and name."""

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """What an owner in a namespace, or in none (''), has by its uid, sorted by kind, namespace and name.

        Whatever names an owner of another namespace is not its.
        """


class Writer(Protocol):
    """Where writes go."""

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        """Take writes, at least one, to be done in order until one is refused.

        `done` is called once, with the result of the last that was tried; later, through the kernel, never from within.
        """


Listener: TypeAlias = Callable[[Sequence[WatchEvent]], None]


class Client(Reader, Writer, Protocol):
    """A reader and writer that tells of changes: what the runner drives controllers with."""

    def subscribe(self, listener: Listener) -> None:
        """Tell a listener of every later change, in order, in batches, through the kernel, never from within."""

    def settled(self) -> bool:
        """Whether all that is to be seen before a decision has been delivered: every change that is known here.

        Where writes take effect at once their results are too; where they take time nobody can wait for all of them.
        """
