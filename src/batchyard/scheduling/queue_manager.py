"""Pending queues of all ClusterQueues, and the manager that decides which queues and cohort trees a cycle considers.

A change that may make Workloads admissible marks a ClusterQueue. Before the next cycle, or after a delay, the parked
(inadmissible) Workloads of its whole cohort tree are put back in line. A tree in which a cycle changed nothing is
paused until something in it changes. A tree with a preemption loop is frozen: it stays paused, regardless of changes,
until the clock advances or the trees are rebuilt.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, islice
from typing import Final

from batchyard.api.views.workload import Shape, WorkloadView
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.scheduling import pending_heap
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.decisions import DEFAULT_RULES, DecisionRules, Head
from batchyard.scheduling.flavor_assigner import LastAssignment
from batchyard.scheduling.messages import RequeueReason
from batchyard.scheduling.pending_heap import EquivalenceClassKey
from batchyard.scheduling.snapshot import Snapshot

_STAY_IN_LINE_REASONS: Final = (RequeueReason.FAILED_AFTER_NOMINATION, RequeueReason.PENDING_PREEMPTION)
_NO_FIT_REASONS: Final = (RequeueReason.NO_FIT, RequeueReason.PREEMPTION_NO_CANDIDATES)


class PendingQueueReader:
    """Read access to the pending Workloads of one ClusterQueue.
    A pending Workload is in line, parked or held back. Scheduling cycles try the Workloads in line. A parked Workload
    is inadmissible until a change that may help it. A held-back Workload waits for the end of its requeue backoff, or
    until its condition Requeued is no longer False.
    """

    def __init__(self, name: str, rules: DecisionRules = DEFAULT_RULES) -> None:
        self.name = name
        self.strict_fifo = False
        self._rules = rules
        self._entries: dict[str, pending_heap.PendingEntry] = {}
        self._classes: dict[EquivalenceClassKey, pending_heap.EquivalenceClass] = {}
        self._class_fronts = pending_heap.ClassFronts()
        #: Shapes (pod sets and priority) that did not fit since the last reactivation, each with the reason.
        self._unfit_shapes: dict[Shape, str] = {}
        self._held_back: dict[str, pending_heap.PendingEntry] = {}
        self._preemptor = ""
        #: The key and generation of the last Workload that waited for its victims, also with StrictFIFO.
        self.waiting_preemptor: tuple[str, int] | None = None
        #: The number of pending Workloads by LocalQueue.
        self.counts_by_local_queue: dict[str, int] = {}
        self._first_pending = pending_heap.FirstPendingCache()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> pending_heap.PendingEntry | None:
        """Return the pending Workload with this key; None if it is not pending in this ClusterQueue."""
        return self._entries.get(key)

    def classes(self) -> list[tuple[EquivalenceClassKey, pending_heap.EquivalenceClass]]:
        """Return (key, class) pairs; a class contains a namespace's Workloads with equal requests and priority."""
        return list(self._classes.items())

    def held_workloads(self) -> list[WorkloadView]:
        """Return the Workloads that may not be tried yet, because of a backoff or a Requeued=False condition."""
        return [entry.view for entry in self._held_back.values()]

    def views(self) -> list[WorkloadView]:
        """Return all pending Workloads in queue order; a Workload that waits for its victims to stop comes first."""
        return [w.view for w in sorted(self._entries.values(), key=lambda w: (w.view.key != self._preemptor, w.order))]

    def first_not_held_back(self, max_count: int) -> list[WorkloadView]:
        """Return at most `max_count` pending Workloads in queue order, without those that are held back.

        The current preemptor, if the queue has one, comes first.
        """
        heaps = [heap.in_order() for each in self._classes.values() for heap in (each.in_line, each.parked)]
        entry = self._entries.get(self._preemptor)
        preemptor_entries = [entry] if entry is not None and entry.heap is not None else []
        views_by_key = {
            w.view.key: w.view
            for w in islice(chain(preemptor_entries, heapq.merge(*heaps, key=pending_heap.QUEUE_ORDER)), max_count + 1)
        }
        return list(views_by_key.values())[:max_count]

    @property
    def preemptor(self) -> str:
        """The key of the Workload that stays first in the queue until its victims have stopped; '' if none."""
        preemptor_entry = self._entries.get(self._preemptor)
        return self._preemptor if preemptor_entry is not None and self._is_in_line(preemptor_entry) else ""

    def release_preemptor(self, key: str) -> None:
        """Stop keeping the Workload with this key first in the queue, if it is the current preemptor."""
        if self._preemptor == key:
            self._preemptor = ""
        if self.waiting_preemptor is not None and self.waiting_preemptor[0] == key:
            self.waiting_preemptor = None

    def count_ahead_of(self, key: str) -> int:
        """Return the number of Workloads ahead of a pending Workload in this queue."""
        if key == self._preemptor:
            return 0
        queue_order, preemptor_entry = self._entries[key].order, self._entries.get(self._preemptor)
        return sum([w.order < queue_order for w in self._entries.values()]) + (
            preemptor_entry is not None and preemptor_entry.order > queue_order
        )

    def first_workloads(self, count: int) -> list[WorkloadView]:
        """Return the first `count` pending Workloads, also held-back ones, in queue order; a preemptor comes first."""
        entries, preemptor_entry = self._first_pending.first(self._entries, count), self._entries.get(self._preemptor)
        if preemptor_entry is not None:
            entries = [preemptor_entry, *(each for each in entries if each is not preemptor_entry)][:count]
        return [each.view for each in entries]

    @property
    def has_held_back_workloads(self) -> bool:
        """Whether any Workload is not tried yet, because of a backoff or because its condition Requeued is False."""
        return bool(self._held_back)

    @property
    def may_reactivate(self) -> bool:
        """Whether a new attempt to admit the parked (inadmissible) Workloads could have an effect."""
        return bool(self._entries or self._unfit_shapes)

    def parked_at(self, key: str) -> Instant | None:
        """Return when an inadmissible (parked) Workload, or an equivalent one, was last tried; None if not parked."""
        entry = self._entries.get(key)
        equivalence_class = None if entry is None else self._classes.get(self._class_key(entry.view))
        if entry is None or equivalence_class is None or entry.heap is not equivalence_class.parked:
            return None
        return equivalence_class.parked_at

    def record_attempt(self, key: str, now: Instant) -> None:
        """Record that another scheduler tried a pending Workload at `now`.

        The parked Workloads behind it count as tried at `now` too, with all Workloads of their equivalence classes.
        """
        queue_order = self._entries[key].order
        for equivalence_class in self._classes.values():
            if any(entry.order > queue_order for entry in equivalence_class.parked.members()):
                equivalence_class.parked_at = max(equivalence_class.parked_at, now)

    def has_parked_predecessor(self, key: str, start_time: Instant) -> bool:
        """Return whether a Workload ahead of `key` is parked, and it or an equivalent one was tried since `start_time`.

        Parked Workloads are inadmissible: they are tried again only after a change.
        """
        queue_order = self._entries[key].order
        recently_parked = [each.parked.first_entry() for each in self._classes.values() if each.parked_at >= start_time]
        return any(first_entry is not None and first_entry.order < queue_order for first_entry in recently_parked)

    def head_of(self, key: str) -> Head:
        """Return the pending Workload with this key as the input (head) of a scheduling cycle."""
        entry = self._entries[key]
        return Head(entry.view, self.name, entry.last_assignment)

    def _class_key(self, view: WorkloadView) -> EquivalenceClassKey:
        return pending_heap.class_key(view)

    def _is_in_line(self, entry: pending_heap.PendingEntry) -> bool:
        equivalence_class = self._classes.get(self._class_key(entry.view))
        return equivalence_class is not None and entry.heap is equivalence_class.in_line


