"""The Workloads waiting in one ClusterQueue: those in line, and those parked until something could help them.

In line, the order is: the one that preempts for its place, then priority, then waiting time, then uid. Equal Workloads
(same shape, same namespace) are kept together as a class: when one of them is found hopeless, all are parked, and
when quota may have become free, all come back, each in a step that does not depend on how many they are. What must
not be tried for reasons of its own (a backoff) is held apart. In a StrictFIFO queue nobody is parked for lack of quota.
Source: Kueue's pkg/cache/queue (cluster_queue, inadmissible_workloads).
"""

import heapq
from collections.abc import Callable, Iterator
from itertools import chain, islice
from operator import attrgetter
from typing import Final, TypeAlias

from batchyard.api.views.workload import Shape, WorkloadView
from batchyard.base.instant import Instant
from batchyard.scheduling.assignment import LastAssignment
from batchyard.scheduling.decisions import Head
from batchyard.scheduling.messages import RequeueReason

Order: TypeAlias = tuple[int, Instant, str, str]
ClassKey: TypeAlias = tuple[Shape, str]

_IN_LINE_AGAIN: Final = (RequeueReason.FAILED_AFTER_NOMINATION, RequeueReason.PENDING_PREEMPTION)
_HOPELESS: Final = (RequeueReason.NO_FIT, RequeueReason.PREEMPTION_NO_CANDIDATES)


#: The order of turns, but for the one that preempts for its place.
_ORDER: Final = attrgetter("order")


class Waiting:
    """A Workload that waits; `line` is where, None when it is held or gone."""

    __slots__ = ("last", "line", "order", "view")

    def __init__(self, view: WorkloadView, last: LastAssignment | None) -> None:
        self.view = view
        self.last = last
        self.order: Order = (-view.priority, view.queued, view.uid, view.key)
        self.line: Line | None = None

    def __lt__(self, _other: "Waiting") -> bool:
        """In heaps the order stands before it: where that is equal, either may go first."""
        return False


class Line:
    """Workloads in order. Those that leave from the middle are dropped when they come to the front."""

    __slots__ = ("_heap", "size")

    def __init__(self) -> None:
        self._heap: list[tuple[Order, Waiting]] = []
        self.size = 0

    def push(self, waiting: Waiting) -> None:
        """Add one, wherever it was before."""
        if waiting.line is not None:
            waiting.line.size -= 1
        waiting.line = self
        self.size += 1
        heapq.heappush(self._heap, (waiting.order, waiting))

    def first(self) -> Waiting | None:
        """The foremost."""
        heap = self._heap
        while heap and heap[0][1].line is not self:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def in_order(self) -> Iterator[Waiting]:
        """All, the foremost first: what is looked at grows with what is taken of it, not with the line."""
        heap = self._heap
        edge = [(heap[0][0], 0)] if heap else []
        while edge:
            _, place = heapq.heappop(edge)
            if heap[place][1].line is self:
                yield heap[place][1]
            for below in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heapq.heappush(edge, (heap[below][0], below))

    def members(self) -> Iterator[Waiting]:
        """All, in no particular order."""
        return (waiting for _, waiting in self._heap if waiting.line is self)


class PendingClass:
    """Equal Workloads of one namespace: those in line and those parked."""

    __slots__ = ("in_line", "parked", "parked_at")

    def __init__(self) -> None:
        self.in_line = Line()
        self.parked = Line()
        #: When one of them was parked last.
        self.parked_at: Instant = 0

    def park(self, now: Instant) -> None:
        """Move those in line to the parked ones."""
        self.in_line, self.parked = _merged(self.in_line, self.parked)
        self.parked_at = now

    def wake(self) -> None:
        """Move the parked ones back in line."""
        self.parked, self.in_line = _merged(self.parked, self.in_line)


def _merged(source: Line, target: Line) -> tuple[Line, Line]:
    """An empty line and one with all of both: the smaller is poured into the larger."""
    if source.size > target.size:
        source, target = target, source
    for waiting in list(source.members()):
        target.push(waiting)
    return Line(), target


