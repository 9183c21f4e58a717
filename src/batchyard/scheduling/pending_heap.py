"""Data structures of a ClusterQueue's pending Workloads: heaps, equivalence classes, and a cache of the first ones."""

import heapq
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, TypeAlias

from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import Instant
from batchyard.scheduling.flavor_assigner import LastAssignment

Order: TypeAlias = tuple[int, Instant, str, str]


#: The queue order, except for the current preemptor.
QUEUE_ORDER: Final = attrgetter("order")


class PendingEntry:
    """A pending Workload; `line` is the heap that contains it, or None if it is held back or removed."""

    __slots__ = ("last_assignment", "line", "order", "view")

    def __init__(self, view: WorkloadView, last_assignment: LastAssignment | None) -> None:
        self.view = view
        self.last_assignment = last_assignment
        self.order: Order = (-view.priority, view.queued, view.uid, view.key)
        self.line: WorkloadHeap | None = None

    def __lt__(self, _other_entry: "PendingEntry") -> bool:
        """Return False: heap items compare by `order` first, and entries with equal order are interchangeable."""
        return False


class WorkloadHeap:
    """A heap of pending Workloads with lazy deletion: removed entries are dropped when they reach the front."""

    __slots__ = ("_heap", "size")

    def __init__(self) -> None:
        self._heap: list[tuple[Order, PendingEntry]] = []
        self.size = 0

    def push(self, entry: PendingEntry) -> None:
        """Add a pending Workload, and remove it from its previous heap."""
        if entry.line is not None:
            entry.line.size -= 1
        entry.line = self
        self.size += 1
        heapq.heappush(self._heap, (entry.order, entry))

    def first_entry(self) -> PendingEntry | None:
        """Return the first Workload in queue order; None if the heap is empty."""
        heap = self._heap
        while heap and heap[0][1].line is not self:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def in_order(self) -> Iterator[PendingEntry]:
        """Yield the Workloads in queue order, lazily: the cost depends on the number read, not on the heap size."""
        heap = self._heap
        frontier = [(heap[0][0], 0)] if heap else []
        while frontier:
            _, index = heapq.heappop(frontier)
            if heap[index][1].line is self:
                yield heap[index][1]
            for child in range(2 * index + 1, min(2 * index + 3, len(heap))):
                heapq.heappush(frontier, (heap[child][0], child))

    def members(self) -> Iterator[PendingEntry]:
        """Yield all Workloads of the heap in no particular order."""
        return (entry for _, entry in self._heap if entry.line is self)


class EquivalenceClass:
    """Pending Workloads of one namespace with equal shape, split into those in line and those parked."""

    __slots__ = ("in_line", "parked", "parked_at")

    def __init__(self) -> None:
        self.in_line = WorkloadHeap()
        self.parked = WorkloadHeap()
        #: When a Workload of this class was last parked.
        self.parked_at: Instant = 0

    def park(self, now: Instant) -> None:
        """Park all Workloads of the class that are in line."""
        self.in_line, self.parked = _merge_heaps(self.in_line, self.parked)
        self.parked_at = now

    def wake(self) -> None:
        """Move all parked Workloads of the class back in line."""
        self.parked, self.in_line = _merge_heaps(self.parked, self.in_line)


def _merge_heaps(source: WorkloadHeap, target: WorkloadHeap) -> tuple[WorkloadHeap, WorkloadHeap]:
    """Move the Workloads of the smaller heap to the larger one; return an empty heap and the merged heap."""
    if source.size > target.size:
        source, target = target, source
    for entry in list(source.members()):
        target.push(entry)
    return WorkloadHeap(), target


class FirstPendingCache:
    """Cache of the first pending Workloads in queue order; the owner resets it when a Workload is added or removed."""

    __slots__ = ("first_entries",)

    def __init__(self) -> None:
        self.first_entries: list[PendingEntry] | None = None

    def of(self, pending_entries: dict[str, PendingEntry], count: int) -> list[PendingEntry]:
        """Return the first `count` pending Workloads in queue order, without precedence for the current preemptor."""
        if self.first_entries is None or len(self.first_entries) < min(count, len(pending_entries)):
            entries = pending_entries.values()
            self.first_entries = (
                [min(entries, key=QUEUE_ORDER)] if count == 1 and entries else sorted(entries, key=QUEUE_ORDER)[:count]
            )
        return self.first_entries[:count]


def has_same_queue_state(old: WorkloadView, new: WorkloadView) -> bool:
    """Report whether two views of a Workload are equal in admissibility and queue order."""
    return (
        old.generation == new.generation
        and old.shape == new.shape
        and old.evicted == new.evicted
        and old.queued == new.queued
        and old.requeue_blocked == new.requeue_blocked
        and old.requeue_at == new.requeue_at
        and old.has_failed_check == new.has_failed_check
    )
