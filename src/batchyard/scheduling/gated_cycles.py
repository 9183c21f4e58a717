"""Variants of the scheduling cycle behind feature gates that are off by default.

PrioritizePreemptorWorkloads: Workloads that wait for their victims come first, and keep the quota that becomes free.
FairSharingRefill: after the admission of a head, the next Workload of its ClusterQueue joins the running cycle.
Sources: Kueue's pkg/scheduler (scheduler.go, fair_sharing_iterator.go, the refill pass).
"""

import heapq
from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from batchyard.scheduling.cycle import ClaimedVictims, Cycle, NominatedEntry
from batchyard.scheduling.decisions import Admit, Decision, Head, InadmissibleReason, StayPending
from batchyard.scheduling.fair_sharing.admission_fair_sharing import NanoAmounts, UsageLedger, add_amounts
from batchyard.scheduling.fair_sharing.fair_order import fair_order
from batchyard.scheduling.fair_sharing.usage_order import UsageOrderedQueue
from batchyard.scheduling.messages import WAITING_FOR_QUOTA, RequeueReason
from batchyard.scheduling.pending_heap import QUEUE_ORDER
from batchyard.scheduling.queue_manager import PendingQueueReader, QueueManager
from batchyard.scheduling.quota import FlavorAssignmentMode

#: The number of Workloads that may join a cycle after its heads, as in Kueue.
REFILL_BUDGET: Final = 8


def _may_always_join(head: Head) -> bool:
    del head
    return True


class RefillTerms(NamedTuple):
    """What decides which Workload joins a running cycle."""

    #: The usage of LocalQueues, which orders the Workloads of usage-based ClusterQueues.
    ledger: UsageLedger | None = None
    #: Returns whether a Workload may join, because no write of it is in flight.
    may_join: Callable[[Head], bool] = _may_always_join


def create_cycle(cycle: Cycle, queue_manager: QueueManager, heads: Sequence[Head], refill: RefillTerms | None) -> Cycle:
    """Return the cycle with the rules of the enabled gates; `heads` are the Workloads that it will try.

    Without `refill`, no other Workload joins the cycle.
    """
    rules = cycle.policy.rules
    if rules.refills_heads and refill is not None and cycle.policy.fair_sharing:
        cycle = RefillingCycle(cycle, queue_manager, heads, refill)
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

    def __init__(self, cycle: Cycle, queue_manager: QueueManager, heads: Sequence[Head], refill: RefillTerms) -> None:
        """`heads` are the Workloads that the cycle will try."""
        super().__init__(cycle.snapshot, cycle.policy, cycle.namespaces, cycle.number)
        self._queue_manager = queue_manager
        self._refill = refill
        #: The entry penalties of this cycle's admissions, by LocalQueue.
        self._penalties: dict[str, NanoAmounts] = {}
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
            decision = decisions[-1]
            if not isinstance(decision, Admit) or decision.head.workload.quota_reserved:
                return None
            self._record_penalty(decision)
            head = self._next_head(winner.queue.name)
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

    def _record_penalty(self, admission: Admit) -> None:
        ledger, view = self._refill.ledger, admission.head.workload
        if ledger is not None:
            penalty = ledger.penalty_of(view, admission.queue)
            self._penalties[view.queue] = add_amounts(self._penalties.get(view.queue, {}), penalty)

    def _usage_of(self, local_queue: str) -> float:
        ledger, usage_of = self._refill.ledger, self.snapshot.usage_of
        if ledger is not None:
            return ledger.usage_with(local_queue, self._penalties.get(local_queue, {}))
        return 0.0 if usage_of is None else usage_of(local_queue)

    def _next_head(self, queue: str) -> Head | None:
        if self._budget <= 0:
            return None
        pending = self._queue_manager.pending[queue]
        if isinstance(pending, UsageOrderedQueue):
            head = pending.head_by_usage(self._usage_of, self._taken_keys)
        else:
            head = head_after(pending, self._taken_keys)
        if head is not None and not self._refill.may_join(head):
            return None
        if head is not None:
            self._budget -= 1
            self._taken_keys[head.workload.key] = None
        return head


def _must_wait(entry: NominatedEntry) -> bool:
    return entry.assignment.mode in {FlavorAssignmentMode.PREEMPT, FlavorAssignmentMode.DEFERRED_FIT}


def _defer_entry(entry: NominatedEntry) -> Decision:
    why = InadmissibleReason(WAITING_FOR_QUOTA, entry.assignment)
    return StayPending(entry.head, why, RequeueReason.FAILED_AFTER_NOMINATION)