class PendingQueue(PendingQueueReader):
    """The pending Workloads of one ClusterQueue, with methods to add, remove, requeue and reactivate them."""

    def clear(self) -> None:
        """Remove all pending Workloads, so that no reference cycle remains."""
        for entry in self._entries.values():
            entry.heap = None
        for table in (self._entries, self._classes, self._unfit_shapes, self._held_back):
            table.clear()
        self._class_fronts.clear()

    def has_heads(self) -> bool:
        """Return whether this queue has a Workload that a scheduling cycle may try."""
        return self._first_pending_entry() is not None

    def put(self, view: WorkloadView, now: Instant) -> bool:
        """Add or update a pending Workload; return whether it was put in line.

        The result False means that the Workload is unchanged, held back or parked.
        """
        previous_entry = self._entries.get(view.key)
        if previous_entry is not None and pending_heap.has_same_queue_state(previous_entry.view, view):
            previous_entry.view = view
            return False
        was_in_line = previous_entry is not None and self._is_in_line(previous_entry)
        entry = pending_heap.PendingEntry(
            view,
            previous_entry.last_assignment
            if previous_entry is not None and previous_entry.view.shape == view.shape
            else None,
        )
        self.remove(view.key, forget_preemptor=False)
        self._add_entry(entry)
        if not was_in_line and pending_heap.is_held_back(view, now):
            self._held_back[view.key] = entry
            return False
        if not was_in_line and not self.strict_fifo and view.shape in self._unfit_shapes:
            self._find_or_add_class(view).parked.push(entry)
            return False
        self._push_in_line(entry)
        return True

    def unpark_workload(self, key: str) -> None:
        """Let cycles try one parked (inadmissible) Workload again."""
        self._push_in_line(self._entries[key])

    def put_in_line(self, view: WorkloadView) -> None:
        """Add a pending Workload so that cycles try it, even during its backoff; do nothing if it was added before."""
        if view.key not in self._entries:
            entry = pending_heap.PendingEntry(view, None)
            self._add_entry(entry)
            self._push_in_line(entry)

    def head(self) -> Head | None:
        """Return the first Workload that a scheduling cycle may try; None if there is none. It stays in the queue."""
        entry = self._first_pending_entry()
        return None if entry is None else Head(entry.view, self.name, entry.last_assignment)

    def no_fit_reason(self, view: WorkloadView) -> str:
        """If a Workload is skipped because an equivalent Workload did not fit, return the reason of that; otherwise ''.

        The result is a `reason` of the QuotaReserved condition.
        """
        entry = self._entries.get(view.key)
        is_parked = entry is not None and not self._is_in_line(entry)
        return self._unfit_shapes.get(view.shape, "") if is_parked else ""

    def requeue(
        self,
        head: Head,
        last_assignment: LastAssignment | None,
        reason: RequeueReason,
        now: Instant,
        condition_reason: str = "",
    ) -> bool:
        """Keep a head pending after a cycle; return whether it was set aside until a change or the end of a backoff.

        Equivalent Workloads may be set aside too. `condition_reason` is the reason of the QuotaReserved condition.
        """
        view = head.workload
        if reason is RequeueReason.PENDING_PREEMPTION:
            self.waiting_preemptor = view.key, view.generation
            if not self.strict_fifo:
                self._preemptor = view.key
        elif self._rules.is_current:  # Kueue 0.19 keeps the Workload first even if its preemption has failed
            self.release_preemptor(view.key)
        entry = self._entries.get(view.key)
        if entry is None or entry.view is not view:
            self.remove(view.key, forget_preemptor=False)
            entry = pending_heap.PendingEntry(view, last_assignment)
            self._add_entry(entry)
        entry.last_assignment = last_assignment
        if pending_heap.is_held_back(view, now):
            self._remove_entry_from_heap(entry)
            self._held_back[view.key] = entry
            return True
        if self._stays_in_line(reason) or last_assignment is not None:
            if entry.heap is None:
                self._push_in_line(entry)
            return False
        if reason in _NO_FIT_REASONS and not self.strict_fifo:
            self._park_shape(view.shape, now, condition_reason)
        equivalence_class = self._find_or_add_class(view)
        if entry.heap is not equivalence_class.parked:
            equivalence_class.parked.push(entry)
            equivalence_class.parked_at = now
            self._update_class_front(self._class_key(view), equivalence_class)
        return True

    def reactivate(self, admits_namespace: Callable[[str], bool], now: Instant) -> bool:
        """Requeue the inadmissible Workloads and those with an ended backoff; return whether any was requeued.

        Workloads whose namespace the ClusterQueue does not select (`admits_namespace`) stay as they are.
        """
        self._unfit_shapes.clear()
        was_reactivated = False
        for key, equivalence_class in self._classes.items():
            if equivalence_class.parked.size and admits_namespace(key[1]):
                equivalence_class.unpark()
                self._update_class_front(key, equivalence_class)
                was_reactivated = True
        for entry in list(self._held_back.values()):
            if not pending_heap.is_held_back(entry.view, now) and admits_namespace(entry.view.namespace):
                del self._held_back[entry.view.key]
                self._push_in_line(entry)
                was_reactivated = True
        return was_reactivated

    def remove(self, key: str, *, forget_preemptor: bool = True) -> bool:
        """Remove a Workload from the pending Workloads; return whether it was one of them.

        With `forget_preemptor`, the Workload no longer comes first as the current preemptor if it is added again.
        """
        if forget_preemptor:
            self.release_preemptor(key)
        entry = self._entries.get(key)
        if entry is None:
            return False
        self._held_back.pop(key, None)
        self._remove_entry(entry)
        return True

    def next_release(self) -> Instant | None:
        """Return when the first backoff of a pending Workload ends; None if there is no backoff."""
        release_times = [w.view.requeue_at for w in self._held_back.values() if not w.view.requeue_blocked]
        return min((t for t in release_times if t is not None), default=None)

    def _stays_in_line(self, reason: RequeueReason) -> bool:
        return reason is not RequeueReason.NAMESPACE_MISMATCH if self.strict_fifo else reason in _STAY_IN_LINE_REASONS

    def _find_or_add_class(self, view: WorkloadView) -> pending_heap.EquivalenceClass:
        key = self._class_key(view)
        equivalence_class = self._classes.get(key)
        if equivalence_class is None:
            equivalence_class = self._classes[key] = pending_heap.EquivalenceClass()
        return equivalence_class

    def _push_in_line(self, entry: pending_heap.PendingEntry) -> None:
        equivalence_class = self._find_or_add_class(entry.view)
        equivalence_class.in_line.push(entry)
        if equivalence_class.in_line.first_entry() is entry:
            self._update_class_front(self._class_key(entry.view), equivalence_class)

    def _add_entry(self, entry: pending_heap.PendingEntry) -> None:
        view = entry.view
        self._first_pending.first_entries = None
        self._entries[view.key] = entry
        self.counts_by_local_queue[view.queue] = self.counts_by_local_queue.get(view.queue, 0) + 1

    def _remove_entry(self, entry: pending_heap.PendingEntry) -> None:
        view = entry.view
        self._first_pending.first_entries = None
        del self._entries[view.key]
        self.counts_by_local_queue[view.queue] -= 1
        self._remove_entry_from_heap(entry)

    def _remove_entry_from_heap(self, entry: pending_heap.PendingEntry) -> None:
        heap = entry.heap
        if heap is None:
            return
        was_first = heap.first_entry() is entry
        heap.size -= 1
        entry.heap = None
        key = self._class_key(entry.view)
        equivalence_class = self._classes[key]
        if not equivalence_class.in_line.size and not equivalence_class.parked.size:
            del self._classes[key]
        elif was_first and heap is equivalence_class.in_line:
            self._update_class_front(key, equivalence_class)

    def _update_class_front(self, key: EquivalenceClassKey, equivalence_class: pending_heap.EquivalenceClass) -> None:
        first_entry = equivalence_class.in_line.first_entry()
        if first_entry is not None:
            self._class_fronts.push(first_entry, key)

    def _first_pending_entry(self) -> pending_heap.PendingEntry | None:
        if self._preemptor:
            preemptor_entry = self._entries.get(self._preemptor)
            if preemptor_entry is not None and self._is_in_line(preemptor_entry):
                return preemptor_entry
        return self._class_fronts.first_entry(self._classes)

    def _park_shape(self, shape: Shape, now: Instant, reject_reason: str) -> None:
        self._unfit_shapes[shape] = reject_reason
        for key, equivalence_class in self._classes.items():
            if key[0] == shape and equivalence_class.in_line.size:
                equivalence_class.park(now)


