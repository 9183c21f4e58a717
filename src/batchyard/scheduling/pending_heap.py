"""Data structures of a ClusterQueue's pending Workloads: heaps in queue order, and classes of equivalent Workloads."""

import heapq
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Final, TypeAlias

from batchyard.api.views.workload import Shape, WorkloadView
from batchyard.base.instant import Instant
from batchyard.scheduling.flavor_assigner import LastAssignment

QueueOrder: TypeAlias = tuple[int, Instant, str, str]
#: The shape and the namespace of a Workload, and its LocalQueue if the order of the ClusterQueue depends on it.
EquivalenceClassKey: TypeAlias = tuple[Shape, str, str]


#: Sort key of the queue order, in which a current preemptor has no precedence.
QUEUE_ORDER: Final = attrgetter("order")


class PendingEntry:
    """A pending Workload of a ClusterQueue; `heap` is the heap that contains it, None if it is held back or removed."""

    __slots__ = ("heap", "last_assignment", "order", "view")

    def __init__(self, view: WorkloadView, last_assignment: LastAssignment | None) -> None:
        self.view = view
        self.last_assignment = last_assignment
        self.order: QueueOrder = (-view.priority, view.queued, view.uid, view.key)
        self.heap: WorkloadHeap | None = None

    def __lt__(self, _other_entry: "PendingEntry") -> bool:
        """Return False: heap items compare by `order` first, and ties may be resolved in any way."""
        return False


class WorkloadHeap:
    """A heap of pending Workloads in queue order; removed ones are dropped only when they reach the front."""

    __slots__ = ("_heap", "size")

    def __init__(self) -> None:
        self._heap: list[tuple[QueueOrder, PendingEntry]] = []
        self.size = 0

    def push(self, entry: PendingEntry) -> None:
        """Add a pending Workload to this heap, and remove it from the heap that contained it, if any."""
        if entry.heap is not None:
            entry.heap.size -= 1
        entry.heap = self
        self.size += 1
        heapq.heappush(self._heap, (entry.order, entry))

    def first_entry(self) -> PendingEntry | None:
        """Return the first Workload of the heap in queue order; None if the heap is empty."""
        heap = self._heap
        while heap and heap[0][1].heap is not self:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def in_order(self) -> Iterator[PendingEntry]:
        """Yield the heap's Workloads in queue order; they are sorted lazily, so reading the first few is cheap."""
        heap = self._heap
        next_candidates = [(heap[0][0], 0)] if heap else []
        while next_candidates:
            _, heap_index = heapq.heappop(next_candidates)
            if heap[heap_index][1].heap is self:
                yield heap[heap_index][1]
            for child in range(2 * heap_index + 1, min(2 * heap_index + 3, len(heap))):
                heapq.heappush(next_candidates, (heap[child][0], child))

    def members(self) -> Iterator[PendingEntry]:
        """Yield all Workloads of the heap in no particular order."""
        return (entry for _, entry in self._heap if entry.heap is self)


class EquivalenceClass:
    """Pending Workloads of a namespace with equal requests and priority; if one does not fit, none of them does.

    Scheduling cycles try those in `in_line`. Those in `parked` are inadmissible until something changes.
    """

    __slots__ = ("in_line", "parked", "parked_at")

    def __init__(self) -> None:
        self.in_line = WorkloadHeap()
        self.parked = WorkloadHeap()
        #: When a Workload of this class was last parked.
        self.parked_at: Instant = 0

    def park(self, now: Instant) -> None:
        """Set the class's Workloads aside until a change, because one of them did not fit."""
        self.in_line, self.parked = _merge_heaps(self.in_line, self.parked)
        self.parked_at = now

    def unpark(self) -> None:
        """Let cycles try the parked Workloads of the class again."""
        self.parked, self.in_line = _merge_heaps(self.parked, self.in_line)


def _merge_heaps(source: WorkloadHeap, target: WorkloadHeap) -> tuple[WorkloadHeap, WorkloadHeap]:
    """Move the Workloads of the smaller heap to the larger one; return an empty heap and the merged heap."""
    if source.size > target.size:
        source, target = target, source
    for entry in list(source.members()):
        target.push(entry)
    return WorkloadHeap(), target


class FirstPendingCache:
    """Cache of a queue's first pending Workloads; the queue resets it when a Workload is added or removed."""

    __slots__ = ("first_entries",)

    def __init__(self) -> None:
        self.first_entries: list[PendingEntry] | None = None

    def first(self, pending_entries: dict[str, PendingEntry], count: int) -> list[PendingEntry]:
        """Return the first `count` pending Workloads in queue order; a current preemptor has no precedence here."""
        if self.first_entries is None or len(self.first_entries) < min(count, len(pending_entries)):
            entries = pending_entries.values()
            self.first_entries = (
                [min(entries, key=QUEUE_ORDER)] if count == 1 and entries else sorted(entries, key=QUEUE_ORDER)[:count]
            )
        return self.first_entries[:count]


def has_same_queue_state(old: WorkloadView, new: WorkloadView) -> bool:
    """Return whether two versions of a Workload are equal in everything that affects its place in the queue."""
    return (
        old.generation == new.generation
        and old.shape == new.shape
        and old.evicted == new.evicted
        and old.queued == new.queued
        and old.requeue_blocked == new.requeue_blocked
        and old.requeue_at == new.requeue_at
        and old.has_failed_check == new.has_failed_check
        and old.preemption_gated == new.preemption_gated
    )


def is_held_back(view: WorkloadView, now: Instant) -> bool:
    """Return whether a Workload is not tried yet, because of a backoff or because its condition Requeued is False."""
    return view.requeue_blocked or (view.requeue_at is not None and view.requeue_at > now)


def class_key(view: WorkloadView) -> EquivalenceClassKey:
    """Return the key of a Workload's equivalence class in a ClusterQueue whose order ignores LocalQueues."""
    return view.shape, view.namespace, ""


class ClassFronts:
    """A heap of the first Workload in line of each class; outdated ones are dropped when they reach the front."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[QueueOrder, PendingEntry, EquivalenceClassKey]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, entry: PendingEntry, key: EquivalenceClassKey) -> None:
        """Add the first Workload in line of a class."""
        heapq.heappush(self._heap, (entry.order, entry, key))

    def first_entry(self, classes: Mapping[EquivalenceClassKey, EquivalenceClass]) -> PendingEntry | None:
        """Return the first Workload in line of all classes; None if there is none."""
        heap = self._heap
        while heap:
            queue_order, front_entry, key = heap[0]
            equivalence_class = classes.get(key)
            first_entry = equivalence_class.in_line.first_entry() if equivalence_class is not None else None
            if first_entry is not None and first_entry is front_entry and first_entry.order == queue_order:
                return first_entry
            heapq.heappop(heap)
        return None

    def clear(self) -> None:
        """Remove all Workloads."""
        self._heap.clear()
