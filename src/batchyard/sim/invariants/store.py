"""Watches tell every change once, in order: revisions follow each other, and what was is what was told last."""

import msgspec

from batchyard.api.meta import Key, Obj
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.sim.invariants.invariant import Law, Scene

# --- nothing mutated ---
#
# An object that was handed out is never changed: each is as it was when it was told of.


class NothingMutated(Law):
    """See the module."""

    name = "nothing_mutated"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._told: dict[Key, tuple[Obj, bytes]] = {}
        self._encode = msgspec.json.Encoder().encode

    def look(self, event: WatchEvent) -> None:
        """What is replaced is as it was."""
        self._compare(event.key)
        if event.type is EventType.DELETED:
            self._told.pop(event.key, None)
        else:
            self._told[event.key] = event.obj, self._encode(event.obj)

    def finish(self) -> None:
        """What is left is as it was."""
        for key in self._told:
            self._compare(key)

    def _compare(self, key: Key) -> None:
        if key in self._told:
            obj, text = self._told[key]
            if self._encode(obj) != text:
                self.violate(f"{key} was changed in place: {text.decode()} became {self._encode(obj).decode()}", key)


class WatchHasNoGap(Law):
    """See the module."""

    name = "watch_has_no_gap"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._revision = scene.world.store.revision
        self._last: dict[Key, Obj] = {}

    def look(self, event: WatchEvent) -> None:
        """Each change follows from the one before."""
        if event.revision != self._revision + 1:
            self.violate(f"revision {event.revision} follows {self._revision}", event.key)
        self._revision = event.revision
        known = self._last.get(event.key)
        if event.old is not known:
            self.violate(f"{event.key} was not what was told before", event.key)
        if (event.type is EventType.ADDED) is not (known is None):
            self.violate(f"{event.key} was {event.type.lower()}", event.key)
        if event.type is EventType.DELETED:
            self._last.pop(event.key, None)
        else:
            self._last[event.key] = event.obj

    def finish(self) -> None:
        """All was told."""
        if self._revision != self.scene.world.store.revision:
            self.violate(f"{self._revision} is the last revision told of {self.scene.world.store.revision}")
