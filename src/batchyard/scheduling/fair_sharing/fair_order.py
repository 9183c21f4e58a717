"""The order of a cycle's Workloads with fair sharing: a tournament in each cohort tree, by weighted share.

Ties are broken by priority, then by age, then by uid, so the order is total. Source: fair_sharing_iterator.go in
pkg/scheduler of Kueue.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling import quota
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.snapshot import Snapshot


class OrderableEntry(Protocol):
    """Interface of the entries that the ordering functions sort: pending Workloads with their assigned quota."""

    workload: WorkloadView
    queue: ClusterQueue

    @property
    def borrowing_height(self) -> int:
        """The height of the highest cohort tree node that provides quota; 0 if only the ClusterQueue provides quota."""

    @property
    def usage(self) -> quota.Usage:
        """The quota that the Workload would use if admitted."""


EntryT = TypeVar("EntryT", bound=OrderableEntry)


def fair_order(
    entries: Sequence[EntryT],
    snapshot: Snapshot,
    preemptors: Collection[str] = (),
    successor_of: Callable[[EntryT], EntryT | None] | None = None,
) -> Iterator[EntryT]:
    """Yield a cycle's Workloads in fair sharing order, one cohort tree after the other, by the names of the roots.

    The order is computed lazily. A caller that admits a yielded Workload must add the usage to the snapshot before it
    requests the next Workload. The usage changes the shares. The Workloads in `preemptors` (keys) come first in their
    tree. `successor_of` returns the Workload that takes the place of the last yielded one in its ClusterQueue, if any.
    """
    entries_by_tree: dict[str, list[EntryT]] = {}
    for entry in sorted(entries, key=lambda e: e.queue.name):
        entries_by_tree.setdefault(entry.queue.node.path[0].name, []).append(entry)
    for name in sorted(entries_by_tree):
        yield from _Tournament(entries_by_tree[name], snapshot, preemptors).pop_winners(successor_of)


class _Tournament(Generic[EntryT]):
    """Orders Workloads of one cohort tree, at most one per queue, for fair sharing: by weighted share if admitted."""

    def __init__(self, entries: Sequence[EntryT], snapshot: Snapshot, preemptors: Collection[str]) -> None:
        self._snapshot = snapshot
        self._preemptors = preemptors
        self._entries = {entry.queue.node: entry for entry in entries}
        self._shares: dict[quota.QuotaNode, tuple[quota.Share, ...]] = {}

    def pop_winners(self, successor_of: Callable[[EntryT], EntryT | None] | None) -> Iterator[EntryT]:
        while self._entries:
            for node, entry in self._entries.items():
                if node not in self._shares:
                    self._shares[node] = self._shares_with_entry(entry)
            winner = self._play_round()
            node = winner.queue.node
            del self._entries[node]
            yield winner
            self._forget_shares_in_branch(node)
            successor = None if successor_of is None else successor_of(winner)
            if successor is not None:
                self._entries[node] = successor

    def _shares_with_entry(self, entry: EntryT) -> tuple[quota.Share, ...]:
        """Return the weighted shares from root Cohort to ClusterQueue as if the entry's Workload were admitted."""
        snapshot = self._snapshot
        with snapshot.what_if():
            snapshot.add_usage_of(entry.workload, entry.queue, entry.usage)
            return tuple(quota.weighted_share(node, snapshot.flavor_resource_names) for node in entry.queue.node.path)

    def _forget_shares_in_branch(self, node: quota.QuotaNode) -> None:
        branch = node.path[min(1, len(node.path) - 1)]
        self._shares = {entry_node: s for entry_node, s in self._shares.items() if branch not in entry_node.path}

    def _play_round(self) -> EntryT:
        """Return the best remaining Workload: each Cohort, deepest first, passes its best one to its parent Cohort."""
        contenders_by_depth: dict[int, dict[quota.QuotaNode, list[EntryT]]] = {}
        for node, entry in self._entries.items():
            if node.parent is None:
                return entry
            contenders_by_depth.setdefault(len(node.path) - 1, {}).setdefault(node.parent, []).append(entry)
        for depth in range(max(contenders_by_depth), 1, -1):
            for cohort, contenders in contenders_by_depth.get(depth, {}).items():
                assert cohort.parent is not None
                best_contender = self._best_contender(contenders, depth)
                contenders_by_depth.setdefault(depth - 1, {}).setdefault(cohort.parent, []).append(best_contender)
        (contenders,) = contenders_by_depth[1].values()
        return self._best_contender(contenders, 1)

    def _best_contender(self, contenders: Sequence[EntryT], level: int) -> EntryT:
        best_contender = contenders[0]
        for contender in contenders[1:]:
            if self._precedes(contender, best_contender, level):
                best_contender = contender
        return best_contender

    def _precedes(self, a: EntryT, b: EntryT, level: int) -> bool:
        if self._preemptors and (a.workload.key in self._preemptors) != (b.workload.key in self._preemptors):
            return a.workload.key in self._preemptors
        a_share, b_share = self._shares[a.queue.node][level], self._shares[b.queue.node][level]
        a_borrows, b_borrows = a_share.is_borrowing_on(a.usage), b_share.is_borrowing_on(b.usage)
        if a_borrows != b_borrows:
            return b_borrows
        share_order = quota.compare_shares(a_share, b_share)
        return share_order < 0 if share_order else _tie_break_key(a) < _tie_break_key(b)


def _tie_break_key(entry: OrderableEntry) -> tuple[int, int, str]:
    workload = entry.workload
    return -workload.priority, workload.queued, workload.uid
