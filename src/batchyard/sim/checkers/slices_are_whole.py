"""A slice of several machines is there as a whole or not at all; where one of them crashed the others go down too."""

from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.base.instant import MINUTE
from batchyard.core.machines.catalog import catalog_of
from batchyard.core.machines.instances import CRASHED, FAILED, RUNNING, is_leaving, phase_of, since
from batchyard.core.machines.pools import hosts_of_slice
from batchyard.sim.checkers.law import Law

#: How long writes that meet conflicts may take to bring a slice down.
_SOON: Final = MINUTE


class SlicesAreWhole(Law):
    """See the module."""

    name = "slices_are_whole"

    def settle(self) -> None:
        """None of a slice runs on while another of it is lost."""
        now = self.scene.world.kernel.now()
        for pool, _, machines in self._slices():
            lost = [obj for obj in machines if phase_of(obj) == CRASHED and since(obj) + _SOON < now]
            if lost and any(phase_of(obj) == RUNNING for obj in machines):
                self.violate(f"half of {pool} runs", *map(_key, machines))

    def finish(self) -> None:
        """In the end all machines run, or none ever came."""
        for pool, hosts, machines in self._slices() if self.is_at_rest else ():
            running = sum(phase_of(obj) == RUNNING for obj in machines)
            failed = sum(phase_of(obj) == FAILED for obj in machines)
            if (running, len(machines) - failed) not in {(0, 0), (hosts, hosts)}:
                self.violate(f"{running} of {len(machines)} machines of {pool} run, of {hosts}", *map(_key, machines))

    def _slices(self) -> list[tuple[str, int, list[Obj]]]:
        """The pools that are slices of several machines: their names, how many they need, and those that stay."""
        world = self.scene.world
        clusters = world.objects(scheme.CLUSTER)
        found = []
        for pool in world.objects(scheme.NODE_POOL) if clusters else ():
            hosts, name = hosts_of_slice(pool, catalog_of(clusters[0])), pool["metadata"]["name"]
            if hosts > 1:
                here = [obj for obj in world.objects(scheme.INSTANCE) if obj["spec"]["pool"] == name]
                found.append((name, hosts, [obj for obj in here if not is_leaving(obj)]))
        return found


def _key(obj: Obj) -> Key:
    return Key(scheme.INSTANCE, "", obj["metadata"]["name"])
