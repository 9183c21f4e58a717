"""The pods of a node that have not ended never ask for more than it has."""

from collections.abc import Iterable

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.views.node import node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.ports.client import WatchEvent
from batchyard.sim.checkers.law import Law, Scene


class NodesAreNeverOverfull(Law):
    """See the module."""

    name = "nodes_are_never_overfull"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._changed = False

    def look(self, event: WatchEvent) -> None:
        """Take note of changes."""
        self._changed = self._changed or event.key.kind in {scheme.POD, scheme.NODE}

    def settle(self) -> None:
        """Add up what is asked for on each node."""
        if not self._changed:
            return
        self._changed = False
        world = self.scene.world
        for name, pods in placed(pod_view(obj) for obj in world.objects(scheme.POD)).items():
            node = world.client.get(Key(scheme.NODE, "", name))
            if node is None:
                continue
            has = node_view(node).allocatable
            for resource, amount in requested(pods).items():
                if amount > has.get(resource, 0):
                    what = f"{amount} of {resource} are asked for on {name}, which has {has.get(resource, 0)}"
                    self.violate(what, *(Key(scheme.POD, pod.namespace, pod.name) for pod in pods))


def placed(pods: Iterable[PodView]) -> dict[str, list[PodView]]:
    """The pods that have not ended, by node."""
    found: dict[str, list[PodView]] = {}
    for pod in pods:
        if pod.node_name and not pod.is_terminal:
            found.setdefault(pod.node_name, []).append(pod)
    return found


def requested(pods: Iterable[PodView]) -> dict[str, int]:
    """What pods ask for, together."""
    total: dict[str, int] = {}
    for pod in pods:
        for resource, amount in pod.requests:
            total[resource] = total.get(resource, 0) + amount
    return total
