"""When nothing is left to happen, no autoscaled pool has a node without work above its minimum."""

from collections.abc import Mapping

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.views.pods import pod_view
from batchyard.sim.checkers.law import Law
from batchyard.sim.checkers.nodes_are_never_overfull import placed


class IdleNodesAreReleased(Law):
    """See the module."""

    name = "idle_nodes_are_released"

    def finish(self) -> None:
        """Look at every autoscaled pool."""
        world = self.scene.world
        busy = placed(pod_view(obj) for obj in world.objects(scheme.POD))
        for pool in world.objects(scheme.NODE_POOL) if self.is_at_rest else ():
            bounds, name = pool["spec"].get("autoscaling"), pool["metadata"]["name"]
            if bounds is None:
                continue
            zones: dict[str, list[str]] = {}
            for instance in world.objects(scheme.INSTANCE):
                if instance["spec"]["pool"] == name:
                    zones.setdefault(instance["spec"]["zone"], []).append(instance["metadata"]["name"])
            for found in zones.values():
                idle = [node for node in found if node not in busy]
                if idle and len(found) > _least(bounds, pool["spec"].get("tpuTopology") is not None, zones):
                    self.violate(f"{', '.join(idle)} of {name} do nothing", Key(scheme.NODE, "", idle[0]))


def _least(bounds: Mapping[str, int], atomic: bool, zones: Mapping[str, list[str]]) -> int:
    """How many nodes a zone keeps at least: all of them while the pool has no more than its minimum."""
    everywhere = sum(map(len, zones.values()))
    if atomic:
        return 0
    return everywhere if everywhere <= bounds.get("totalMin", 0) else bounds.get("min", 0)