#: How long Kueue batches changes before it reactivates parked Workloads. Quota that victims release one by one is
#: therefore first available to Workloads in line, such as the preemptor.
#: Source: requeueBatchPeriod in pkg/cache/queue/inadmissible_workloads.go of Kueue.
KUEUE_REQUEUE_BATCH_PERIOD: Final = SECOND


class QueueManager:
    """The pending queues of all ClusterQueues; decides which queues and cohort trees a scheduling cycle considers."""

    def __init__(
        self,
        snapshot: Snapshot,
        namespaces: Mapping[str, Mapping[str, str]],
        requeue_batch_period: Duration = 0,
        *,
        is_reactivated_externally: bool = False,
    ) -> None:
        self.pending: dict[str, PendingQueue] = {}
        #: The number of changes in each cohort tree.
        self.tree_change_counts: dict[str, int] = {}
        self.now: Instant = 0
        self._snapshot = snapshot
        self._namespaces = namespaces
        #: The delay from marking a tree to its reactivation; 0 reactivates at once.
        self.requeue_batch_period = requeue_batch_period
        #: Whether another component reactivates trees during that delay.
        self.is_reactivated_externally = is_reactivated_externally
        #: Marked ClusterQueues, each with the time of marking.
        self._marked_queues: dict[str, Instant] = {}
        #: ClusterQueues that may have Workloads in line, except those of paused trees.
        self._queues_for_next_cycle: dict[str, None] = {}
        #: Paused trees, each with its ClusterQueues that may have Workloads in line.
        self._paused_trees: dict[str, list[str]] = {}
        self._frozen_trees: dict[str, Instant] = {}
        #: ClusterQueues with held-back Workloads.
        self._queues_with_held_back: dict[str, None] = {}
        #: Trees whose quota was released without a reactivation, each with a ClusterQueue and the latest time for one.
        self._scheduled_reactivations: dict[str, tuple[str, Instant]] = {}

    def has_work(self) -> bool:
        """Return whether a scheduling cycle may have something to decide."""
        return bool(self._marked_queues) or bool(self._queues_for_next_cycle) or bool(self._scheduled_reactivations)

    def heads(self) -> list[Head]:
        """Return the first Workload of each active ClusterQueue that may be tried, sorted by queue name.

        ClusterQueues in paused cohort trees are left out. Before, the inadmissible Workloads of cohort trees that were
        marked at least `requeue_batch_period` ago become eligible again, unless another component does that
        (`is_reactivated_externally`).
        """
        if self._marked_queues and not (self.requeue_batch_period and self.is_reactivated_externally):
            self.reactivate_marked(self.now - self.requeue_batch_period)
        heads = []
        for name in sorted(self._queues_for_next_cycle):
            queue, pending_queue = self._snapshot.queues.get(name), self.pending.get(name)
            head = pending_queue.head() if queue is not None and pending_queue is not None and queue.active else None
            if head is None:
                del self._queues_for_next_cycle[name]
            else:
                heads.append(head)
        return heads

    def put(self, name: str, view: WorkloadView) -> None:
        """Add or update a pending Workload of the ClusterQueue `name`; do nothing if there is no such queue."""
        pending_queue = self.pending.get(name)
        if pending_queue is None:
            return
        if pending_queue.put(view, self.now):
            self.record_new_workload(name)
        if pending_queue.has_held_back_workloads:
            self._queues_with_held_back[name] = None

    def requeue(
        self, head: Head, last_assignment: LastAssignment | None, reason: RequeueReason, condition_reason: str = ""
    ) -> bool:
        """Keep a head pending after a cycle; return whether it was set aside until a change or the end of a backoff."""
        pending_queue = self.pending[head.queue]
        is_parked = pending_queue.requeue(head, last_assignment, reason, self.now, condition_reason)
        if pending_queue.has_held_back_workloads:
            self._queues_with_held_back[head.queue] = None
        if head.queue not in self._queues_for_next_cycle:
            self._add_queue_to_next_cycle(head.queue, self._snapshot.queues.get(head.queue))
        return is_parked

    def record_new_workload(self, name: str) -> None:
        """Record that a ClusterQueue may have a new first Workload, which ends the pause of its cohort tree.

        A tree that was frozen at this instant stays paused (see `freeze_tree`).
        """
        queue = self._snapshot.queues[name]
        self._add_queue_to_next_cycle(name, queue)
        self.record_tree_change(queue)

    def mark_queue_for_retry(self, name: str) -> None:
        """Mark a ClusterQueue: its cohort tree's inadmissible Workloads are tried again, because something changed."""
        self._marked_queues.setdefault(name, self.now)

    def reactivate_later(self, queue: ClusterQueue, due_time: Instant) -> None:
        """Schedule a retry of the inadmissible Workloads in a queue's cohort tree; the earliest due time counts."""
        if due_time < self._scheduled_reactivations.setdefault(queue.node.tree, (queue.name, due_time))[1]:
            self._scheduled_reactivations[queue.node.tree] = (queue.name, due_time)

    def mark_due_queues_for_retry(self) -> None:
        """Mark ClusterQueues with an ended backoff or a due reactivation, so that their Workloads are tried again."""
        for name in list(self._queues_with_held_back):
            pending_queue = self.pending.get(name)
            if pending_queue is None or not pending_queue.has_held_back_workloads:
                del self._queues_with_held_back[name]
                continue
            release_time = pending_queue.next_release()
            if release_time is not None and release_time <= self.now:
                self._marked_queues[name] = self.now - self.requeue_batch_period
        for tree_id, (name, due_at) in list(self._scheduled_reactivations.items()):
            if due_at <= self.now:
                # The tree may have another id by now, or the queue may be deleted; then all trees are reactivated.
                del self._scheduled_reactivations[tree_id]
                self._marked_queues.update(dict.fromkeys([name] if name in self.pending else self.pending, due_at))

    def next_release(self) -> Instant | None:
        """Return when the next backoff ends or the next reactivation of a cohort tree is due; None if there is none."""
        queues = [self.pending[name] for name in self._queues_with_held_back if name in self.pending]
        release_times = [t for queue in queues if (t := queue.next_release()) is not None]
        release_times += [due_at for _, due_at in self._scheduled_reactivations.values()]
        release_times += (
            [marked_at + self.requeue_batch_period for marked_at in self._marked_queues.values()]
            if self.requeue_batch_period
            else []
        )
        return min(release_times, default=None)

    def record_tree_change(self, queue: ClusterQueue) -> None:
        """Record a change in the cohort tree of a ClusterQueue, and end the tree's pause.

        A frozen tree stays paused until the clock advances.
        """
        tree_id = queue.node.tree
        self.tree_change_counts[tree_id] = self.tree_change_counts.get(tree_id, 0) + 1
        if self._frozen_trees and self._frozen_trees.get(tree_id) == self.now:
            return
        self._frozen_trees.pop(tree_id, None)
        for name in self._paused_trees.pop(tree_id, ()):
            self._queues_for_next_cycle[name] = None

    def paused_queues(self) -> list[str]:
        """Return the ClusterQueues of paused cohort trees that may have Workloads in line."""
        return [name for names in self._paused_trees.values() for name in names]

    def activate_all(self) -> None:
        """Let cycles consider the Workloads of paused cohort trees again, because all trees were rebuilt."""
        self.tree_change_counts = {tree_id: count + 1 for tree_id, count in self.tree_change_counts.items()}
        for names in self._paused_trees.values():
            self._queues_for_next_cycle.update(dict.fromkeys(names))
        self._paused_trees.clear()
        self._frozen_trees.clear()

    def pause_tree(self, tree_id: str) -> None:
        """Pause a cohort tree: no cycle considers its Workloads until something in the tree changes."""
        paused_queues = self._paused_trees.setdefault(tree_id, [])
        for name in list(self._queues_for_next_cycle):
            queue = self._snapshot.queues.get(name)
            if queue is not None and queue.node.tree == tree_id:
                paused_queues.append(name)
                del self._queues_for_next_cycle[name]

    def freeze_tree(self, tree_id: str) -> None:
        """Pause a cohort tree; no change ends the pause before the clock advances or `activate_all()` is called."""
        self._frozen_trees[tree_id] = self.now
        self.pause_tree(tree_id)

    def forget_queue(self, name: str) -> None:
        """Remove a deleted ClusterQueue and its pending Workloads."""
        for table in (self.pending, self._queues_for_next_cycle, self._marked_queues, self._queues_with_held_back):
            table.pop(name, None)

    def _add_queue_to_next_cycle(self, name: str, queue: ClusterQueue | None) -> None:
        """Let the next cycle consider a ClusterQueue, which may have Workloads to try.

        If its cohort tree is frozen, the ClusterQueue stays paused.
        """
        if queue is not None and self._frozen_trees and self._frozen_trees.get(queue.node.tree) == self.now:
            self._paused_trees.setdefault(queue.node.tree, []).append(name)
        else:
            self._queues_for_next_cycle[name] = None

    def reactivate_marked(self, marked_by: Instant, may_reactivate: Callable[[str], bool] = bool) -> list[str]:
        """Let cycles try the inadmissible Workloads of cohort trees whose queues were marked at or before `marked_by`.

        Trees for whose id `may_reactivate` returns False are skipped. Return the ids of the reactivated trees.
        """
        marked_by_tree: dict[str, list[str]] = {}
        for name in self._marked_queues:
            queue = self._snapshot.queues.get(name)
            marked_by_tree.setdefault("" if queue is None else queue.node.tree, []).append(name)
        reactivated_trees = []
        for tree_id, names in marked_by_tree.items():
            if not tree_id:
                self._unmark_for_reactivation(names)
            elif min([self._marked_queues[name] for name in names]) <= marked_by and may_reactivate(tree_id):
                self._unmark_for_reactivation(names)
                self._reactivate_tree(tree_id, self._snapshot.queues[names[-1]])
                reactivated_trees.append(tree_id)
        return reactivated_trees

    def _unmark_for_reactivation(self, names: Iterable[str]) -> None:
        for name in names:
            del self._marked_queues[name]

    def _reactivate_tree(self, tree_id: str, any_queue: ClusterQueue) -> None:
        self._scheduled_reactivations.pop(tree_id, None)
        self.record_tree_change(any_queue)
        for queue in self._snapshot.queues_below(any_queue.node.path[0]):
            pending_queue = self.pending[queue.name]
            if pending_queue.may_reactivate and pending_queue.reactivate(self._namespace_filter(queue), self.now):
                self._add_queue_to_next_cycle(queue.name, queue)

    def _namespace_filter(self, queue: ClusterQueue) -> Callable[[str], bool]:
        selector = queue.view.namespaces

        def admits_namespace(namespace: str) -> bool:
            labels = self._namespaces.get(namespace)
            return selector is not None and labels is not None and selector.matches(labels)

        return admits_namespace
