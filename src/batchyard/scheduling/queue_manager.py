"""Queue manager: tracks which ClusterQueues have Workloads in line, and which trees rest.

A change that may make Workloads admissible marks a ClusterQueue. Before the next cycle, or after a delay, the parked
Workloads of its whole tree are reactivated. A tree in which a cycle changed nothing rests until something in it
changes. A tree frozen in a preemption loop rests for that instant regardless of changes.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from typing import Final, TypeAlias

from batchyard.api.views.workload import Shape, WorkloadView
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.decisions import Head
from batchyard.scheduling.flavor_assigner import LastAssignment
from batchyard.scheduling.messages import RequeueReason
from batchyard.scheduling.pending_heap import ORDER, EquivalenceClass, FirstPendingCache, Order, PendingEntry, is_same
from batchyard.scheduling.snapshot import Snapshot

ClassKey: TypeAlias = tuple[Shape, str]

_IN_LINE_AGAIN: Final = (RequeueReason.FAILED_AFTER_NOMINATION, RequeueReason.PENDING_PREEMPTION)
_HOPELESS: Final = (RequeueReason.NO_FIT, RequeueReason.PREEMPTION_NO_CANDIDATES)


class PendingQueueReader:
    """The pending Workloads of one ClusterQueue, for reading."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.strict_fifo = False
        self._waiting: dict[str, PendingEntry] = {}
        self._classes: dict[ClassKey, EquivalenceClass] = {}
        #: The fronts of classes in line; stale ones are dropped when found.
        self._fronts: list[tuple[Order, PendingEntry, ClassKey]] = []
        #: Shapes that could not fit since the last reactivation, each with the reason.
        self._hopeless: dict[Shape, str] = {}
        self._held: dict[str, PendingEntry] = {}
        self._sticky = ""
        #: The number of pending Workloads by LocalQueue.
        self.by_local_queue: dict[str, int] = {}
        self._foremost = FirstPendingCache()

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, key: str) -> PendingEntry | None:
        """Return the pending Workload of that key, if any."""
        return self._waiting.get(key)

    def classes(self) -> list[tuple[ClassKey, EquivalenceClass]]:
        """Return the pending Workloads by class; some classes may be empty."""
        return list(self._classes.items())

    def held(self) -> list[WorkloadView]:
        """Return the Workloads held by a backoff or a condition."""
        return [waiting.view for waiting in self._held.values()]

    def views(self) -> list[WorkloadView]:
        """Return all pending Workloads in queue order."""
        return [w.view for w in sorted(self._waiting.values(), key=lambda w: (w.view.key != self._sticky, w.order))]

    def front(self, most: int) -> list[WorkloadView]:
        """Return the first Workloads in line or parked, in queue order."""
        lines = [line.in_order() for each in self._classes.values() for line in (each.in_line, each.parked)]
        sticky = self._waiting.get(self._sticky)
        first = [sticky] if sticky is not None and sticky.line is not None else []
        found = {w.view.key: w.view for w in islice(chain(first, heapq.merge(*lines, key=ORDER)), most + 1)}
        return list(found.values())[:most]

    @property
    def preemptor(self) -> str:
        """The key of the Workload that stays at the head until its victims are gone; '' if there is none."""
        sticky = self._waiting.get(self._sticky)
        return self._sticky if sticky is not None and self._is_in_line(sticky) else ""

    def release_preemptor(self, key: str) -> None:
        """Stop keeping a Workload at the head, if it was kept."""
        if self._sticky == key:
            self._sticky = ""

    def place_of(self, key: str) -> int:
        """Return the number of Workloads ahead of a pending one."""
        if key == self._sticky:
            return 0
        order, sticky = self._waiting[key].order, self._waiting.get(self._sticky)
        return sum([w.order < order for w in self._waiting.values()]) + (sticky is not None and sticky.order > order)

    def first(self, count: int) -> list[WorkloadView]:
        """Return the first pending Workloads in queue order."""
        first, sticky = self._foremost.of(self._waiting, count), self._waiting.get(self._sticky)
        if sticky is not None:
            first = [sticky, *(each for each in first if each is not sticky)][:count]
        return [each.view for each in first]

    @property
    def has_held(self) -> bool:
        """Whether any Workload is held by a backoff or a condition."""
        return bool(self._held)

    @property
    def may_reactivate(self) -> bool:
        """Whether a reactivation could change anything."""
        return bool(self._waiting or self._hopeless)

    def parked_at(self, key: str) -> Instant | None:
        """Return when a Workload or an equal one was last parked; None if it is not parked here."""
        waiting = self._waiting.get(key)
        members = None if waiting is None else self._classes.get(_class_key(waiting.view))
        if waiting is None or members is None or waiting.line is not members.parked:
            return None
        return members.parked_at

    def record_attempt(self, key: str, now: Instant) -> None:
        """Record that another scheduler tried a pending Workload at `now`: it has not tried later ones before that."""
        order = self._waiting[key].order
        for members in self._classes.values():
            if any(waiting.order > order for waiting in members.parked.members()):
                members.parked_at = max(members.parked_at, now)

    def has_parked_before(self, key: str, since: Instant) -> bool:
        """Report whether Workloads ahead of a pending one were parked since then."""
        order = self._waiting[key].order
        lately = [each.parked.first() for each in self._classes.values() if each.parked_at >= since]
        return any(first is not None and first.order < order for first in lately)

    def head_of(self, key: str) -> Head:
        """Return a pending Workload as a head."""
        waiting = self._waiting[key]
        return Head(waiting.view, self.name, waiting.last)

    def _is_in_line(self, waiting: PendingEntry) -> bool:
        members = self._classes.get(_class_key(waiting.view))
        return members is not None and waiting.line is members.in_line


