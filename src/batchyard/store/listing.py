"""The objects of one kind by key, and their sorted list, brought up to date only when asked for.

Writes only note which key they touched; a list then replaces, inserts and removes those few by bisection, so that a
long list asked for after every write costs one copy and not one sort. A kind that nobody lists pays nothing.
"""

from bisect import bisect_left
from collections.abc import Sequence

from batchyard.api.meta import Key, Obj
from batchyard.base.check import invariant


class Listing:
    """All objects of one kind."""

    __slots__ = ("_keys", "_listed", "_touched", "is_listed", "objects")

    def __init__(self) -> None:
        self.objects: dict[Key, Obj] = {}  # change it only together with touch()
        self.is_listed = False
        self._listed: list[Obj] | None = None  # handed out, so never changed in place
        self._keys: list[Key] = []
        self._touched: dict[Key, None] = {}

    def touch(self, key: Key) -> None:
        """Note that the object of this key was added, replaced or removed; to be called if `is_listed`."""
        assert self._listed is not None, "only what was listed needs to know"
        self._touched[key] = None
        if len(self._touched) > 16 + len(self._listed) // 4:
            self._listed, self._keys, self.is_listed = None, [], False  # sorting anew is cheaper by now
            self._touched.clear()

    def in_order(self, namespace: str | None = None) -> Sequence[Obj]:
        """The objects sorted by namespace and name, of one namespace or all."""
        listed = self._refreshed()
        if namespace is None or not listed:
            return listed
        keys = self._keys
        kind = keys[0].kind
        first = bisect_left(keys, Key(kind, namespace, ""))
        return listed[first : bisect_left(keys, Key(kind, namespace + "\0", ""), lo=first)]

    def validate(self) -> None:
        """Check that the list is what sorting anew would give."""
        keys = sorted(self.objects)
        invariant(list(self.in_order()) == [self.objects[key] for key in keys], "the list holds all objects")
        invariant(self._keys == keys, "the list is sorted")

    def _refreshed(self) -> list[Obj]:
        """The whole list, up to date."""
        if self._listed is None:
            self._keys = sorted(self.objects)
            self._listed, self.is_listed = [self.objects[key] for key in self._keys], True
        elif self._touched:
            self._listed = self._listed.copy()
            for key in self._touched:
                self._place(key, self._listed)
            self._touched.clear()
        return self._listed

    def _place(self, key: Key, listed: list[Obj]) -> None:
        """Bring one key of the list up to date."""
        keys, obj = self._keys, self.objects.get(key)
        at = bisect_left(keys, key)
        known = at < len(keys) and keys[at] == key
        if known and obj is not None:
            listed[at] = obj
        elif known:
            del keys[at], listed[at]
        elif obj is not None:
            keys.insert(at, key)
            listed.insert(at, obj)
