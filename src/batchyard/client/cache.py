"""The objects that watches have told of: by kind, in order, and by owner."""

from bisect import bisect_left, insort
from collections.abc import Sequence

from batchyard.api.meta import Key, Obj
from batchyard.client.index import OwnerIndex
from batchyard.ports.client import EventType, WatchEvent

_DELETED = EventType.DELETED


class Cache:
    """See the module."""

    __slots__ = ("_keys", "_objects", "_owners")

    def __init__(self) -> None:
        self._objects: dict[str, dict[Key, Obj]] = {}
        self._keys: dict[str, list[Key]] = {}
        self._owners = OwnerIndex()

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""
        objects = self._objects.get(key.kind)
        return None if objects is None else objects.get(key)

    def of_kind(self, kind: str) -> dict[Key, Obj]:
        """The objects of a kind by key; only `note` may change it."""
        return self._objects.setdefault(kind, {})

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """All objects of a kind, sorted by namespace and name."""
        objects, keys = self._objects.get(kind, {}), self._keys.get(kind, [])
        if namespace is not None:
            first = bisect_left(keys, Key(kind, namespace, ""))
            keys = keys[first : bisect_left(keys, Key(kind, namespace + "\0", ""), lo=first)]
        return [objects[key] for key in keys]

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """What an owner in a namespace, or in none (''), has by its uid, sorted by kind, namespace and name."""
        return [self._objects[key.kind][key] for key in self._owners.dependents(uid, namespace)]

    def note(self, event: WatchEvent) -> None:
        """Take in a change."""
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
