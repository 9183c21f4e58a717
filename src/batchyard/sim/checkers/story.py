"""What happened to each object, in a few words a change: told when a law is broken."""

from collections.abc import Iterator
from typing import Final

from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import Duration, seconds
from batchyard.ports.client import WatchEvent

_LINES_MAX: Final = 12
#: What of a status is told beside its conditions.
_FIELDS: Final = ("phase", "state", "active", "succeeded", "failed")


class Stories:
    """The last changes of every object."""

    def __init__(self) -> None:
        self._lines: dict[Key, list[str]] = {}

    def record(self, event: WatchEvent, at: Duration) -> None:
        """Add a change."""
        changes = "; ".join(_changes(event))
        if changes:
            lines = self._lines.setdefault(event.key, [])
            lines.append(f"{seconds(at):g}s {event.key.kind.partition('.')[0]} {event.key}: {changes}")
            del lines[:-_LINES_MAX]

    def of(self, *keys: Key) -> tuple[str, ...]:
        """The stories of some objects, one after the other."""
        return tuple(line for key in keys for line in self._lines.get(key, ()))


def _changes(event: WatchEvent) -> Iterator[str]:
    if event.old is None or event.type == "DELETED":
        yield event.type.lower()
        return
    if "deletionTimestamp" in event.obj["metadata"] and "deletionTimestamp" not in event.old["metadata"]:
        yield "to be deleted"
    if event.old.get("spec") != event.obj.get("spec"):
        node = event.obj["spec"].get("nodeName")
        yield f"bound to {node}" if node and not event.old["spec"].get("nodeName") else "spec changed"
    old, new = event.old.get("status") or {}, event.obj.get("status") or {}
    for field in _FIELDS:
        if new.get(field) != old.get(field):
            yield f"{field} {new.get(field)}"
    for condition in new.get("conditions") or ():
        if _differs(find_condition(event.old, condition["type"]), condition):
            said = f"{condition.get('reason', '')}: {condition.get('message', '')}"
            yield f"{condition['type']}={condition['status']} ({said})"


def _differs(old: Obj | None, new: Obj) -> bool:
    return old is None or (old["status"], old.get("reason")) != (new["status"], new.get("reason"))
