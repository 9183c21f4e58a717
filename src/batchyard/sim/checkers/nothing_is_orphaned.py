"""When nothing is left to happen, nothing is there whose owner is gone: neither nodes nor pods nor leases.

An owner that was never there is not gone: what is born with such a one is let be, as garbage collectors do.
"""

from collections.abc import Iterator

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, controller_of, key_of, label
from batchyard.core.machines.instances import FAILED, phase_of
from batchyard.core.machines.pools import is_autoscaled
from batchyard.ports.client import EventType, WatchEvent
from batchyard.sim.checkers.law import Law, Scene


class NothingIsOrphaned(Law):
    """See the module."""

    name = "nothing_is_orphaned"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        #: The uids of all objects there ever were.
        self._known: dict[str, None] = {}

    def look(self, event: WatchEvent) -> None:
        """Take note of an object."""
        if event.type is EventType.ADDED:
            self._known[event.obj["metadata"]["uid"]] = None

    def finish(self) -> None:
        """Look for owners."""
        if self.is_at_rest:
            for key, what in [*self._left_by_owners(), *self._left_by_machines()]:
                self.violate(f"{key.kind} {key} {what}", key)

    def _left_by_owners(self) -> Iterator[tuple[Key, str]]:
        store = self.scene.world.store
        found = [obj for kind in store.kinds() for obj in store.list(kind)]
        uids = {obj["metadata"]["uid"]: None for obj in found}
        for obj in found:
            owner = controller_of(obj)
            if owner is not None and owner["uid"] not in uids and owner["uid"] in self._known:
                yield key_of(obj), f"is owned by {owner['name']}, which is gone"
            if "deletionTimestamp" in obj["metadata"]:
                yield key_of(obj), "is being deleted for ever"

    def _left_by_machines(self) -> Iterator[tuple[Key, str]]:
        world = self.scene.world
        machines = {obj["metadata"]["name"]: obj for obj in world.objects(scheme.INSTANCE)}
        pools = {obj["metadata"]["name"]: obj for obj in world.objects(scheme.NODE_POOL)}
        nodes = {obj["metadata"]["name"]: obj for obj in world.objects(scheme.NODE)}
        for name, machine in machines.items():
            pool = pools.get(machine["spec"]["pool"])
            if pool is None:
                yield key_of(machine), "is of a pool that is gone"
            elif name not in nodes and (is_autoscaled(pool) or phase_of(machine) != FAILED):
                yield key_of(machine), f"has no node: {machine.get('status')}"
        for name, node in nodes.items():
            if name not in machines and label(node, well_known.NODE_POOL) is not None:
                yield key_of(node), "has no machine"
        for lease in world.objects(scheme.LEASE):
            if lease["metadata"]["name"] not in nodes:
                yield key_of(lease), "is of no node"
        used = [machine["spec"]["pool"] for machine in machines.values()]
        for name, pool in pools.items():
            if pool["spec"].get("autoProvisioned") and name not in used:
                yield key_of(pool), "was made for pods and is empty"
