"""An object that was handed out is never changed: each is as it was when it was told of."""

import msgspec

from batchyard.api.meta import Key, Obj
from batchyard.ports.client import EventType, WatchEvent
from batchyard.sim.checkers.law import Law, Scene


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
