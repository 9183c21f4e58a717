"""The client interface: a cached reader of objects, and a writer of intended changes.

A Reader never blocks: it is a cache of the objects, in process or filled by watches. A Writer accepts writes and
reports results later, through the kernel, after their own watch events have been delivered.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias

from batchyard.api.errors import ApiError
from batchyard.api.meta import Key, Obj


class EventType(StrEnum):
    """The type of a watch event."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class WatchEvent(NamedTuple):
    """A change. `old` is None for ADDED; for DELETED, `obj` is the last state."""

    type: EventType
    key: Key
    obj: Obj
    old: Obj | None
    revision: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object. A given uid and creation time are kept, otherwise they are generated."""

    obj: Obj


@dataclass(frozen=True, slots=True)
class Update:
    """Replace everything except the status. A resourceVersion in the object must be current."""

    obj: Obj
    #: The new `managedFields`; None leaves them unchanged.
    managed_fields: Sequence[Obj] | None = None
    #: Replace the status too, for kinds without a status subresource.
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class UpdateStatus:
    """Replace the status only. A resourceVersion in the object must be current."""

    obj: Obj
    managed_fields: Sequence[Obj] | None = None


class Propagation(StrEnum):
    """The deletion propagation policy: dependents are deleted after the owner, before it, or orphaned."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object. With finalizers it is only marked, and removed with the last finalizer.

    A pod that may be running is marked too: its kubelet stops it and deletes it with no grace period.
    """

    key: Key
    #: Grace period of a pod in seconds; None uses the pod's spec. Other kinds have none.
    grace: int | None = None
    propagation: Propagation = Propagation.BACKGROUND
    #: Precondition: the uid of the object.
    uid: str | None = None


Write: TypeAlias = Create | Update | UpdateStatus | Delete


class WriteResult(NamedTuple):
    """The result of a write: the stored object, or the error."""

    obj: Obj | None
    error: ApiError | None = None
    #: The rejected one of several writes submitted together.
    refused: Write | None = None


class ObjectReader(Protocol):
    """Read access to the current objects."""

    def get(self, key: Key) -> Obj | None:
        """Return the object, or None."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name; the list is immutable."""


class Reader(ObjectReader, Protocol):
    """The objects of the cache, and their dependents."""

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the dependents of an owner in a namespace ('' if cluster-scoped), sorted by kind, namespace and name.

        A reference across namespaces does not count.
        """


class ObjectWriter(Protocol):
    """Accepts writes."""

    def submit(self, writes: Sequence[Write], done: Callable[[WriteResult], None]) -> None:
        """Submit one or more writes, which are done in order until one is rejected.

        `done` is called once with the result of the last attempted write, later through the kernel, never from within.
        """


Listener: TypeAlias = Callable[[Sequence[WatchEvent]], None]


class ObjectClient(Reader, ObjectWriter, Protocol):
    """A reader and writer with change notifications, which drives the controllers of a runner."""

    def subscribe(self, listener: Listener) -> None:
        """Subscribe a listener to later changes, in order and in batches, through the kernel, never from within."""

    def settled(self) -> bool:
        """Report whether all changes known to this client have been delivered, so that a decision may be made.

        If writes take effect synchronously, this includes their results; otherwise it does not wait for them.
        """
