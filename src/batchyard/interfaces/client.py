"""The client interface of controllers: a cached reader of objects, and a writer of changes.

A Reader never blocks: it reads a cache of the objects, in process or filled by watches. An ObjectWriter accepts
writes and reports results later, from the event loop, after the watch events of those writes have been delivered.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeAlias

from batchyard.api.errors import ApiError
from batchyard.api.meta import Key, Obj


class EventType(StrEnum):
    """The type of a watch event: the object was added, modified or deleted."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class WatchEvent(NamedTuple):
    """A change of an object, with the number of the change in the store (`revision`).

    `old` is the object before the change, or None for ADDED. For DELETED, `obj` is the last state of the object.
    """

    type: EventType
    key: Key
    obj: Obj
    old: Obj | None
    revision: int


@dataclass(frozen=True, slots=True)
class Create:
    """A write that creates `obj`. Its uid and creation time are kept if they are set, and generated otherwise."""

    obj: Obj


@dataclass(frozen=True, slots=True)
class Update:
    """A write that replaces an object, with its status only if `is_whole`.

    If `obj` has a resourceVersion, it must be the current one, else the write is rejected.
    """

    obj: Obj
    #: The new `managedFields`; None leaves them unchanged.
    managed_fields: Sequence[Obj] | None = None
    #: Replace the status too, for kinds without a status subresource.
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class UpdateStatus:
    """A write that replaces only the status of an object.

    If `obj` has a resourceVersion, it must be the current one, else the write is rejected.
    """

    obj: Obj
    managed_fields: Sequence[Obj] | None = None
    #: Replace the labels, annotations, finalizers and owner references too.
    with_metadata: bool = False


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
    #: Grace period of a pod; None uses the pod's spec. Other kinds have none.
    grace_period_seconds: int | None = None
    #: None continues a foreground or orphaning deletion that a finalizer names, else deletes in the background.
    propagation: Propagation | None = None
    #: Precondition: the uid of the object.
    uid: str | None = None


Write: TypeAlias = Create | Update | UpdateStatus | Delete


class WriteResult(NamedTuple):
    """The result of writes submitted together: the object of the last write, or the error of the rejected write."""

    obj: Obj | None
    error: ApiError | None = None
    #: The rejected write, if the client reports it.
    rejected_write: Write | None = None


class ObjectReader(Protocol):
    """Read access to the current objects, by key and by kind."""

    def get(self, key: Key) -> Obj | None:
        """Return the object with a key; None if it does not exist."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return the objects of a kind, in one namespace or (None) in all, sorted by namespace and name.

        The result must not be modified.
        """


class Reader(ObjectReader, Protocol):
    """Read access to cached objects, by key, by kind and by owner."""

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the dependents of an owner in a namespace ('' if cluster-scoped), sorted by kind, namespace and name.

        Objects that refer to an owner in another namespace are not included.
        """


class ObjectWriter(Protocol):
    """Accepts writes, and reports their results later."""

    def submit(self, writes: Sequence[Write], on_result: Callable[[WriteResult], None]) -> None:
        """Submit one or more writes, which are executed in order until one is rejected.

        The event loop calls `on_result` once, after `submit` has returned, with the result of the last attempted write.
        """


Listener: TypeAlias = Callable[[Sequence[WatchEvent]], None]


class ObjectClient(Reader, ObjectWriter, Protocol):
    """A reader and writer of objects that also passes watch events to listeners; controllers run on it."""

    def subscribe(self, listener: Listener) -> None:
        """Register a listener. The event loop later calls it with each batch of watch events, in order."""

    def is_settled(self) -> bool:
        """Return whether the client has delivered all received watch events, so that controllers may decide.

        A client that executes writes synchronously must have delivered their results too.
        """
