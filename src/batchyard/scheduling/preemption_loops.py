"""Notices Workloads that preempt each other for ever within one instant.

Some rules contradict each other: A may preempt B, B may preempt A, and nothing in between changes. Upstream spins then
without end. Here a tree is watched once preemption in it goes on cycle after cycle without time passing: when the same
Workloads hold the same quota as some cycles before, whatever was preempted since will be preempted again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from batchyard.base.instant import Instant
from batchyard.scheduling.decisions import Preempt
from batchyard.scheduling.quota import QuotaNode, Usage
from batchyard.scheduling.snapshot import Snapshot

#: Cycles with preemption in one tree and one instant before it is watched; ordinary chains are shorter.
CYCLES_UNWATCHED: Final = 16

Holdings: TypeAlias = tuple[tuple[str, Usage], ...]


class Step(NamedTuple):
    """One preemption of a loop: who, whom, by which rule."""

    preemptor: str
    victim: str
    reason: str


@dataclass(frozen=True, slots=True)
class PreemptionLoop:
    """Workloads that preempt each other for ever."""

    at: Instant
    #: The tree they are in, and the name of its root.
    tree: str
    root: str
    steps: tuple[Step, ...]

    @property
    def message(self) -> str:
        """Who loops with whom by which rules."""
        who = dict.fromkeys(f"{s.preemptor} preempts {s.victim} ({s.reason})" for s in self.steps)
        return f"in the cohort of {self.root}, without end: {'; '.join(who)}"


class LoopWatch:
    """Remembers one instant."""

    def __init__(self) -> None:
        self._at: Instant = -1
        self._cycles: dict[str, int] = {}
        self._seen: dict[str, dict[Holdings, int]] = {}
        self._steps: dict[str, list[Step]] = {}

    def look(self, preemptions: Iterable[Preempt], snapshot: Snapshot, now: Instant) -> list[PreemptionLoop]:
        """The loops that close with these preemptions; the snapshot is as before them."""
        if now != self._at:
            self._at = now
            self._cycles, self._seen, self._steps = {}, {}, {}
        by_root: dict[str, tuple[QuotaNode, list[Step]]] = {}
        for preemption in preemptions:
            root = preemption.queue.node.path[0]
            steps = by_root.setdefault(preemption.queue.node.tree, (root, []))[1]
            who = preemption.head.workload.key
            steps += [Step(who, target.workload.key, target.reason) for target in preemption.targets]
        return [
            loop
            for tree, (root, steps) in by_root.items()
            if (loop := self._look_at(tree, root, steps, snapshot)) is not None
        ]

    def _look_at(self, tree: str, root: QuotaNode, steps: list[Step], snapshot: Snapshot) -> PreemptionLoop | None:
        self._cycles[tree] = self._cycles.get(tree, 0) + 1
        if self._cycles[tree] <= CYCLES_UNWATCHED:
            return None
        done = self._steps.setdefault(tree, [])
        seen = self._seen.setdefault(tree, {})
        holdings = _holdings(root, snapshot)
        since = seen.get(holdings)
        if since is not None:
            return PreemptionLoop(self._at, tree, root.name, tuple(done[since:]))
        seen[holdings] = len(done)
        done += steps
        return None


def _holdings(root: QuotaNode, snapshot: Snapshot) -> Holdings:
    """Who holds what in a tree."""
    return tuple(
        (workload.key, workload.usage)
        for queue in snapshot.queues_below(root)
        for workload in sorted(queue.workloads.values(), key=lambda w: w.key)
    )
