"""Writes that are not kept: all that a write must pass is asked of it, and what would come of it is answered."""

from typing import Protocol

from batchyard.api.errors import Conflict, NotFound
from batchyard.api.meta import Key, Obj


class Readable(Protocol):
    """What is there."""

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""


class DryRun:
    """Records that take any write and keep none."""

    def __init__(self, records: Readable) -> None:
        self._records = records

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""
        return self._records.get(key)

    def put(self, key: Key, obj: Obj, expect: int | None = None) -> Obj:
        """The object, had it been stored; Conflict if it must not exist yet and does."""
        if expect == 0 and self._records.get(key) is not None:
            raise Conflict(f'{key.kind} "{key}" is there already')
        return obj

    def delete(self, key: Key, expect: int | None = None) -> Obj:
        """The object, had it been removed."""
        found = self._records.get(key)
        if found is None:
            raise NotFound(f'{key.kind} "{key}" not found')
        return found
