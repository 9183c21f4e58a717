"""Detects Workloads that preempt each other endlessly within one instant.

Some rules contradict each other: A may preempt B, B may preempt A, and nothing else changes. Upstream then spins
endlessly. A tree is watched after many consecutive cycles with preemption in it at the same time. If its Workloads hold
the same quota as some cycles before, all preemptions since then will repeat.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from batchyard.base.instant import Instant
from batchyard.scheduling.decisions import Preempt
from batchyard.scheduling.quota import QuotaNode, Usage
from batchyard.scheduling.snapshot import Snapshot

#: Cycles with preemption in a tree within an instant before it is watched; ordinary chains are shorter.
CYCLES_UNWATCHED: Final = 16

Holdings: TypeAlias = tuple[tuple[str, Usage], ...]


class PreemptionStep(NamedTuple):
    """One preemption of a loop: preemptor, victim and reason."""

    preemptor: str
    victim: str
    reason: str


@dataclass(frozen=True, slots=True)
class PreemptionLoop:
    """Workloads that preempt each other endlessly."""

    at: Instant
    #: The tree, and the name of its root.
    tree: str
    root: str
    steps: tuple[PreemptionStep, ...]

    @property
    def message(self) -> str:
        """Describe the preemptions of the loop."""
        who = dict.fromkeys(f"{s.preemptor} preempts {s.victim} ({s.reason})" for s in self.steps)
        return f"in the cohort of {self.root}, without end: {'; '.join(who)}"


class PreemptionLoopDetector:
    """The preemptions by tree within the current instant."""

    def __init__(self) -> None:
        self._at: Instant = -1
        self._cycles: dict[str, int] = {}
        self._seen: dict[str, dict[Holdings, int]] = {}
        self._steps: dict[str, list[PreemptionStep]] = {}

    def look(self, preemptions: Iterable[Preempt], snapshot: Snapshot, now: Instant) -> list[PreemptionLoop]:
        """Return the loops that these preemptions close; the snapshot is that before them."""
        if now != self._at:
            self._at = now
            self._cycles, self._seen, self._steps = {}, {}, {}
        by_root: dict[str, tuple[QuotaNode, list[PreemptionStep]]] = {}
        for preemption in preemptions:
            root = preemption.queue.node.path[0]
            steps = by_root.setdefault(preemption.queue.node.tree, (root, []))[1]
            who = preemption.head.workload.key
            steps += [PreemptionStep(who, target.workload.key, target.reason) for target in preemption.targets]
        return [
            loop
            for tree, (root, steps) in by_root.items()
            if (loop := self._look_at(tree, root, steps, snapshot)) is not None
        ]

    def _look_at(
        self, tree: str, root: QuotaNode, steps: list[PreemptionStep], snapshot: Snapshot
    ) -> PreemptionLoop | None:
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
    """Return the quota holders of a tree."""
    return tuple(
        (workload.key, workload.usage)
        for queue in snapshot.queues_below(root)
        for workload in sorted(queue.workloads.values(), key=lambda w: w.key)
    )
