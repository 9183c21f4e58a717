"""Access to stored objects: the part of the store's client that the API server uses."""

from collections.abc import Sequence
from typing import Protocol

from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import Write, WriteResult


class ApiObjectReader(Protocol):
    """Read access to the objects."""

    def get(self, key: Key) -> Obj | None:
        """Return the object, or None."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, sorted by namespace and name; the list is immutable."""


class ApiObjectStore(ApiObjectReader, Protocol):
    """Read and write access to the objects."""

    @property
    def revision(self) -> int:
        """The revision of the last change."""

    def attempt(self, write: Write, *, dry_run: bool = False) -> WriteResult:
        """Execute one write synchronously; a dry run does everything except storing."""
