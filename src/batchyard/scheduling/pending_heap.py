"""The heap of a ClusterQueue's pending Workloads, and what is known of Workloads of equal shape."""

import heapq
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, TypeAlias

from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import Instant
from batchyard.scheduling.flavor_assigner import LastAssignment

Order: TypeAlias = tuple[int, Instant, str, str]


#: The queue order, except for the current preemptor.
ORDER: Final = attrgetter("order")


class PendingEntry:
    """A pending Workload; `line` is the line that it is in, None if it is held or removed."""

    __slots__ = ("last", "line", "order", "view")

    def __init__(self, view: WorkloadView, last: LastAssignment | None) -> None:
        self.view = view
        self.last = last
        self.order: Order = (-view.priority, view.queued, view.uid, view.key)
        self.line: WorkloadHeap | None = None

    def __lt__(self, _other: "PendingEntry") -> bool:
        """Heap entries compare by their order first; equal orders may come in any sequence."""
        return False


class WorkloadHeap:
    """A heap of Workloads with lazy deletion: removed entries are dropped when they reach the front."""

    __slots__ = ("_heap", "size")

    def __init__(self) -> None:
        self._heap: list[tuple[Order, PendingEntry]] = []
        self.size = 0

    def push(self, waiting: PendingEntry) -> None:
        """Add a Workload, and remove it from its previous line."""
        if waiting.line is not None:
            waiting.line.size -= 1
        waiting.line = self
        self.size += 1
        heapq.heappush(self._heap, (waiting.order, waiting))

    def first(self) -> PendingEntry | None:
        """Return the first Workload."""
        heap = self._heap
        while heap and heap[0][1].line is not self:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def in_order(self) -> Iterator[PendingEntry]:
        """Yield all Workloads in order. The cost depends on the number taken, not on the size of the line."""
        heap = self._heap
        edge = [(heap[0][0], 0)] if heap else []
        while edge:
            _, place = heapq.heappop(edge)
            if heap[place][1].line is self:
                yield heap[place][1]
            for below in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heapq.heappush(edge, (heap[below][0], below))

    def members(self) -> Iterator[PendingEntry]:
        """Yield all Workloads in no particular order."""
        return (waiting for _, waiting in self._heap if waiting.line is self)


class EquivalenceClass:
    """Equal Workloads of one namespace: those in line and those parked."""

    __slots__ = ("in_line", "parked", "parked_at")

    def __init__(self) -> None:
        self.in_line = WorkloadHeap()
        self.parked = WorkloadHeap()
        #: When a Workload was last parked.
        self.parked_at: Instant = 0

    def park(self, now: Instant) -> None:
        """Park all Workloads in line."""
        self.in_line, self.parked = _merged(self.in_line, self.parked)
        self.parked_at = now

    def wake(self) -> None:
        """Move all parked Workloads back in line."""
        self.parked, self.in_line = _merged(self.parked, self.in_line)


def _merged(source: WorkloadHeap, target: WorkloadHeap) -> tuple[WorkloadHeap, WorkloadHeap]:
    """Return an empty line and one with the Workloads of both, by pouring the smaller into the larger."""
    if source.size > target.size:
        source, target = target, source
    for waiting in list(source.members()):
        target.push(waiting)
    return WorkloadHeap(), target


class FirstPendingCache:
    """A cache of the first pending Workloads in order; it is dropped when a Workload is added or removed."""

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: list[PendingEntry] | None = None

    def of(self, waiting: dict[str, PendingEntry], count: int) -> list[PendingEntry]:
        """Return the first `count` Workloads; the current preemptor gets no precedence."""
        if self.known is None or len(self.known) < min(count, len(waiting)):
            found = waiting.values()
            self.known = [min(found, key=ORDER)] if count == 1 and found else sorted(found, key=ORDER)[:count]
        return self.known[:count]


def is_same(old: WorkloadView, new: WorkloadView) -> bool:
    """Report whether no change affects admissibility or queue order."""
    return (
        old.generation == new.generation
        and old.shape == new.shape
        and old.evicted == new.evicted
        and old.queued == new.queued
        and old.requeue_blocked == new.requeue_blocked
        and old.requeue_at == new.requeue_at
        and old.has_failed_check == new.has_failed_check
    )
