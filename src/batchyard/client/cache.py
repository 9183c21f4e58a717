"""The cache of watched objects: by kind, in order, and by owner."""

from bisect import bisect_left, insort
from collections.abc import Sequence

from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import EventType, WatchEvent

# --- index ---
#
# Dependents by the uid of their owner, updated with each change.


_DELETED = EventType.DELETED


class OwnerIndex:
    """The keys of the dependents of each owner that has any."""

    __slots__ = ("_dependents", "_sorted")

    def __init__(self) -> None:
        self._dependents: dict[str, dict[Key, None]] = {}
        self._sorted: dict[str, list[Key]] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._dependents

    def observe(self, event: WatchEvent) -> None:
        """Update the index with a change."""
        kind, _, obj, old, _ = event
        before = old["metadata"].get("ownerReferences") if old is not None else None
        after = obj["metadata"].get("ownerReferences") if kind is not _DELETED else None
        if before is not after:
            self._replace(event.key, before or (), after or ())

    def owners(self) -> Sequence[str]:
        """Return the uids of all owners, whether they exist or not."""
        return list(self._dependents)

    def dependents(self, uid: str, namespace: str = "") -> Sequence[Key]:
        """Return the keys of all objects in a namespace, or in all, with an owner reference to that uid, sorted."""
        keys = self._sorted.get(uid)
        if keys is None:
            if uid not in self._dependents:
                return ()
            keys = self._sorted[uid] = sorted(self._dependents[uid])
        return [key for key in keys if key.namespace == namespace] if namespace else keys

    def _replace(self, key: Key, before: Sequence[Obj], after: Sequence[Obj]) -> None:
        """Replace the owners of an object."""
        for owner in before:
            self._remove(owner["uid"], key)
        for owner in after:
            self._add(owner["uid"], key)

    def _add(self, uid: str, key: Key) -> None:
        self._dependents.setdefault(uid, {})[key] = None
        self._sorted.pop(uid, None)

    def _remove(self, uid: str, key: Key) -> None:
        keys = self._dependents.get(uid)
        if keys is None or key not in keys:
            return  # an object may name one owner twice
        del keys[key]
        self._sorted.pop(uid, None)
        if not keys:
            del self._dependents[uid]


class Cache:
    """The objects of each kind by key, their sorted keys, and an index by owner."""

    __slots__ = ("_keys", "_objects", "_owners")

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, Obj]] = {}
        self._keys: dict[str, list[Key]] = {}
        self._owners = OwnerIndex()

    def get(self, key: Key) -> Obj | None:
        """Return the object, or None."""
        objects = self._objects.get(key.kind)
        return None if objects is None else objects.get(key)

    def of_kind(self, kind: str) -> dict[Key, Obj]:
        """Return the objects of a kind by key; only `note` may change the result."""
        return self._objects.setdefault(kind, {})

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name."""
        objects, keys = self._objects.get(kind, {}), self._keys.get(kind, [])
        if namespace is not None:
            first = bisect_left(keys, Key(kind, namespace, ""))
            keys = keys[first : bisect_left(keys, Key(kind, namespace + "\0", ""), lo=first)]
        return [objects[key] for key in keys]

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return the dependents of an owner by its uid, in a namespace or cluster-scoped (''), sorted by key."""
        return [self._objects[key.kind][key] for key in self._owners.dependents(uid, namespace)]

    def note(self, event: WatchEvent) -> None:
        """Apply a change."""
        key = event.key
        objects, keys = self.of_kind(key.kind), self._keys.setdefault(key.kind, [])
        if event.type is _DELETED:
            del objects[key]
            del keys[bisect_left(keys, key)]
        else:
            if key not in objects:
                insort(keys, key)
            objects[key] = event.obj
        self._owners.observe(event)
