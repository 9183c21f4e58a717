"""Queue manager: tracks which ClusterQueues have Workloads in line, and which trees rest.

A change that may make Workloads admissible marks a ClusterQueue. Before the next cycle, or after a delay, the parked
Workloads of its whole tree are reactivated. A tree in which a cycle changed nothing rests until something in it
changes. A tree frozen in a preemption loop rests for that instant regardless of changes.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from batchyard.api.views.workload import WorkloadView
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.scheduling.assignment import LastAssignment
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.decisions import Head
from batchyard.scheduling.messages import RequeueReason
from batchyard.scheduling.pending_queue import PendingQueue
from batchyard.scheduling.snapshot import Snapshot

#: How long Kueue batches changes before it reactivates parked Workloads. Quota that is released bit by bit, as by slow
#: victims, is thus first available to Workloads in line, such as the preemptor.
#: Source: requeueBatchPeriod in pkg/cache/queue/inadmissible_workloads.go of Kueue.
KUEUE_REQUEUE_BATCH_PERIOD: Final = SECOND


class QueueManager:
    """The pending queues of all ClusterQueues, and which of them have work."""

    def __init__(self, snapshot: Snapshot, namespaces: Mapping[str, Mapping[str, str]]) -> None:
        self.pending: dict[str, PendingQueue] = {}
        #: By tree, the number of changes in it.
        self.touches: dict[str, int] = {}
        self.now: Instant = 0
        self._snapshot = snapshot
        self._namespaces = namespaces
        #: The delay from marking a tree to its reactivation; 0 reactivates at once.
        self.gathers: Duration = 0
        #: Whether another component reactivates trees during that delay.
        self.is_woken_from_outside = False
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
        if self._to_wake and not (self.gathers and self.is_woken_from_outside):
            self.reactivate_marked(self.now - self.gathers)
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
                self._to_wake[name] = self.now - self.gathers
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
        times += [since + self.gathers for since in self._to_wake.values()] if self.gathers else []
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
