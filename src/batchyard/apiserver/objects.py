"""Where the API's objects are: what its parts need of the store's client, and no more."""

from collections.abc import Sequence
from typing import Protocol

from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import Write, WriteResult


class Found(Protocol):
    """The objects, to look at."""

    def get(self, key: Key) -> Obj | None:
        """The object, or None."""

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """All objects of a kind, sorted by namespace and name; the list never changes."""


class Objects(Found, Protocol):
    """The objects, to look at and to write."""

    @property
    def revision(self) -> int:
        """The revision of the last change."""

    def attempt(self, write: Write, *, dry_run: bool = False) -> WriteResult:
        """Do one write now; in a dry run all but keep it."""
