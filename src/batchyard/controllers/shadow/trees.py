"""Which objects are of which cohort tree.

What an object is of, and what it names, are nodes: a Cohort and its parent, a ClusterQueue and its cohort, a LocalQueue
and its ClusterQueue, a Workload's LocalQueue and the ClusterQueue that it holds quota in. Nodes that an object names
together are of one tree, whether or not there are objects of these names yet: watches may be late. What is of no node
bears on all trees: ResourceFlavors, Namespaces, AdmissionChecks, LimitRanges.
"""

from collections.abc import Iterable, Sequence

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.ports.client import EventType, WatchEvent


class Trees:
    """Trees have numbers. They join, and fall apart only where somebody begins anew."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}
        self._nodes: dict[int, list[str]] = {}
        self._made = 0

    def join(self, nodes: Sequence[str]) -> tuple[int, Sequence[int]]:
        """The tree of these nodes, at least one, and those that have become part of it."""
        found = list(dict.fromkeys(self._of[node] for node in nodes if node in self._of))
        if not found:
            self._made += 1
            found = [self._made]
            self._nodes[self._made] = []
        into, *others = sorted(found, key=lambda tree: len(self._nodes[tree]), reverse=True)
        for other in others:
            self._take(into, self._nodes.pop(other))
        self._take(into, [node for node in nodes if node not in self._of])
        return into, others

    def forget(self, tree: int) -> None:
        """A tree is no more."""
        for node in self._nodes.pop(tree):
            del self._of[node]

    def _take(self, tree: int, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._of[node] = tree
            self._nodes[tree].append(node)


def sorted_out(events: Iterable[WatchEvent], trees: Trees) -> dict[int, list[WatchEvent]]:
    """Objects by their tree, but for those that bear on all trees."""
    of_nodes = [(event, nodes) for event in events if (nodes := nodes_of(event.key, event.obj))]
    for _, nodes in of_nodes:
        trees.join(nodes)
    found: dict[int, list[WatchEvent]] = {}
    for event, nodes in of_nodes:
        found.setdefault(trees.join(nodes)[0], []).append(event)
    return found


def nodes_of(key: Key, obj: Obj) -> Sequence[str]:
    """The nodes that an object is of, or names; none for what bears on all trees."""
    spec = obj.get("spec") or {}
    match key.kind:
        case scheme.COHORT:
            return [f"cohort/{name}" for name in (key.name, spec.get("parentName")) if name]
        case scheme.CLUSTER_QUEUE:
            cohort = spec.get("cohortName")
            return [f"queue/{key.name}", *([f"cohort/{cohort}"] if cohort else [])]
        case scheme.LOCAL_QUEUE:
            return [f"local/{key.namespace}/{key.name}", f"queue/{spec['clusterQueue']}"]
        case scheme.WORKLOAD:
            held = ((obj.get("status") or {}).get("admission") or {}).get("clusterQueue")
            return [f"local/{key.namespace}/{spec.get('queueName', '')}", *([f"queue/{held}"] if held else [])]
    return ()


def may_part(event: WatchEvent) -> bool:
    """Whether nodes may be of several trees now that were of one."""
    if event.key.kind == scheme.WORKLOAD:
        return event.old is not None and event.old["spec"].get("queueName") != event.obj["spec"].get("queueName")
    if event.type is EventType.DELETED:
        return True
    return event.old is not None and not {*nodes_of(event.key, event.old)} <= {*nodes_of(event.key, event.obj)}
