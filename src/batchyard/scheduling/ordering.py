"""Order of the entries of a cycle: earlier entries take quota before later ones.

Classical order: less borrowing first, then higher priority, then longer waiting time. With fair sharing: a tournament
in each tree, level by level, won by the branch with the smallest share after admission. Ties are broken by uid, so the
order is total.
Sources: Kueue's pkg/scheduler (classicalIterator, fair_sharing_iterator).
"""

from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.fair_sharing import Share, compare, share_of
from batchyard.scheduling.quota import QuotaNode, Usage
from batchyard.scheduling.snapshot import Snapshot


class OrderableEntry(Protocol):
    """The part of an entry that ordering needs."""

    workload: WorkloadView
    queue: ClusterQueue

    @property
    def borrow(self) -> int:
        """The height in the cohort tree that its quota comes from."""

    @property
    def usage(self) -> Usage:
        """The quota that it uses."""


EntryT = TypeVar("EntryT", bound=OrderableEntry)


def classical_order(entries: Sequence[EntryT]) -> Iterator[EntryT]:
    """Yield the entries in classical order."""
    return iter(sorted(entries, key=_classical_key))


def _classical_key(entry: OrderableEntry) -> tuple[int, int, int, str]:
    workload = entry.workload
    return entry.borrow, -workload.priority, workload.queued, workload.uid


def fair_order(entries: Sequence[EntryT], snapshot: Snapshot) -> Iterator[EntryT]:
    """Yield the entries in fair sharing order, computed lazily from the snapshot with the previous winners' usage.

    Trees are independent; they are processed in order of their root's name.
    """
    trees: dict[str, list[EntryT]] = {}
    for entry in sorted(entries, key=lambda e: e.queue.name):
        trees.setdefault(entry.queue.node.path[0].name, []).append(entry)
    for name in sorted(trees):
        yield from _Tournament(trees[name], snapshot).winners()


class _Tournament(Generic[EntryT]):
    """One tree's entries, each with the share of every node on its path as if it were admitted."""

    def __init__(self, entries: Sequence[EntryT], snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._entries = {entry.queue.node: entry for entry in entries}
        self._shares: dict[QuotaNode, tuple[Share, ...]] = {}

    def winners(self) -> Iterator[EntryT]:
        """Yield the winner of each round until no entry is left."""
        while self._entries:
            for node, entry in self._entries.items():
                if node not in self._shares:
                    self._shares[node] = self._shares_with(entry)
            winner = self._play()
            node = winner.queue.node
            del self._entries[node]
            yield winner
            self._forget_around(node)

    def _shares_with(self, entry: EntryT) -> tuple[Share, ...]:
        """Return the shares of the nodes on an entry's path, root to queue, including its usage."""
        snapshot = self._snapshot
        with snapshot.what_if():
            snapshot.add_usage(entry.queue, entry.usage)
            return tuple(share_of(node, snapshot.names) for node in entry.queue.node.path)

    def _forget_around(self, node: QuotaNode) -> None:
        """Drop the shares of entries that have a node below the root in common with the winner."""
        branch = node.path[min(1, len(node.path) - 1)]
        self._shares = {other: s for other, s in self._shares.items() if branch not in other.path}

    def _play(self) -> EntryT:
        """Play each Cohort's round, deepest first, between its queues' entries and the winners of its child Cohorts."""
        by_depth: dict[int, dict[QuotaNode, list[EntryT]]] = {}
        for node, entry in self._entries.items():
            if node.parent is None:
                return entry
            by_depth.setdefault(len(node.path) - 1, {}).setdefault(node.parent, []).append(entry)
        for depth in range(max(by_depth), 1, -1):
            for cohort, contenders in by_depth.get(depth, {}).items():
                assert cohort.parent is not None
                best = self._best(contenders, depth)
                by_depth.setdefault(depth - 1, {}).setdefault(cohort.parent, []).append(best)
        (contenders,) = by_depth[1].values()
        return self._best(contenders, 1)

    def _best(self, contenders: Sequence[EntryT], level: int) -> EntryT:
        best = contenders[0]
        for contender in contenders[1:]:
            if self._beats(contender, best, level):
                best = contender
        return best

    def _beats(self, a: EntryT, b: EntryT, level: int) -> bool:
        """Report whether a precedes b in a Cohort: no borrowing of its request, smaller share, priority, age."""
        a_share, b_share = self._shares[a.queue.node][level], self._shares[b.queue.node][level]
        a_borrows, b_borrows = a_share.is_borrowing_on(a.usage), b_share.is_borrowing_on(b.usage)
        if a_borrows != b_borrows:
            return b_borrows
        relation = compare(a_share, b_share)
        return relation < 0 if relation else _turn(a) < _turn(b)


def _turn(entry: OrderableEntry) -> tuple[int, int, str]:
    workload = entry.workload
    return -workload.priority, workload.queued, workload.uid
