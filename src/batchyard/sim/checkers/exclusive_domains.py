"""Where Jobs have a domain of their own (JobSet's exclusive topology), pods of two of them are never in one.

Jobs of different priority may meet there while the lower one leaves.
"""

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, annotation, label
from batchyard.api.views.pods import pod_view
from batchyard.ports.client import WatchEvent
from batchyard.sim.checkers.law import Law, Scene


class ExclusiveDomains(Law):
    """See the module."""

    name = "exclusive_domains"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._changed = False

    def look(self, event: WatchEvent) -> None:
        """Take note of changes."""
        self._changed = self._changed or event.key.kind == scheme.POD

    def settle(self) -> None:
        """Whose pods are where."""
        if not self._changed:
            return
        self._changed = False
        world = self.scene.world
        jobs: dict[tuple[str, str, int], dict[str, Key]] = {}
        for obj in world.objects(scheme.POD):
            topology, pod = annotation(obj, well_known.EXCLUSIVE_TOPOLOGY), pod_view(obj)
            node = None if topology is None else world.client.get(Key(scheme.NODE, "", pod.node_name))
            if topology is not None and node is not None and not pod.is_terminal:
                domain = topology, label(node, topology) or "", pod.priority
                key = Key(scheme.POD, pod.namespace, pod.name)
                jobs.setdefault(domain, {})[label(obj, well_known.JOB_KEY) or ""] = key
        for domain, found in jobs.items():
            if len(found) > 1:
                self.violate(f"{len(found)} Jobs are in one domain, {domain[1]}", *found.values())
