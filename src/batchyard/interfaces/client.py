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
    """A change of an object. `old` is None for ADDED; for DELETED, `obj` is the last state."""

    type: EventType
    key: Key
    obj: Obj
    old: Obj | None
    revision: int


@dataclass(frozen=True, slots=True)
class Create:
    """A write that creates an object. A uid and creation time in the object are kept; missing ones are generated."""

    obj: Obj


@dataclass(frozen=True, slots=True)
class Update:
    """A write that replaces an object except its status. A resourceVersion in the object must be current."""

    obj: Obj
    #: The new `managedFields`; None leaves them unchanged.
    managed_fields: Sequence[Obj] | None = None
    #: Replace the status too, for kinds without a status subresource.
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class UpdateStatus:
    """A write that replaces only the status of an object. A resourceVersion in the object must be current."""

    obj: Obj
    managed_fields: Sequence[Obj] | None = None


class Propagation(StrEnum):
    """The deletion propagation policy: dependents are deleted after the owner, before it, or orphaned."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True, slots=True)
class Delete:
    """A write that deletes an object. An object with finalizers is only marked, and removed with its last finalizer.

    A pod that may be running is marked too: its kubelet stops it, then deletes it with grace period 0.
    """

    key: Key
    #: Grace period of a pod in seconds; None uses the pod's spec. Other kinds have none.
    grace: int | None = None
    propagation: Propagation = Propagation.BACKGROUND
    #: Precondition: the uid of the object.
    uid: str | None = None


Write: TypeAlias = Create | Update | UpdateStatus | Delete


class WriteResult(NamedTuple):
    """The result of one or more writes: the stored object of the last one, or the error."""

    obj: Obj | None
    error: ApiError | None = None
    #: The rejected one of several writes submitted together.
    refused: Write | None = None


class ObjectReader(Protocol):
    """Read access to the current objects, by key and by kind."""

    def get(self, key: Key) -> Obj | None:
        """Return the object with a key, or None."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name; the list is immutable."""


class Reader(ObjectReader, Protocol):
    """Read access to the objects of a cache and to their dependents."""

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the dependents of an owner in a namespace ('' if cluster-scoped), sorted by kind, namespace and name.

        A reference across namespaces does not count.
        """


class ObjectWriter(Protocol):
    """Accepts writes, and reports their results later."""

    def submit(self, writes: Sequence[Write], on_result: Callable[[WriteResult], None]) -> None:
        """Submit one or more writes, which are executed in order until one is rejected.

        The kernel calls `on_result` once, after `submit` has returned, with the result of the last attempted write.
        """


Listener: TypeAlias = Callable[[Sequence[WatchEvent]], None]


class ObjectClient(Reader, ObjectWriter, Protocol):
    """A reader and writer with change notifications, which drives the controllers of a runner."""

    def subscribe(self, listener: Listener) -> None:
        """Register a listener. The kernel later calls it with each batch of new changes, in order."""

    def is_settled(self) -> bool:
        """Report whether the client has delivered all changes that it has received, so that controllers may decide.

        If writes take effect synchronously, this includes their results; otherwise it does not wait for them.
        """