class PendingQueue(PendingQueueReader):
    """The pending Workloads of one ClusterQueue."""

    def clear(self) -> None:
        """Remove all Workloads, and break reference cycles."""
        for waiting in self._waiting.values():
            waiting.line = None
        for table in (self._waiting, self._classes, self._hopeless, self._held, self._fronts):
            table.clear()

    def has_heads(self) -> bool:
        """Report whether any Workload is in line."""
        return self._front() is not None

    def put(self, view: WorkloadView, now: Instant) -> bool:
        """Add or update a Workload. Return whether that put it in line."""
        known = self._waiting.get(view.key)
        if known is not None and is_same(known.view, view):
            known.view = view
            return False
        was_in_line = known is not None and self._is_in_line(known)
        waiting = PendingEntry(view, known.last if known is not None and known.view.shape == view.shape else None)
        self.remove(view.key, forget_sticky=False)
        self._enter(waiting)
        if not was_in_line and is_held_back(view, now):
            self._held[view.key] = waiting
            return False
        if not was_in_line and not self.strict_fifo and view.shape in self._hopeless:
            self._class_of(view).parked.push(waiting)
            return False
        self._push(waiting)
        return True

    def unpark(self, key: str) -> None:
        """Put a single parked Workload back in line."""
        self._push(self._waiting[key])

    def put_in_line(self, view: WorkloadView) -> None:
        """Put a Workload in line unless it is already pending, as when its LocalQueue is created."""
        if view.key not in self._waiting:
            waiting = PendingEntry(view, None)
            self._enter(waiting)
            self._push(waiting)

    def head(self) -> Head | None:
        """Return the head. It stays in line until it is requeued or, on admission, removed."""
        waiting = self._front()
        return None if waiting is None else Head(waiting.view, self.name, waiting.last)

    def no_fit_reason(self, view: WorkloadView) -> str:
        """Return why a parked Workload is bypassed (one of its shape did not fit); '' if it is not."""
        waiting = self._waiting.get(view.key)
        is_parked = waiting is not None and not self._is_in_line(waiting)
        return self._hopeless.get(view.shape, "") if is_parked else ""

    def requeue(
        self, head: Head, last: LastAssignment | None, reason: RequeueReason, now: Instant, why: str = ""
    ) -> bool:
        """Requeue a head. Return whether it was parked. `why` is the reason for its condition."""
        view = head.workload
        if reason is RequeueReason.PENDING_PREEMPTION and not self.strict_fifo:
            self._sticky = view.key
        waiting = self._waiting.get(view.key)
        if waiting is None or waiting.view is not view:
            self.remove(view.key, forget_sticky=False)
            waiting = PendingEntry(view, last)
            self._enter(waiting)
        waiting.last = last
        if is_held_back(view, now):
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
        """Reactivate parked Workloads of the namespaces that the queue admits. Return whether there were any."""
        self._hopeless.clear()
        woken = False
        for key, members in self._classes.items():
            if members.parked.size and admits_namespace(key[1]):
                members.wake()
                self._show_front(key, members)
                woken = True
        for waiting in list(self._held.values()):
            if not is_held_back(waiting.view, now) and admits_namespace(waiting.view.namespace):
                del self._held[waiting.view.key]
                self._push(waiting)
                woken = True
        return woken

    def remove(self, key: str, *, forget_sticky: bool = True) -> bool:
        """Remove a Workload. Return whether it was pending here."""
        if forget_sticky:
            self.release_preemptor(key)
        waiting = self._waiting.get(key)
        if waiting is None:
            return False
        self._held.pop(key, None)
        self._exit(waiting)
        return True

    def next_release(self) -> Instant | None:
        """Return when the first held Workload may be tried again; None if none is held by time."""
        times = [w.view.requeue_at for w in self._held.values() if not w.view.requeue_blocked]
        return min((t for t in times if t is not None), default=None)

    def _stays_in_line(self, reason: RequeueReason) -> bool:
        return reason is not RequeueReason.NAMESPACE_MISMATCH if self.strict_fifo else reason in _IN_LINE_AGAIN

    def _class_of(self, view: WorkloadView) -> EquivalenceClass:
        key = _class_key(view)
        members = self._classes.get(key)
        if members is None:
            members = self._classes[key] = EquivalenceClass()
        return members

    def _push(self, waiting: PendingEntry) -> None:
        members = self._class_of(waiting.view)
        members.in_line.push(waiting)
        if members.in_line.first() is waiting:
            self._show_front(_class_key(waiting.view), members)

    def _enter(self, waiting: PendingEntry) -> None:
        view = waiting.view
        self._foremost.known = None
        self._waiting[view.key] = waiting
        self.by_local_queue[view.queue] = self.by_local_queue.get(view.queue, 0) + 1

    def _exit(self, waiting: PendingEntry) -> None:
        view = waiting.view
        self._foremost.known = None
        del self._waiting[view.key]
        self.by_local_queue[view.queue] -= 1
        self._leave(waiting)

    def _leave(self, waiting: PendingEntry) -> None:
        """Remove a Workload from its line, and remove its class if that is empty."""
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

    def _show_front(self, key: ClassKey, members: EquivalenceClass) -> None:
        first = members.in_line.first()
        if first is not None:
            heapq.heappush(self._fronts, (first.order, first, key))

    def _front(self) -> PendingEntry | None:
        """Return the head of the queue."""
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


