"""Variants of the scheduling cycle behind feature gates that are off by default.

PrioritizePreemptorWorkloads: Workloads that wait for their victims come first, and keep the quota that becomes free.
FairSharingRefill: after the admission of a head, the next Workload of its ClusterQueue joins the running cycle.
Sources: Kueue's pkg/scheduler (scheduler.go, fair_sharing_iterator.go, the refill pass).
"""

import heapq
from collections.abc import Collection, Sequence
from typing import Final

from batchyard.scheduling.cycle import ClaimedVictims, Cycle, NominatedEntry
from batchyard.scheduling.decisions import Admit, Decision, Head, InadmissibleReason, StayPending
from batchyard.scheduling.fair_sharing.fair_order import fair_order
from batchyard.scheduling.messages import WAITING_FOR_QUOTA, RequeueReason
from batchyard.scheduling.pending_heap import QUEUE_ORDER
from batchyard.scheduling.queue_manager import PendingQueueReader, QueueManager
from batchyard.scheduling.quota import FlavorAssignmentMode

#: The number of Workloads that may join a cycle after its heads, as in Kueue.
REFILL_BUDGET: Final = 8


def create_cycle(cycle: Cycle, queue_manager: QueueManager, heads: Sequence[Head], *, may_refill: bool) -> Cycle:
    """Return the cycle with the rules of the enabled gates; `heads` are the Workloads that it will try."""
    rules = cycle.policy.rules
    if rules.refills_heads and may_refill and cycle.policy.fair_sharing:
        cycle = RefillingCycle(cycle, queue_manager, heads)
    if rules.prioritizes_preemptors:
        cycle.preemptors = waiting_preemptors(queue_manager, heads)
    return cycle


def waiting_preemptors(queue_manager: QueueManager, heads: Sequence[Head]) -> frozenset[str]:
    """Return the keys of the heads that wait for their victims to stop, and whose specs have not changed since."""
    views = [(queue_manager.pending[head.queue], head.workload) for head in heads]
    return frozenset([view.key for q, view in views if q.waiting_preemptor == (view.key, view.generation)])


def head_after(queue: PendingQueueReader, excluded_keys: Collection[str]) -> Head | None:
    """Return the first Workload of a queue that a cycle may try, without `excluded_keys`; None if there is none."""
    heaps = [equivalence_class.in_line.in_order() for _, equivalence_class in queue.classes()]
    keys = [entry.view.key for entry in heapq.merge(*heaps, key=QUEUE_ORDER) if entry.view.key not in excluded_keys]
    return queue.head_of(keys[0]) if keys else None


class RefillingCycle(Cycle):
    """A cycle with fair sharing in which the next Workload of a ClusterQueue joins after an admission."""

    def __init__(self, cycle: Cycle, queue_manager: QueueManager, heads: Sequence[Head]) -> None:
        """`heads` are the Workloads that the cycle will try."""
        super().__init__(cycle.snapshot, cycle.policy, cycle.namespaces, cycle.number)
        self._queue_manager = queue_manager
        self._taken_keys = dict.fromkeys([head.workload.key for head in heads])
        self._budget = REFILL_BUDGET
        #: The keys of the Workloads that joined the cycle.
        self._joined_keys: dict[str, None] = {}

    def decide_entries(self, entries: Sequence[NominatedEntry], claimed_victims: ClaimedVictims) -> Sequence[Decision]:
        """Return the decisions; after an admission, the next Workload of the ClusterQueue takes part.

        Such a Workload can only be admitted: if it would have to preempt or to wait for victims, it waits for the next
        cycle.
        """
        decisions: list[Decision] = []

        def nominate_successor(winner: NominatedEntry) -> NominatedEntry | None:
            head = self._next_head(winner.queue.name) if isinstance(decisions[-1], Admit) else None
            if head is None:
                return None
            obstacle = self.nomination_obstacle(head)
            if obstacle is not None:
                decisions.append(obstacle)
                return None
            self._joined_keys[head.workload.key] = None
            return self.nominate_head(head)

        for entry in fair_order(entries, self.snapshot, self.preemptors, nominate_successor):
            is_deferred = entry.workload.key in self._joined_keys and _must_wait(entry)
            decisions.append(_defer_entry(entry) if is_deferred else self.decide_entry(entry, claimed_victims))
        return decisions

    def _next_head(self, queue: str) -> Head | None:
        head = head_after(self._queue_manager.pending[queue], self._taken_keys) if self._budget > 0 else None
        if head is not None:
            self._budget -= 1
            self._taken_keys[head.workload.key] = None
        return head


def _must_wait(entry: NominatedEntry) -> bool:
    return entry.assignment.mode in {FlavorAssignmentMode.PREEMPT, FlavorAssignmentMode.DEFERRED_FIT}


def _defer_entry(entry: NominatedEntry) -> Decision:
    why = InadmissibleReason(WAITING_FOR_QUOTA, entry.assignment)
    return StayPending(entry.head, why, RequeueReason.FAILED_AFTER_NOMINATION)
