"""Index of pods by node."""

from collections.abc import Sequence

from batchyard.api.meta import Key, Obj
from batchyard.api.views.pods import node_of


class PodsByNode:
    """The keys of pods by node, in the order of their arrival."""

    __slots__ = ("_by_node",)

    def __init__(self) -> None:
        self._by_node: dict[str, dict[Key, None]] = {}

    def observe(self, key: Key, old: Obj | None, new: Obj | None) -> None:
        """Process a change of a pod; `old` is None for a new pod, `new` for a deleted one."""
        if old is not None and new is not None and new["spec"] is old["spec"]:
            return
        before = "" if old is None else node_of(old)
        after = "" if new is None else node_of(new)
        if before == after:
            return
        if before:
            self._remove(before, key)
        if after:
            self._by_node.setdefault(after, {})[key] = None

    def on(self, node: str) -> Sequence[Key]:
        """Return the pods of a node."""
        return tuple(self._by_node.get(node, ()))

    def _remove(self, node: str, key: Key) -> None:
        pods = self._by_node.get(node)
        if pods is None or key not in pods:
            return  # after a restart, events may precede the index
        del pods[key]
        if not pods:
            del self._by_node[node]
