"""Queued provisioning gives all machines of a request at once, or none."""

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.ports.client import EventType, WatchEvent
from batchyard.sim.checkers.law import Law, Scene


class RequestsAreWhole(Law):
    """See the module."""

    name = "requests_are_whole"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._made: dict[str, int] = {}
        self._changed: dict[str, None] = {}

    def look(self, event: WatchEvent) -> None:
        """Count the machines that are made for requests."""
        if event.key.kind == scheme.RESIZE_REQUEST:
            self._changed[event.key.name] = None
            if event.type is EventType.ADDED:
                self._made.pop(event.key.name, None)
        if event.key.kind == scheme.INSTANCE and event.type is EventType.ADDED:
            request = event.obj["spec"].get("resizeRequest")
            if request is not None:
                self._made[request] = self._made.get(request, 0) + 1
                self._changed[request] = None

    def settle(self) -> None:
        """All of them, or none as long as the request waits."""
        for name in self._changed:
            request = self.scene.world.client.get(Key(scheme.RESIZE_REQUEST, "", name))
            made = self._made.get(name, 0)
            if request is None:
                continue
            wanted, state = request["spec"]["count"], (request.get("status") or {}).get("state")
            if made not in {0, wanted} or (state == "SUCCEEDED" and made != wanted):
                what = f"{made} of {wanted} machines were made for {name}, which is {state}"
                self.violate(what, Key(scheme.RESIZE_REQUEST, "", name))
        self._changed.clear()
