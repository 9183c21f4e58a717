"""The store and its watches: objects are immutable, and every change is delivered once and in order."""

import msgspec

from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.invariants.invariant import Invariant, WorldView

# --- nothing mutated ---
#
# An object that was handed out is never changed in place.


class NothingMutated(Invariant):
    """Each object is equal to its copy from the time of its watch event."""

    name = "nothing_mutated"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        self._delivered: dict[Key, tuple[Obj, bytes]] = {}
        self._encode = msgspec.json.Encoder().encode

    def look(self, event: WatchEvent) -> None:
        """Check the previous version of the object."""
        self._compare(event.key)
        if event.type is EventType.DELETED:
            self._delivered.pop(event.key, None)
        else:
            self._delivered[event.key] = event.obj, self._encode(event.obj)

    def finish(self) -> None:
        """Check all remaining objects."""
        for key in self._delivered:
            self._compare(key)

    def _compare(self, key: Key) -> None:
        if key in self._delivered:
            obj, text = self._delivered[key]
            if self._encode(obj) != text:
                self.violate(f"{key} was changed in place: {text.decode()} became {self._encode(obj).decode()}", key)


class WatchHasNoGap(Invariant):
    """Revisions are consecutive, and `old` is the object of the event before."""

    name = "watch_has_no_gap"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        self._revision = scene.world.store.revision
        self._last: dict[Key, Obj] = {}

    def look(self, event: WatchEvent) -> None:
        """Check that an event follows from the one before."""
        if event.revision != self._revision + 1:
            self.violate(f"revision {event.revision} follows {self._revision}", event.key)
        self._revision = event.revision
        known = self._last.get(event.key)
        if event.old is not known:
            self.violate(f"{event.key} has another old object than the last event", event.key)
        if (event.type is EventType.ADDED) is not (known is None):
            self.violate(f"{event.key} was {event.type.lower()}", event.key)
        if event.type is EventType.DELETED:
            self._last.pop(event.key, None)
        else:
            self._last[event.key] = event.obj

    def finish(self) -> None:
        """Check that the last revision was delivered."""
        if self._revision != self.scene.world.store.revision:
            self.violate(f"{self._revision} is the last revision delivered of {self.scene.world.store.revision}")
