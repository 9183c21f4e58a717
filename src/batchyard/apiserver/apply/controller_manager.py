"""Field ownership for the writes of controllers in this process, with one field manager for all of them.
Ownership is tracked only for objects that already have `managedFields`, and only outside the status. Controllers own
the status and write it too often.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from batchyard.api.meta import Key, Obj, group_kind, key_of
from batchyard.api.times import format_time
from batchyard.apiserver.apply.managed_fields import FieldManager, updated, versions_of
from batchyard.apiserver.resources import Resource
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import Update, Write

_NAME: Final = "batchyard"


class InProcessFieldManager:
    """Field ownership for writes by controllers of this process."""

    def __init__(self, resources: Iterable[Resource], now: Callable[[], Instant]) -> None:
        self._resources = {resource.info.constant: resource for resource in resources}
        self._now = now

    def claimed(self, write: Write, get: Callable[[Key], Obj | None]) -> Write:
        """Return the write; an update also takes ownership of the fields that it changes."""
        if not isinstance(write, Update):
            return write
        stored = get(key_of(write.obj))
        entries = None if stored is None else stored["metadata"].get("managedFields")
        resource = self._resources.get(group_kind(write.obj))
        if stored is None or not entries or resource is None:
            return write
        new = {**write.obj, "status": stored["status"]} if "status" in stored else write.obj
        author = FieldManager(_NAME, resource.info.api_version, "", format_time(self._now() // SECOND * SECOND))
        versions = versions_of(resource, stored["metadata"].get("namespace", ""))
        return replace(write, managed_fields=updated(stored, new, entries, author, versions))
