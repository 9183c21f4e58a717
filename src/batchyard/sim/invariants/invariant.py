"""The base class of invariants, their view of the simulated world, and the violations that they report."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from batchyard.api.meta import Key, Obj, find_condition
from batchyard.base.instant import Duration, duration_seconds
from batchyard.interfaces.client import WatchEvent
from batchyard.sim.invariants.object_states import ObjectStates
from batchyard.sim.world import World

# A short history of each object, shown with a violation.


_HISTORY_LINES_MAX: Final = 12
#: The status fields that the history shows, besides conditions.
_STATUS_FIELDS: Final = ("phase", "state", "active", "succeeded", "failed")


class ObjectHistory:
    """The latest changes of each object in a simulation, as short texts."""

    def __init__(self) -> None:
        self._lines: dict[Key, list[str]] = {}

    def record(self, event: WatchEvent, at: Duration) -> None:
        """Add the changes in a watch event, if any, to the history of its object; `at` counts from the start."""
        change_text = "; ".join(_change_texts(event))
        if change_text:
            lines = self._lines.setdefault(event.key, [])
            lines.append(f"{duration_seconds(at):g}s {event.key.kind.partition('.')[0]} {event.key}: {change_text}")
            del lines[:-_HISTORY_LINES_MAX]

    def lines_of(self, *keys: Key) -> tuple[str, ...]:
        """Return the latest changes of the objects with these keys, object by object, at most 12 for each."""
        return tuple(line for key in keys for line in self._lines.get(key, ()))


def _change_texts(event: WatchEvent) -> Iterator[str]:
    if event.old is None or event.type == "DELETED":
        yield event.type.lower()
        return
    if "deletionTimestamp" in event.obj["metadata"] and "deletionTimestamp" not in event.old["metadata"]:
        yield "to be deleted"
    if event.old.get("spec") != event.obj.get("spec"):
        node = event.obj["spec"].get("nodeName")
        yield f"bound to {node}" if node and not event.old["spec"].get("nodeName") else "spec changed"
    old, new = event.old.get("status") or {}, event.obj.get("status") or {}
    for field in _STATUS_FIELDS:
        if new.get(field) != old.get(field):
            yield f"{field} {new.get(field)}"
    for condition in new.get("conditions") or ():
        if _has_changed(find_condition(event.old, condition["type"]), condition):
            cause_text = f"{condition.get('reason', '')}: {condition.get('message', '')}"
            yield f"{condition['type']}={condition['status']} ({cause_text})"


def _has_changed(old: Obj | None, new: Obj) -> bool:
    return old is None or (old["status"], old.get("reason")) != (new["status"], new.get("reason"))


class InvariantViolation(NamedTuple):
    """A violation of an invariant: invariant name, time, description, and the histories of the objects involved."""

    invariant: str
    at: Duration
    description: str
    history: tuple[str, ...]

    def __str__(self) -> str:
        """Return the description of the violation, with the object histories on the following lines."""
        return "\n    ".join([f"{duration_seconds(self.at):g}s {self.invariant}: {self.description}", *self.history])


class WorldView:
    """The input of invariants: a simulation, the state that its objects describe, and the violations so far."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.states = ObjectStates()
        self.histories = ObjectHistory()
        self.violations: list[InvariantViolation] = []

    def violate(self, invariant: "Invariant", description: str, *keys: Key) -> None:
        """Record a violation of an invariant, with the histories of the objects involved."""
        lines = self.histories.lines_of(*keys)
        self.violations.append(InvariantViolation(invariant.name, self.world.now(), description, lines))


class Invariant:
    """Base class of the properties that the platform must have during a simulation or at its end.

    An InvariantChecker calls the check methods during a simulation. They do nothing unless a subclass overrides them.
    """

    name = ""

    def __init__(self, world_view: WorldView) -> None:
        self.world_view = world_view

    @property
    def states(self) -> ObjectStates:
        """Return the queues, quotas and Workloads as the stored objects describe them."""
        return self.world_view.states

    @property
    def is_at_rest(self) -> bool:
        """Whether no more events are scheduled in the simulated world."""
        return not self.world_view.world.kernel.pending_count()

    def before_batch(self, batch: Sequence[WatchEvent]) -> None:
        """Check the property before a batch of watch events, while `states` contains none of the batch's changes."""

    def check_event(self, event: WatchEvent) -> None:
        """Check the property for one watch event, while `states` does not contain its change yet."""

    def after_batch(self, batch: Sequence[WatchEvent]) -> None:
        """Check the property after a batch of watch events, when `states` contains all of the batch's changes."""

    def end_instant(self) -> None:
        """Check the property when everything scheduled for an instant is done."""

    def finish(self) -> None:
        """Check the property at the end of the simulation."""

    def violate(self, description: str, *keys: Key) -> None:
        """Record a violation of this invariant, with the histories of the objects `keys`."""
        self.world_view.violate(self, description, *keys)
