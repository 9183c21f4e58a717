"""Garbage collection: what an object owns goes after it, or before it.

Background: when an object goes, the objects that name it as an owner, and have no other living owner, are deleted;
what they own goes after them in the same way. So does an object that names an owner which is not there, where somebody
can tell that such an owner could be (`Scopes`): an API server, not a simulation, whose input comes from elsewhere.
Foreground: an object that is deleted so is only marked, with a finalizer; what it owns goes first, and the finalizer
when nothing is left that holds it up (`blockOwnerDeletion`).
Orphaning: what an object owns stays, and loses it as an owner, if it is deleted with the finalizer `orphan`.
What may not be changed or deleted stays as it is, and so does what is in no Namespace but names an owner in one:
nothing there can own it.
Source: Kubernetes's pkg/controller/garbagecollector.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from batchyard.api.errors import ApiError
from batchyard.api.meta import Key, Obj, group_kind, with_metadata, without_finalizer
from batchyard.api.well_known import FOREGROUND_FINALIZER, ORPHAN_FINALIZER
from batchyard.client.cache import OwnerIndex
from batchyard.interfaces.client import Delete, EventType, Propagation, Update, WatchEvent, Write

Scopes: TypeAlias = Callable[[str, str], bool | None]
"""Whether a kind, by `apiVersion` and `kind`, has namespaces; None if it is not served."""

_DELETED: Final = EventType.DELETED  # a member is slow to look up by name


class Collector:
    """Notes what goes, and deletes what is left behind when asked to."""

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
        #: Known by whoever serves kinds: an owner that is not there is dead then.
        self.scopes: Scopes | None = None
        self._owners = OwnerIndex()
        self._owned: list[Key] = []  # of what has new owners, which may not be there
        self._orphaned_by: list[str] = []  # uids of owners that went
        self._orphaning: dict[str, Key] = {}  # by uid, what is to leave what it owns behind
        self._leaving: dict[str, Key] = {}  # by uid, what waits for those it owns
        self._unblocked: dict[str, None] = {}  # uids of these to look at again

    def owned_by(self, uid: str, namespace: str) -> Sequence[Key]:
        """The keys of what an owner in a namespace, or in none (''), has by its uid, sorted."""
        return self._owners.dependents(uid, namespace)

    def recall(self, events: Sequence[WatchEvent]) -> None:
        """Take note of all that is there from before, and of what was left behind and not yet collected then."""
        for event in events:
            self.observe(event)
        if self.scopes is not None:
            return  # all owners are looked for anyway
        living = {event.obj["metadata"].get("uid") for event in events}
        self._orphaned_by += [uid for uid in self._owners.owners() if uid not in living]

    def observe(self, event: WatchEvent) -> None:
        """Take note of a change as it happens."""
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
        """Let everything that an object owns stay when it goes."""
        for key, dependent in self._dependents(uid, namespace):
            owners = [owner for owner in dependent["metadata"]["ownerReferences"] if owner["uid"] != uid]
            self._apply(Update(with_metadata(self._get(key) or dependent, ownerReferences=owners or None)))

    def collect(self) -> None:
        """Let go what is due: what leaves others behind, what others left behind, what waits for others to go."""
        if self._orphaning:
            self._orphan()
        if self._orphaned_by:
            self._collect_orphans()
        if self._owned:
            self._collect_strays()
        if self._unblocked:
            self._let_leave()

    def _unblock(self, metadata: Obj) -> None:
        """Look again at the owners that waited for an object."""
        for owner in metadata.get("ownerReferences") or ():
            if owner["uid"] in self._leaving:
                self._unblocked[owner["uid"]] = None

    def _orphan(self) -> None:
        """Let what is owned stay where its owner wants that, and then the owner go."""
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
        """Write what is allowed."""
        with suppress(ApiError):  # such as a namespace that is always there
            self._write(write)

    def _collect_orphans(self) -> None:
        """Delete what owners leave behind."""
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
        """Delete what names owners that are not there, though they could be."""
        owned, self._owned = self._owned, []
        for key in owned:
            obj = self._get(key)
            owners = () if obj is None else obj["metadata"].get("ownerReferences") or ()
            missing = [owner for owner in owners if not self._is_living(owner, key.namespace)]
            if obj is not None and missing and all(self._is_dead(owner, key.namespace) for owner in missing):
                self._let_go(key, obj)

    def _let_go(self, key: Key, obj: Obj) -> None:
        """Delete what has no living owner; an object with one only loses the dead."""
        owners = obj["metadata"]["ownerReferences"]
        living = [owner for owner in owners if self._is_living(owner, key.namespace)]
        self._apply(Update(with_metadata(obj, ownerReferences=living)) if living else Delete(key))

    def _let_leave(self) -> None:
        """Delete what holds up the objects that are deleted in the foreground; let go those that nothing holds."""
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
        """Let what holds up its owner go; where another owner stays, it stays with that one."""
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
        """Whether an owner is there."""
        return self._found(owner, namespace) is not None

    def _is_dead(self, owner: Obj, namespace: str) -> bool:
        """Whether an owner that is not there could be: its kind is served, in a namespace for those in one."""
        assert self.scopes is not None
        is_namespaced = self.scopes(owner["apiVersion"], owner["kind"])
        return is_namespaced is not None and (bool(namespace) or not is_namespaced)

    def _is_staying(self, owner: Obj, namespace: str) -> bool:
        """Whether an owner is there, and does not itself wait for what it owns to go."""
        found = self._found(owner, namespace)
        return found is not None and not _is_deleted_with(FOREGROUND_FINALIZER, found["metadata"])

    def _found(self, owner: Obj, namespace: str) -> Obj | None:
        """An owner, in the dependent's namespace or in none, if it is still the same one."""
        kind, name = group_kind(owner), owner["name"]
        found = (self._get(key) for key in (Key(kind, namespace, name), Key(kind, "", name)))
        return next((obj for obj in found if obj is not None and obj["metadata"].get("uid") == owner["uid"]), None)


def _has_new_owners(event: WatchEvent) -> bool:
    """Whether an object has owners that it did not have before."""
    _, _, obj, old, _ = event
    owners = obj["metadata"].get("ownerReferences")
    return owners is not None and (old is None or old["metadata"].get("ownerReferences") is not owners)


def _is_deleted_with(finalizer: str, metadata: Obj) -> bool:
    """Whether an object is deleted and has a finalizer that says what becomes of what it owns."""
    return "deletionTimestamp" in metadata and finalizer in metadata.get("finalizers", ())


def _blocks(dependent: Obj, uid: str) -> bool:
    """Whether an object holds up the deletion of its owner with that uid."""
    owners = dependent["metadata"].get("ownerReferences") or ()
    return any(owner["uid"] == uid and owner.get("blockOwnerDeletion") for owner in owners)
