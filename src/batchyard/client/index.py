"""Which objects belong to which owner, by the owner's uid, kept up to date by the changes."""

from collections.abc import Sequence

from batchyard.api.meta import Key, Obj
from batchyard.ports.client import EventType, WatchEvent

_DELETED = EventType.DELETED


class OwnerIndex:
    """The keys of the dependents of every owner that has some."""

    __slots__ = ("_dependents", "_sorted")

    def __init__(self) -> None:
        self._dependents: dict[str, dict[Key, None]] = {}
        self._sorted: dict[str, list[Key]] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._dependents

    def observe(self, event: WatchEvent) -> None:
        """Take note of a change."""
        kind, _, obj, old, _ = event
        before = old["metadata"].get("ownerReferences") if old is not None else None
        after = obj["metadata"].get("ownerReferences") if kind is not _DELETED else None
        if before is not after:
            self._replace(event.key, before or (), after or ())

    def owners(self) -> Sequence[str]:
        """The uids of all owners, whether they are there or not."""
        return list(self._dependents)

    def dependents(self, uid: str, namespace: str = "") -> Sequence[Key]:
        """The keys of all objects of a namespace, or of all, with an owner reference to that uid, sorted."""
        keys = self._sorted.get(uid)
        if keys is None:
            if uid not in self._dependents:
                return ()
            keys = self._sorted[uid] = sorted(self._dependents[uid])
        return [key for key in keys if key.namespace == namespace] if namespace else keys

    def _replace(self, key: Key, before: Sequence[Obj], after: Sequence[Obj]) -> None:
        """Note that an object has other owners than before."""
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
