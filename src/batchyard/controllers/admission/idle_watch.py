"""When a cohort tree may rest though somebody is in line there: cycles change nothing any more."""

from collections.abc import Iterable

from batchyard.controllers.admission.index import AdmissionIndex
from batchyard.core.decisions import Admit, Decision, Preempt


class IdleWatch:
    """Sees when cycles in a tree change nothing any more, as with a blocked StrictFIFO head: the tree may rest."""

    def __init__(self, index: AdmissionIndex) -> None:
        self._index = index
        self._seen: dict[str, tuple[int, dict[object, None]]] = {}

    def look(self, decided: Iterable[tuple[Decision, bool]]) -> None:
        """Take note of a cycle's decisions, each with whether its Workload was parked."""
        trees: dict[str, list[tuple[str, object]] | None] = {}
        for decision, parked in decided:
            queue = self._index.snapshot.queues.get(decision.head.queue)
            if queue is None:
                continue
            root = queue.node.tree
            if parked or isinstance(decision, Admit) or is_new(decision):
                trees[root] = None
                continue
            stuck = trees.setdefault(root, [])
            if stuck is not None:
                tried = decision.last.tried if decision.last else ()
                stuck.append((decision.head.workload.key, repr(tried)))
        for root, heads in trees.items():
            self._look_at(root, heads)

    def _look_at(self, root: str, stuck: list[tuple[str, object]] | None) -> None:
        touches = self._index.line_up.touches.get(root, 0)
        known, seen = self._seen.get(root, (touches, {}))
        if stuck is None or known != touches:
            seen = {}
        if stuck is not None:
            signature = tuple(sorted(stuck, key=lambda head: head[0]))
            if signature in seen:
                self._index.line_up.rest(root)
            seen[signature] = None
        self._seen[root] = (touches, seen)


def is_new(decision: Decision) -> bool:
    """Whether it preempts somebody who is not on the way out already."""
    return isinstance(decision, Preempt) and not all(target.workload.evicted for target in decision.targets)
