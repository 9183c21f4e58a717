"""Garbage collection: deletes the dependents of deleted objects, after or before their owner.

Background: when an object is deleted, its dependents without another living owner are deleted, recursively. If `Scopes`
is available, objects are also deleted whose owner does not exist although its kind is served. An API server provides
`Scopes`; a simulation does not, because its input comes from elsewhere.
Foreground: a deleted object is only marked, with a finalizer. Its dependents are deleted first. The finalizer is
removed when no dependent with `blockOwnerDeletion` is left.
Orphan: if an object is deleted with the finalizer `orphan`, its dependents stay and lose the owner reference.
If an update or deletion is rejected, the object stays as it is. A cluster-scoped object that names a namespaced owner
also stays, because such an owner is invalid.
Source: Kubernetes's pkg/controller/garbagecollector.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from batchyard.api.errors import ApiError
from batchyard.api.meta import Key, Obj, group_kind, with_metadata, without_finalizer
from batchyard.api.well_known import FOREGROUND_FINALIZER, ORPHAN_FINALIZER
from batchyard.client.informer import OwnerIndex
from batchyard.interfaces.client import (
    Delete,
    EventType,
    Propagation,
    Update,
    WatchEvent,
    Write,
)

Scopes: TypeAlias = Callable[[str, str], bool | None]

_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


class GarbageCollector:
    """Records deletions, and deletes the dependents on `collect`."""

    __slots__ = (
        "_get",
        "_leaving",
        "_orphaned_by",
        "_orphaning",
        "_owned",
        "_owners",
        "_unblocked",
        "_write",
        "scopes",
    )

    def __init__(self, get: Callable[[Key], Obj | None], write: Callable[[Write], object]) -> None:
        self._get = get
        self._write = write
        #: Set by an API server: then an owner that does not exist counts as dead.
        self.scopes: Scopes | None = None
        self._owners = OwnerIndex()
        self._owned: list[Key] = []  # objects with new owners, which may not exist
        self._orphaned_by: list[str] = []  # uids of deleted owners
        self._orphaning: dict[str, Key] = {}  # by uid, objects that are to orphan their dependents
        self._leaving: dict[str, Key] = {}  # by uid, objects that wait for their dependents
        self._unblocked: dict[str, None] = {}  # uids in `_leaving` to check again

    def owned_by(self, uid: str, namespace: str) -> Sequence[Key]:
        """Return the keys of the dependents of an owner in a namespace, or cluster-scoped (''), by its uid, sorted."""
        return self._owners.dependents(uid, namespace)

    def recall(self, events: Sequence[WatchEvent]) -> None:
        """Load all existing objects, including dependents whose owner was deleted before and not collected yet."""
        for event in events:
            self.observe(event)
        if self.scopes is not None:
            return  # all owners are checked anyway
        living = {event.obj["metadata"].get("uid") for event in events}
        self._orphaned_by += [uid for uid in self._owners.owners() if uid not in living]

    def observe(self, event: WatchEvent) -> None:
        """Record a change as it happens."""
        self._owners.observe(event)
        metadata = event.obj["metadata"]
        uid = metadata.get("uid")
        if event.type is not _DELETED:
            if self.scopes is not None and _has_new_owners(event):
                self._owned.append(event.key)
            if _is_deleted_with(ORPHAN_FINALIZER, metadata):
                self._orphaning[uid] = event.key
            if uid not in self._leaving and _is_deleted_with(FOREGROUND_FINALIZER, metadata):
                self._leaving[uid] = event.key
                self._unblocked[uid] = None
            return
        if uid in self._owners:
            self._orphaned_by.append(uid)
        if self._leaving:
            self._leaving.pop(uid, None)
            self._unblock(metadata)

    def orphan(self, uid: str, namespace: str) -> None:
        """Remove the owner references to an object, so that its dependents stay when it is deleted."""
        for key, dependent in self._dependents(uid, namespace):
            owners = [owner for owner in dependent["metadata"]["ownerReferences"] if owner["uid"] != uid]
            self._apply(Update(with_metadata(self._get(key) or dependent, ownerReferences=owners or None)))

    def collect(self) -> None:
        """Run all due work: orphaning, dependents of deleted owners, and foreground deletion."""
        if self._orphaning:
            self._orphan()
        if self._orphaned_by:
            self._collect_orphans()
        if self._owned:
            self._collect_strays()
        if self._unblocked:
            self._let_leave()

    def _unblock(self, metadata: Obj) -> None:
        """Check the owners again that waited for an object."""
        for owner in metadata.get("ownerReferences") or ():
            if owner["uid"] in self._leaving:
                self._unblocked[owner["uid"]] = None

    def _orphan(self) -> None:
        """Orphan the dependents of objects with that finalizer, then remove the finalizer."""
        orphaning, self._orphaning = self._orphaning, {}
        for uid, key in orphaning.items():
            owner = self._get(key)
            if owner is None or not _is_deleted_with(ORPHAN_FINALIZER, owner["metadata"]):
                continue
            for _, obj in self._dependents(uid, key.namespace):
                others = [each for each in obj["metadata"]["ownerReferences"] if each["uid"] != uid]
                self._apply(Update(with_metadata(obj, ownerReferences=others or None)))
            self._apply(Update(without_finalizer(owner, ORPHAN_FINALIZER)))

    def _apply(self, write: Write) -> None:
        """Apply a write; ignore a rejection."""
        with suppress(ApiError):  # for example a namespace that cannot be deleted
            self._write(write)

    def _collect_orphans(self) -> None:
        """Delete the dependents of deleted owners."""
        gone, self._orphaned_by = self._orphaned_by, []
        for uid in gone:
            for key in tuple(self._owners.dependents(uid)):
                obj = self._get(key)
                assert obj is not None, "the index follows every change"
                if key.namespace or self.scopes is None:
                    self._let_go(key, obj)
                else:
                    self._owned.append(key)

    def _collect_strays(self) -> None:
        """Delete objects whose owners do not exist although their kinds are served."""
        owned, self._owned = self._owned, []
        for key in owned:
            obj = self._get(key)
            owners = () if obj is None else obj["metadata"].get("ownerReferences") or ()
            missing = [owner for owner in owners if not self._is_living(owner, key.namespace)]
            if obj is not None and missing and all(self._is_dead(owner, key.namespace) for owner in missing):
                self._let_go(key, obj)

    def _let_go(self, key: Key, obj: Obj) -> None:
        """Delete an object without living owners; otherwise remove its references to dead ones."""
        owners = obj["metadata"]["ownerReferences"]
        living = [owner for owner in owners if self._is_living(owner, key.namespace)]
        self._apply(Update(with_metadata(obj, ownerReferences=living)) if living else Delete(key))

    def _let_leave(self) -> None:
        """Delete the blocking dependents of objects in foreground deletion; remove the finalizer if none is left."""
        unblocked, self._unblocked = self._unblocked, {}
        for uid in unblocked:
            key = self._leaving.get(uid)
            obj = None if key is None else self._get(key)
            if obj is None:
                continue
            dependents = self._dependents(uid, "" if key is None else key.namespace)
            blocking = [(blocker, dependent) for blocker, dependent in dependents if _blocks(dependent, uid)]
            for blocker, dependent in blocking:
                if "deletionTimestamp" not in dependent["metadata"]:
                    self._clear(blocker, dependent)
            left = (self._get(blocker) for blocker, _ in blocking)
            if not any(each is not None and _blocks(each, uid) for each in left):
                self._apply(Update(without_finalizer(obj, FOREGROUND_FINALIZER)))

    def _clear(self, key: Key, dependent: Obj) -> None:
        """Delete a blocking dependent; if another owner stays, only remove the other references."""
        metadata = dependent["metadata"]
        staying = [owner for owner in metadata["ownerReferences"] if self._is_staying(owner, key.namespace)]
        if staying:
            self._apply(Update(with_metadata(dependent, ownerReferences=staying)))
            return
        owns = metadata["uid"] in self._owners
        self._apply(Delete(key, propagation=Propagation.FOREGROUND if owns else Propagation.BACKGROUND))

    def _dependents(self, uid: str, namespace: str) -> list[tuple[Key, Obj]]:
        keys = self._owners.dependents(uid, namespace)
        return [(key, obj) for key in keys if (obj := self._get(key)) is not None]

    def _is_living(self, owner: Obj, namespace: str) -> bool:
        """Report whether an owner exists."""
        return self._found(owner, namespace) is not None

    def _is_dead(self, owner: Obj, namespace: str) -> bool:
        """Report whether a missing owner could exist: its kind is served, and its scope allows it as owner."""
        assert self.scopes is not None
        is_namespaced = self.scopes(owner["apiVersion"], owner["kind"])
        return is_namespaced is not None and (bool(namespace) or not is_namespaced)

    def _is_staying(self, owner: Obj, namespace: str) -> bool:
        """Report whether an owner exists and is not itself in foreground deletion."""
        found = self._found(owner, namespace)
        return found is not None and not _is_deleted_with(FOREGROUND_FINALIZER, found["metadata"])

    def _found(self, owner: Obj, namespace: str) -> Obj | None:
        """Return an owner, namespaced or cluster-scoped, if its uid still matches."""
        kind, name = group_kind(owner), owner["name"]
        found = (self._get(key) for key in (Key(kind, namespace, name), Key(kind, "", name)))
        return next((obj for obj in found if obj is not None and obj["metadata"].get("uid") == owner["uid"]), None)


def _has_new_owners(event: WatchEvent) -> bool:
    """Report whether an object has owners that it did not have before."""
    _, _, obj, old, _ = event
    owners = obj["metadata"].get("ownerReferences")
    return owners is not None and (old is None or old["metadata"].get("ownerReferences") is not owners)


def _is_deleted_with(finalizer: str, metadata: Obj) -> bool:
    """Report whether an object is marked as deleted and has this finalizer."""
    return "deletionTimestamp" in metadata and finalizer in metadata.get("finalizers", ())


def _blocks(dependent: Obj, uid: str) -> bool:
    """Report whether an object blocks the deletion of its owner with that uid."""
    owners = dependent["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in owners)
