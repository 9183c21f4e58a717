"""Nobody gets a machine beyond what the cloud has, what is reserved, or what the project may have.

What there is may be taken away under those who have it: then no more are given.
"""

from collections.abc import Iterator, Sequence

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, key_of
from batchyard.core.machines.catalog import catalog_of
from batchyard.core.machines.instances import CRASHED, FAILED, is_leaving, phase_of
from batchyard.core.machines.pools import machine_of
from batchyard.ports.client import EventType, WatchEvent
from batchyard.sim.checkers.law import Law, Scene

_NONE = ("", FAILED)


class CloudIsNeverOversold(Law):
    """See the module."""

    name = "cloud_is_never_oversold"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._given: dict[Key, None] = {}
        self._changed = False

    def look(self, event: WatchEvent) -> None:
        """Take note of machines that are given, and of changes of what there is."""
        self._changed = self._changed or event.key.kind == scheme.CLUSTER
        if event.key.kind == scheme.INSTANCE and event.type is not EventType.DELETED:
            was_none = event.old is None or phase_of(event.old) in _NONE
            if was_none and phase_of(event.obj) not in _NONE:
                self._given[event.key] = None

    def settle(self) -> None:
        """What was given was there."""
        given, changed = list(self._given), self._changed
        self._given, self._changed = {}, False
        if not given or changed:
            return
        world = self.scene.world
        cluster = world.objects(scheme.CLUSTER)[0]
        machines = [obj for obj in world.objects(scheme.INSTANCE) if _is_taken(obj)]
        touched = [obj for obj in machines if key_of(obj) in given]
        for what in self._beyond_capacity(cluster, machines, touched):
            self.violate(what, *given)
        for what in self._beyond_quota(cluster, machines, touched):
            self.violate(what, *given)

    def _beyond_capacity(self, cluster: Obj, machines: Sequence[Obj], touched: Sequence[Obj]) -> Iterator[str]:
        """Rows of which more is taken than there is."""
        for row in cluster["spec"].get("capacity") or ():
            taken = sum(self._is_of(row, obj) for obj in machines)
            if taken > row["count"] and any(self._is_of(row, obj) for obj in touched):
                yield f"{taken} machines of {row} are taken"
        for row in cluster["spec"].get("reservations") or ():
            taken = sum(self._reservation(obj) == row["name"] for obj in machines)
            if taken > row["count"] and any(self._reservation(obj) == row["name"] for obj in touched):
                yield f"{taken} machines of reservation {row['name']} are taken, of {row['count']}"

    def _beyond_quota(self, cluster: Obj, machines: Sequence[Obj], touched: Sequence[Obj]) -> Iterator[str]:
        """Quotas of the project that are exceeded."""
        for quota in cluster["spec"].get("quotas") or ():
            name = quota["name"]
            taken = sum(self._counted(name, obj, cluster) for obj in machines)
            if taken > quota["limit"] and any(self._counted(name, obj, cluster) for obj in touched):
                yield f"{taken} of {name} are taken, the limit is {quota['limit']}"

    def _is_of(self, row: Obj, instance: Obj) -> bool:
        spec = instance["spec"]
        same_model = row.get("provisioning") in {None, spec.get("provisioning", "standard")}
        same = (row["machineType"], row["zone"]) == (spec["machineType"], spec["zone"])
        return same and same_model and self._reservation(instance) is None

    def _pool(self, instance: Obj) -> Obj | None:
        return self.scene.world.client.get(Key(scheme.NODE_POOL, "", instance["spec"]["pool"]))

    def _reservation(self, instance: Obj) -> str | None:
        pool = self._pool(instance)
        return None if pool is None else pool["spec"].get("reservation")

    def _counted(self, quota: str, instance: Obj, cluster: Obj) -> int:
        pool, catalog = self._pool(instance), catalog_of(cluster)
        kind = instance["spec"]["machineType"]
        machine = catalog.machine(kind) if pool is None else machine_of(pool, catalog)
        if machine.accelerator is not None and machine.accelerator.type == quota:
            return machine.accelerator.count
        return machine.cpu_milli // 1000 if quota == "cpus" else int(quota == kind)


def _is_taken(instance: Obj) -> bool:
    return phase_of(instance) not in _NONE and not (phase_of(instance) == CRASHED and is_leaving(instance))
