"""A bounded map that evicts the least recently used key."""

from collections import OrderedDict
from typing import Final, Generic, TypeVar

REMEMBERED_MAX: Final = 4096
_K = TypeVar("_K")
_V = TypeVar("_V")


class LruCache(Generic[_K, _V]):
    """Values by key, the least recently used first."""

    def __init__(self) -> None:
        self._known: OrderedDict[_K, _V] = OrderedDict()

    def recall(self, key: _K) -> _V | None:
        """Return the value of a key, or None."""
        found = self._known.get(key)
        if found is not None:
            self._known.move_to_end(key)
        return found

    def remember(self, key: _K, value: _V) -> None:
        """Set the value of a key."""
        known = self._known
        before = len(known)
        known[key] = value
        if len(known) == before:
            known.move_to_end(key)
        elif before == REMEMBERED_MAX:
            known.popitem(last=False)