def is_held_back(view: WorkloadView, now: Instant) -> bool:
    """Report whether a Workload must not be tried yet, regardless of quota."""
    return view.requeue_blocked or (view.requeue_at is not None and view.requeue_at > now)


def _class_key(view: WorkloadView) -> ClassKey:
    return view.shape, view.namespace


#: How long Kueue batches changes before it reactivates parked Workloads. Quota that is released bit by bit, as by slow
#: victims, is thus first available to Workloads in line, such as the preemptor.
#: Source: requeueBatchPeriod in pkg/cache/queue/inadmissible_workloads.go of Kueue.
KUEUE_REQUEUE_BATCH_PERIOD: Final = SECOND


class QueueManager:
    """The pending queues of all ClusterQueues, and which of them have work."""

    def __init__(
        self,
        snapshot: Snapshot,
        namespaces: Mapping[str, Mapping[str, str]],
        requeue_batch_period: Duration = 0,
        *,
        is_woken_from_outside: bool = False,
    ) -> None:
        self.pending: dict[str, PendingQueue] = {}
        #: By tree, the number of changes in it.
        self.touches: dict[str, int] = {}
        self.now: Instant = 0
        self._snapshot = snapshot
        self._namespaces = namespaces
        #: The delay from marking a tree to its reactivation; 0 reactivates at once.
        self.requeue_batch_period = requeue_batch_period
        #: Whether another component reactivates trees during that delay.
        self.is_woken_from_outside = is_woken_from_outside
        #: Marked ClusterQueues, each with the time of marking.
        self._to_wake: dict[str, Instant] = {}
        #: ClusterQueues that may have Workloads in line, except those of resting trees.
        self._in_line: dict[str, None] = {}
        #: Resting trees, each with its ClusterQueues that may have Workloads in line.
        self._resting: dict[str, list[str]] = {}
        self._frozen: dict[str, Instant] = {}
        #: ClusterQueues with held Workloads.
        self._holding: dict[str, None] = {}
        #: Trees whose quota was released without a reactivation: by root, a ClusterQueue and the deadline for one.
        self._unnoticed: dict[str, tuple[str, Instant]] = {}

    def has_work(self) -> bool:
        """Report whether a cycle may have something to decide."""
        return bool(self._to_wake) or bool(self._in_line) or bool(self._unnoticed)

    def heads(self) -> list[Head]:
        """Reactivate marked trees, then return the head of every ClusterQueue that has one and can admit."""
        if self._to_wake and not (self.requeue_batch_period and self.is_woken_from_outside):
            self.reactivate_marked(self.now - self.requeue_batch_period)
        heads = []
        for name in sorted(self._in_line):
            queue, waiting = self._snapshot.queues.get(name), self.pending.get(name)
            head = waiting.head() if queue is not None and waiting is not None and queue.active else None
            if head is None:
                del self._in_line[name]
            else:
                heads.append(head)
        return heads

    def put(self, name: str, view: WorkloadView) -> None:
        """Add or update a pending Workload of a ClusterQueue."""
        waiting = self.pending.get(name)
        if waiting is None:
            return
        if waiting.put(view, self.now):
            self.show_new(name)
        if waiting.has_held:
            self._holding[name] = None

    def requeue(self, head: Head, last: LastAssignment | None, reason: RequeueReason, why: str = "") -> bool:
        """Requeue a head. Return whether it was parked."""
        waiting = self.pending[head.queue]
        parked = waiting.requeue(head, last, reason, self.now, why)
        if waiting.has_held:
            self._holding[head.queue] = None
        if head.queue not in self._in_line:
            self._show(head.queue, self._snapshot.queues.get(head.queue))
        return parked

    def show_new(self, name: str) -> None:
        """Record that a ClusterQueue has a new Workload in line."""
        queue = self._snapshot.queues.get(name)
        self._show(name, queue)
        if queue is not None:
            self.touch(queue)

    def wake(self, name: str) -> None:
        """Mark a ClusterQueue: a change in it may make parked Workloads of its tree admissible."""
        self._to_wake.setdefault(name, self.now)

    def reactivate_later(self, queue: ClusterQueue, when: Instant) -> None:
        """Reactivate a tree at that time unless it is reactivated before."""
        self._unnoticed.setdefault(queue.node.tree, (queue.name, when))

    def mark_due(self) -> None:
        """Mark ClusterQueues whose held Workloads or deadlines are due."""
        for name in list(self._holding):
            waiting = self.pending.get(name)
            if waiting is None or not waiting.has_held:
                del self._holding[name]
                continue
            release = waiting.next_release()
            if release is not None and release <= self.now:
                self._to_wake[name] = self.now - self.requeue_batch_period
        for root, (name, until) in list(self._unnoticed.items()):
            if until <= self.now:
                # The tree may have another root by now, or the queue may be deleted; then all trees are reactivated.
                del self._unnoticed[root]
                self._to_wake.update(dict.fromkeys([name] if name in self.pending else self.pending, until))

    def next_release(self) -> Instant | None:
        """Return the time of the next release or reactivation; None if there is none."""
        queues = [self.pending[name] for name in self._holding if name in self.pending]
        times = [t for queue in queues if (t := queue.next_release()) is not None]
        times += [until for _, until in self._unnoticed.values()]
        times += (
            [since + self.requeue_batch_period for since in self._to_wake.values()] if self.requeue_batch_period else []
        )
        return min(times, default=None)

    def touch(self, queue: ClusterQueue) -> None:
        """Record a change in the queue's tree."""
        root = queue.node.tree
        self.touches[root] = self.touches.get(root, 0) + 1
        if self._frozen and self._frozen.get(root) == self.now:
            return
        self._frozen.pop(root, None)
        for name in self._resting.pop(root, ()):
            self._in_line[name] = None

    def activate_all(self) -> None:
        """Activate all trees after a rebuild."""
        self.touches = {root: count + 1 for root, count in self.touches.items()}
        for names in self._resting.values():
            self._in_line.update(dict.fromkeys(names))
        self._resting.clear()
        self._frozen.clear()

    def rest(self, root: str) -> None:
        """Let a tree rest until something in it changes."""
        resting = self._resting.setdefault(root, [])
        for name in list(self._in_line):
            queue = self._snapshot.queues.get(name)
            if queue is not None and queue.node.tree == root:
                resting.append(name)
                del self._in_line[name]

    def freeze(self, root: str) -> None:
        """Let a tree rest for this instant, and then until something in it changes."""
        self._frozen[root] = self.now
        self.rest(root)

    def forget(self, name: str) -> None:
        """Remove a deleted ClusterQueue."""
        for table in (self.pending, self._in_line, self._to_wake, self._holding):
            table.pop(name, None)

    def _show(self, name: str, queue: ClusterQueue | None) -> None:
        """Record that a ClusterQueue may have Workloads in line; a frozen tree keeps resting."""
        if queue is not None and self._frozen and self._frozen.get(queue.node.tree) == self.now:
            self._resting.setdefault(queue.node.tree, []).append(name)
        else:
            self._in_line[name] = None

    def reactivate_marked(self, marked_by: Instant, may_reactivate: Callable[[str], bool] = bool) -> list[str]:
        """Reactivate trees marked by then, if `may_reactivate` allows it. Return their roots."""
        marked: dict[str, list[str]] = {}
        for name in self._to_wake:
            queue = self._snapshot.queues.get(name)
            marked.setdefault("" if queue is None else queue.node.tree, []).append(name)
        woken = []
        for root, names in marked.items():
            if not root:
                self._unmark(names)
            elif min([self._to_wake[name] for name in names]) <= marked_by and may_reactivate(root):
                self._unmark(names)
                self._wake(root, self._snapshot.queues[names[-1]])
                woken.append(root)
        return woken

    def _unmark(self, names: Iterable[str]) -> None:
        for name in names:
            del self._to_wake[name]

    def _wake(self, root: str, any_queue: ClusterQueue) -> None:
        self._unnoticed.pop(root, None)
        self.touch(any_queue)
        for queue in self._snapshot.queues_below(any_queue.node.path[0]):
            waiting = self.pending[queue.name]
            if waiting.may_reactivate and waiting.wake(self._admits(queue), self.now):
                self._show(queue.name, queue)

    def _admits(self, queue: ClusterQueue) -> Callable[[str], bool]:
        selector = queue.view.namespaces

        def admits(namespace: str) -> bool:
            labels = self._namespaces.get(namespace)
            return selector is not None and labels is not None and selector.matches(labels)

        return admits
