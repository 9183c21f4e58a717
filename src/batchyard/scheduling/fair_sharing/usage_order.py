"""The pending Workloads of a ClusterQueue with admission fair sharing, in the order of their LocalQueues' usage.

Workloads of LocalQueues with less usage come first, regardless of priority. Usage changes with each admission and each
sample. So only the order within each LocalQueue is stored: equivalence classes are those of one LocalQueue. LocalQueues
are compared when the first Workload is read. Source: queueOrderingFunc in pkg/cache/queue/cluster_queue.go of Kueue.
"""

from collections.abc import Callable, Collection
from typing import TypeAlias

from batchyard.api.views.workload import WorkloadView
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules, Head
from batchyard.scheduling.pending_heap import (
    ClassFronts,
    EquivalenceClass,
    EquivalenceClassKey,
    PendingEntry,
    QueueOrder,
)
from batchyard.scheduling.queue_manager import PendingQueue
from batchyard.scheduling.snapshot import Snapshot

UsageOrder: TypeAlias = tuple[float, bool, QueueOrder]


class UsageOrderedQueue(PendingQueue):
    """The pending Workloads of one ClusterQueue, ordered by usage, then as in other ClusterQueues."""

    def __init__(self, name: str, usage_of: Callable[[str], float], rules: DecisionRules = DEFAULT_RULES) -> None:
        """Create an empty queue; `usage_of` returns the usage of a LocalQueue (`namespace/name`)."""
        super().__init__(name, rules)
        self._usage_of = usage_of
        #: The first Workloads in line of the classes of each LocalQueue.
        self._fronts: dict[str, ClassFronts] = {}

    def clear(self) -> None:
        """Remove all pending Workloads, so that no reference cycle remains."""
        super().clear()
        self._fronts.clear()

    def views(self) -> list[WorkloadView]:
        """Return all pending Workloads in queue order."""
        return [entry.view for entry in self._sorted_entries()]

    def first_workloads(self, count: int) -> list[WorkloadView]:
        """Return the first `count` pending Workloads, also held-back ones, in queue order."""
        return self.views()[:count]

    def first_not_held_back(self, max_count: int) -> list[WorkloadView]:
        """Return at most `max_count` pending Workloads in queue order, without those that are held back."""
        return [entry.view for entry in self._sorted_entries() if entry.heap is not None][:max_count]

    def count_ahead_of(self, key: str) -> int:
        """Return the number of Workloads ahead of a pending Workload in this queue."""
        usages = self._usages()
        order = self._order(self._entries[key], usages)
        return sum([self._order(entry, usages) < order for entry in self._entries.values()])

    def usages_ahead_of(self, key: str) -> tuple[float, float] | None:
        """Return the usage of the first Workload's LocalQueue, and that of the LocalQueue of a pending Workload.

        The result is None unless the first one is less, so that it explains why the Workload is behind.
        """
        first_usage = self._usage_of(self._sorted_entries()[0].view.queue)
        own_usage = self._usage_of(self._entries[key].view.queue)
        return (first_usage, own_usage) if first_usage < own_usage else None

    def head_by_usage(self, usage_of: Callable[[str], float], excluded_keys: Collection[str]) -> Head | None:
        """Return the first Workload that a cycle may try, with other usages; None if there is none.

        `excluded_keys` are the Workloads that the cycle has taken already.
        """
        entries = [e for e in self._entries.values() if self._is_in_line(e) and e.view.key not in excluded_keys]
        usages = {name: usage_of(name) for name in {entry.view.queue: None for entry in entries}}
        first = min(entries, key=lambda entry: self._order(entry, usages), default=None)
        return None if first is None else self.head_of(first.view.key)

    def _class_key(self, view: WorkloadView) -> EquivalenceClassKey:
        return view.shape, view.namespace, view.queue

    def _update_class_front(self, key: EquivalenceClassKey, equivalence_class: EquivalenceClass) -> None:
        first_entry = equivalence_class.in_line.first_entry()
        if first_entry is not None:
            self._fronts.setdefault(key[2], ClassFronts()).push(first_entry, key)

    def _first_pending_entry(self) -> PendingEntry | None:
        preemptor_entry = self._entries.get(self.preemptor)
        first_entry: PendingEntry | None = None
        first_order: UsageOrder | None = None
        for local_queue, fronts in list(self._fronts.items()):
            entry = fronts.first_entry(self._classes)
            if entry is None:
                del self._fronts[local_queue]
                continue
            if preemptor_entry is not None and preemptor_entry.view.queue == local_queue:
                entry = preemptor_entry
            order = (self._usage_of(local_queue), entry is not preemptor_entry, entry.order)
            if first_order is None or order < first_order:
                first_entry, first_order = entry, order
        return first_entry

    def _sorted_entries(self) -> list[PendingEntry]:
        usages = self._usages()
        return sorted(self._entries.values(), key=lambda entry: self._order(entry, usages))

    def _usages(self) -> dict[str, float]:
        return {name: self._usage_of(name) for name in {entry.view.queue: None for entry in self._entries.values()}}

    def _order(self, entry: PendingEntry, usages: dict[str, float]) -> UsageOrder:
        return usages[entry.view.queue], entry.view.key != self._preemptor, entry.order


def make_pending_queue(queue: ClusterQueue, snapshot: Snapshot, rules: DecisionRules = DEFAULT_RULES) -> PendingQueue:
    """Return an empty queue for a ClusterQueue's pending Workloads, in the order that its spec selects."""
    usage_of = snapshot.usage_of if queue.view.is_usage_based else None
    return PendingQueue(queue.name, rules) if usage_of is None else UsageOrderedQueue(queue.name, usage_of, rules)
