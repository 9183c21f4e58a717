"""The interface of invariants: an invariant checks each change, and the world at the end of each instant."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from batchyard.api.meta import Key, Obj, find_condition
from batchyard.base.instant import Duration, seconds
from batchyard.interfaces.client import WatchEvent
from batchyard.sim.invariants.ledger import ObjectLedger
from batchyard.sim.world import World

# --- object history ---
#
# A short history of each object, shown with a violation.


_LINES_MAX: Final = 12
#: The status fields that the history shows, besides conditions.
_FIELDS: Final = ("phase", "state", "active", "succeeded", "failed")


class ObjectHistory:
    """The latest changes of every object."""

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
        """Return the histories of some objects, one after the other."""
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
            cause = f"{condition.get('reason', '')}: {condition.get('message', '')}"
            yield f"{condition['type']}={condition['status']} ({cause})"


def _differs(old: Obj | None, new: Obj) -> bool:
    return old is None or (old["status"], old.get("reason")) != (new["status"], new.get("reason"))


class InvariantViolation(NamedTuple):
    """A violated invariant: its name, the time, a description, and the histories of the objects."""

    law: str
    at: Duration
    what: str
    story: tuple[str, ...]

    def __str__(self) -> str:
        """Return the description and the histories, line by line."""
        return "\n    ".join([f"{seconds(self.at):g}s {self.law}: {self.what}", *self.story])


class WorldView:
    """The world that invariants check, and their violations."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ledger = ObjectLedger()
        self.stories = ObjectHistory()
        self.violations: list[InvariantViolation] = []

    def violate(self, law: "Invariant", what: str, *keys: Key) -> None:
        """Record a violation, with the histories of these objects."""
        self.violations.append(InvariantViolation(law.name, self.world.now(), what, self.stories.of(*keys)))


class Invariant:
    """One invariant. Each method is a point in time for checks; most invariants need one or two of them."""

    name = ""

    def __init__(self, scene: WorldView) -> None:
        self.scene = scene

    @property
    def ledger(self) -> ObjectLedger:
        """Return the state by the objects alone."""
        return self.scene.ledger

    @property
    def is_at_rest(self) -> bool:
        """Whether no more events are scheduled in the world."""
        return not self.scene.world.kernel.pending()

    def begin(self, batch: Sequence[WatchEvent]) -> None:
        """Check before a delivery; the ledger does not contain any of its changes."""

    def look(self, event: WatchEvent) -> None:
        """Check one change; the ledger does not contain it yet."""

    def end(self, batch: Sequence[WatchEvent]) -> None:
        """Check after a delivery; the ledger contains all of its changes."""

    def settle(self) -> None:
        """Check at the end of an instant."""

    def finish(self) -> None:
        """Check at the end of the run."""

    def violate(self, what: str, *keys: Key) -> None:
        """Record a violation."""
        self.scene.violate(self, what, *keys)
