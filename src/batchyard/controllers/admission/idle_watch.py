"""When a cohort tree may rest though a Workload is in line there: cycles change nothing any more.

A head that has tried all flavors gets the same decision again, so one repetition is enough. A head with flavors left
resumes its search with every cycle, and Kueue's scheduler spins on it. Where its search stands when something changes
decides which flavors it gets. The recorded cases of upstream spin five cycles after the last change.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from batchyard.controllers.admission.index import AdmissionIndex
from batchyard.core.decisions import Admit, Decision, Preempt

#: A tree whose heads have flavors left rests after so many cycles that change nothing.
_SPINS: Final = 5


@dataclass(slots=True)
class _Standstill:
    """What a tree's cycles decided since something changed there last."""

    touches: int
    #: The decisions seen.
    signatures: dict[object, None] = field(default_factory=dict)
    #: The cycles since the first one after the change.
    spins: int = -1


class IdleWatch:
    """Sees when cycles in a tree change nothing any more, as with a blocked StrictFIFO head: the tree may rest."""

    def __init__(self, index: AdmissionIndex) -> None:
        self._index = index
        self._standstills: dict[str, _Standstill] = {}

    def look(self, decided: Iterable[tuple[Decision, bool]]) -> None:
        """Take note of a cycle's decisions, each with whether its Workload was parked."""
        trees: dict[str, list[tuple[str, str]] | None] = {}
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
                tried = repr(decision.last.tried) if decision.last else ""
                stuck.append((decision.head.workload.key, tried))
        for root, heads in trees.items():
            self._look_at(root, heads)

    def _look_at(self, root: str, stuck: list[tuple[str, str]] | None) -> None:
        touches = self._index.line_up.touches.get(root, 0)
        known = self._standstills.get(root)
        if known is None or stuck is None or known.touches != touches:
            known = self._standstills[root] = _Standstill(touches)
        known.spins += 1
        if stuck is None:
            return
        signature = tuple(sorted(stuck, key=lambda head: head[0]))
        has_flavors_left = any(tried for _, tried in stuck)
        if signature in known.signatures and (known.spins >= _SPINS or not has_flavors_left):
            self._index.line_up.rest(root)
        known.signatures[signature] = None


def is_new(decision: Decision) -> bool:
    """Whether it preempts somebody who is not on the way out already."""
    return isinstance(decision, Preempt) and not all(target.workload.evicted for target in decision.targets)