class Foremost:
    """The first of all that wait, in order, as many as were asked for; forgotten when somebody comes or goes."""

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: list[Waiting] | None = None

    def of(self, waiting: dict[str, Waiting], count: int) -> list[Waiting]:
        """So many of them; who preempts for his place is not before others here."""
        if self.known is None or len(self.known) < min(count, len(waiting)):
            found = waiting.values()
            self.known = [min(found, key=_ORDER)] if count == 1 and found else sorted(found, key=_ORDER)[:count]
        return self.known[:count]


class Waiters:
    """Who waits in one ClusterQueue, and in which order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.strict_fifo = False
        self._waiting: dict[str, Waiting] = {}
        self._classes: dict[ClassKey, PendingClass] = {}
        #: The fronts of classes in line; stale ones are dropped on sight.
        self._fronts: list[tuple[Order, Waiting, ClassKey]] = []
        #: Shapes found hopeless since the last wake-up.
        self._hopeless: dict[Shape, str] = {}
        self._held: dict[str, Waiting] = {}
        self._sticky = ""
        #: How many wait, by LocalQueue.
        self.by_local_queue: dict[str, int] = {}
        self._foremost = Foremost()

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, key: str) -> Waiting | None:
        """The Workload of that key, if it waits here."""
        return self._waiting.get(key)

    def classes(self) -> list[tuple[ClassKey, PendingClass]]:
        """Those that wait, class by class; some may be empty."""
        return list(self._classes.items())

    def held(self) -> list[WorkloadView]:
        """Those that must wait for a time or a condition of their own."""
        return [waiting.view for waiting in self._held.values()]

    def views(self) -> list[WorkloadView]:
        """All that wait, in the order of their turn."""
        return [w.view for w in sorted(self._waiting.values(), key=lambda w: (w.view.key != self._sticky, w.order))]

    def front(self, most: int) -> list[WorkloadView]:
        """The foremost of those that may be tried, in the order of their turn."""
        lines = [line.in_order() for each in self._classes.values() for line in (each.in_line, each.parked)]
        sticky = self._waiting.get(self._sticky)
        first = [sticky] if sticky is not None and sticky.line is not None else []
        found = {w.view.key: w.view for w in islice(chain(first, heapq.merge(*lines, key=_ORDER)), most + 1)}
        return list(found.values())[:most]

    @property
    def preemptor(self) -> str:
        """The Workload, by key, that stays at the front until those it preempts are gone; '' if none does."""
        sticky = self._waiting.get(self._sticky)
        return self._sticky if sticky is not None and self._is_in_line(sticky) else ""

    def let_go_of_preemptor(self, key: str) -> None:
        """A Workload does not stay at the front after all, if it did."""
        if self._sticky == key:
            self._sticky = ""

    def place_of(self, key: str) -> int:
        """How many are before a Workload that waits here."""
        if key == self._sticky:
            return 0
        order, sticky = self._waiting[key].order, self._waiting.get(self._sticky)
        return sum([w.order < order for w in self._waiting.values()]) + (sticky is not None and sticky.order > order)

    def first(self, count: int) -> list[WorkloadView]:
        """The first of those that wait, in the order of their turn."""
        first, sticky = self._foremost.of(self._waiting, count), self._waiting.get(self._sticky)
        if sticky is not None:
            first = [sticky, *(each for each in first if each is not sticky)][:count]
        return [each.view for each in first]

    @property
    def has_held(self) -> bool:
        """Whether somebody must wait for a time or a condition of its own."""
        return bool(self._held)

    @property
    def may_wake(self) -> bool:
        """Whether a wake-up could change anything."""
        return bool(self._waiting or self._hopeless)

    def parked_at(self, key: str) -> Instant | None:
        """When a Workload, or one equal to it, was parked last; None if it is not parked here."""
        waiting = self._waiting.get(key)
        members = None if waiting is None else self._classes.get(_class_key(waiting.view))
        if waiting is None or members is None or waiting.line is not members.parked:
            return None
        return members.parked_at

    def was_tried(self, key: str, now: Instant) -> None:
        """A Workload that waits here was tried then, as another scheduler says: those after it were not before."""
        order = self._waiting[key].order
        for members in self._classes.values():
            if any(waiting.order > order for waiting in members.parked.members()):
                members.parked_at = max(members.parked_at, now)

    def has_parked_before(self, key: str, since: Instant) -> bool:
        """Whether some who are before a Workload that waits here were parked since then."""
        order = self._waiting[key].order
        lately = [each.parked.first() for each in self._classes.values() if each.parked_at >= since]
        return any(first is not None and first.order < order for first in lately)

    def head_of(self, key: str) -> Head:
        """A Workload that waits here, as if it were its turn."""
        waiting = self._waiting[key]
        return Head(waiting.view, self.name, waiting.last)

    def _is_in_line(self, waiting: Waiting) -> bool:
        members = self._classes.get(_class_key(waiting.view))
        return members is not None and waiting.line is members.in_line


class PendingQueue(Waiters):
    """What waits in one ClusterQueue."""

    def clear(self) -> None:
        """Forget all, and leave no cycles."""
        for waiting in self._waiting.values():
            waiting.line = None
        for table in (self._waiting, self._classes, self._hopeless, self._held, self._fronts):
            table.clear()

    def has_heads(self) -> bool:
        """Whether anybody is in line."""
        return self._front() is not None

    def put(self, view: WorkloadView, now: Instant) -> bool:
        """Add a Workload, or take note of a change of one; whether it came into line by that."""
        known = self._waiting.get(view.key)
        if known is not None and _is_same(known.view, view):
            known.view = view
            return False
        was_in_line = known is not None and self._is_in_line(known)
        waiting = Waiting(view, known.last if known is not None and known.view.shape == view.shape else None)
        self.remove(view.key, forget_sticky=False)
        self._enter(waiting)
        if not was_in_line and must_wait(view, now):
            self._held[view.key] = waiting
            return False
        if not was_in_line and not self.strict_fifo and view.shape in self._hopeless:
            self._class_of(view).parked.push(waiting)
            return False
        self._push(waiting)
        return True

    def bring_back(self, key: str) -> None:
        """Put one that is parked back in line, alone."""
        self._push(self._waiting[key])

    def put_in_line(self, view: WorkloadView) -> None:
        """Add a Workload in line unless it waits already, as when its LocalQueue appears."""
        if view.key not in self._waiting:
            waiting = Waiting(view, None)
            self._enter(waiting)
            self._push(waiting)

    def head(self) -> Head | None:
        """The one whose turn it is. It stays in line until it is requeued, or removed when it is admitted."""
        waiting = self._front()
        return None if waiting is None else Head(waiting.view, self.name, waiting.last)

    def no_fit_reason(self, view: WorkloadView) -> str:
        """The reason why a parked Workload is not tried: one of its shape did not fit; '' if it is tried."""
        waiting = self._waiting.get(view.key)
        is_parked = waiting is not None and not self._is_in_line(waiting)
        return self._hopeless.get(view.shape, "") if is_parked else ""

    def requeue(
        self, head: Head, last: LastAssignment | None, reason: RequeueReason, now: Instant, why: str = ""
    ) -> bool:
        """Put a head back, in line or parked; whether it was parked. `why` is the reason that its condition gets."""
        view = head.workload
        if reason is RequeueReason.PENDING_PREEMPTION and not self.strict_fifo:
            self._sticky = view.key
        waiting = self._waiting.get(view.key)
        if waiting is None or waiting.view is not view:
            self.remove(view.key, forget_sticky=False)
            waiting = Waiting(view, last)
            self._enter(waiting)
        waiting.last = last
        if must_wait(view, now):
            self._leave(waiting)
            self._held[view.key] = waiting
            return True
        if self._stays_in_line(reason) or last is not None:
            if waiting.line is None:
                self._push(waiting)
            return False
        if reason in _HOPELESS and not self.strict_fifo:
            self._park_shape(view.shape, now, why)
        members = self._class_of(view)
        if waiting.line is not members.parked:
            members.parked.push(waiting)
            members.parked_at = now
            self._show_front(_class_key(view), members)
        return True

    def wake(self, admits_namespace: Callable[[str], bool], now: Instant) -> bool:
        """Bring back into line what is parked, but for namespaces the queue does not admit; whether any came."""
        self._hopeless.clear()
        woken = False
        for key, members in self._classes.items():
            if members.parked.size and admits_namespace(key[1]):
                members.wake()
                self._show_front(key, members)
                woken = True
        for waiting in list(self._held.values()):
            if not must_wait(waiting.view, now) and admits_namespace(waiting.view.namespace):
                del self._held[waiting.view.key]
                self._push(waiting)
                woken = True
        return woken

    def remove(self, key: str, *, forget_sticky: bool = True) -> bool:
        """Forget a Workload; whether it waited here."""
        if forget_sticky:
            self.let_go_of_preemptor(key)
        waiting = self._waiting.get(key)
        if waiting is None:
            return False
        self._held.pop(key, None)
        self._exit(waiting)
        return True

    def next_release(self) -> Instant | None:
        """When the first of those held may be tried again; None if time alone frees nobody."""
        times = [w.view.requeue_at for w in self._held.values() if not w.view.requeue_blocked]
        return min((t for t in times if t is not None), default=None)

    def _stays_in_line(self, reason: RequeueReason) -> bool:
        return reason is not RequeueReason.NAMESPACE_MISMATCH if self.strict_fifo else reason in _IN_LINE_AGAIN

    def _class_of(self, view: WorkloadView) -> PendingClass:
        key = _class_key(view)
        members = self._classes.get(key)
        if members is None:
            members = self._classes[key] = PendingClass()
        return members

    def _push(self, waiting: Waiting) -> None:
        members = self._class_of(waiting.view)
        members.in_line.push(waiting)
        if members.in_line.first() is waiting:
            self._show_front(_class_key(waiting.view), members)

    def _enter(self, waiting: Waiting) -> None:
        view = waiting.view
        self._foremost.known = None
        self._waiting[view.key] = waiting
        self.by_local_queue[view.queue] = self.by_local_queue.get(view.queue, 0) + 1

    def _exit(self, waiting: Waiting) -> None:
        view = waiting.view
        self._foremost.known = None
        del self._waiting[view.key]
        self.by_local_queue[view.queue] -= 1
        self._leave(waiting)

    def _leave(self, waiting: Waiting) -> None:
        """Take out of its line; a class that becomes empty goes."""
        line = waiting.line
        if line is None:
            return
        was_first = line.first() is waiting
        line.size -= 1
        waiting.line = None
        key = _class_key(waiting.view)
        members = self._classes[key]
        if not members.in_line.size and not members.parked.size:
            del self._classes[key]
        elif was_first and line is members.in_line:
            self._show_front(key, members)

    def _show_front(self, key: ClassKey, members: PendingClass) -> None:
        first = members.in_line.first()
        if first is not None:
            heapq.heappush(self._fronts, (first.order, first, key))

    def _front(self) -> Waiting | None:
        """The one whose turn it is."""
        if self._sticky:
            sticky = self._waiting.get(self._sticky)
            if sticky is not None and self._is_in_line(sticky):
                return sticky
        fronts = self._fronts
        while fronts:
            order, shown, key = fronts[0]
            members = self._classes.get(key)
            first = members.in_line.first() if members is not None else None
            if first is not None and first is shown and first.order == order:
                return first
            heapq.heappop(fronts)
        return None

    def _park_shape(self, shape: Shape, now: Instant, why: str) -> None:
        self._hopeless[shape] = why
        for key, members in self._classes.items():
            if key[0] == shape and members.in_line.size:
                members.park(now)


def must_wait(view: WorkloadView, now: Instant) -> bool:
    """Whether a Workload must not be tried yet, whatever the quota."""
    return view.requeue_blocked or (view.requeue_at is not None and view.requeue_at > now)


def _class_key(view: WorkloadView) -> ClassKey:
    return view.shape, view.namespace


def _is_same(old: WorkloadView, new: WorkloadView) -> bool:
    """Whether nothing changed that could make a Workload admissible or move it in the order."""
    return (
        old.generation == new.generation
        and old.shape == new.shape
        and old.evicted == new.evicted
        and old.queued == new.queued
        and old.requeue_blocked == new.requeue_blocked
        and old.requeue_at == new.requeue_at
        and old.has_failed_check == new.has_failed_check
    )
