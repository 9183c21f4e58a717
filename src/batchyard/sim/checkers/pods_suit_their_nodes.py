"""A pod is bound only to a node with the labels it selects, whose taints it tolerates, and that is not cordoned.

What changed about the node in the same instant may have come too late to be known.
"""

from batchyard.api import scheme, well_known
from batchyard.api.views.node import NodeView, node_view
from batchyard.api.views.pods import PodView, pod_view
from batchyard.ports.client import EventType, WatchEvent
from batchyard.sim.checkers.law import Law, Scene

_REPELLING = ("NoSchedule", "NoExecute")


class PodsSuitTheirNodes(Law):
    """See the module."""

    name = "pods_suit_their_nodes"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        #: Each node as it is, and before that as it was in this instant.
        self._nodes: dict[str, list[NodeView]] = {}

    def look(self, event: WatchEvent) -> None:
        """Look at new bindings."""
        if event.key.kind == scheme.NODE and event.type is not EventType.DELETED:
            self._nodes.setdefault(event.key.name, []).append(node_view(event.obj))
        if event.key.kind != scheme.POD or event.type is EventType.DELETED:
            return
        pod = pod_view(event.obj)
        if pod.node_name and (event.old is None or not pod_view(event.old).node_name):
            known = self._nodes.get(pod.node_name, ())
            faults = [unsuitable(pod, node) for node in known]
            if known and all(faults):
                self.violate(f"{pod.key} was bound to {pod.node_name}: {faults[-1]}", event.key)

    def settle(self) -> None:
        """Only what is now counts from now on."""
        for views in self._nodes.values():
            del views[:-1]


def unsuitable(pod: PodView, node: NodeView) -> str:
    """Why a pod may not be on a node, whatever else is there; empty if it may."""
    missed = [key for key, value in pod.node_selector if node.labels.get(key) != value]
    if missed:
        return f"its label {missed[0]} is {node.labels.get(missed[0])}"
    if node.unschedulable and not any(t.key in {"", well_known.UNSCHEDULABLE} for t in pod.tolerations):
        return "it is cordoned"
    repelling = [taint for taint in node.taints if taint.effect in _REPELLING]
    bad = [taint.key for taint in repelling if not any(t.tolerates(taint) for t in pod.tolerations)]
    return f"its taint {bad[0]} is not tolerated" if bad else ""
