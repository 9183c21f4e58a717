"""Cycles that wait: for ready pods (Kueue's `blockAdmission`), and for the results of writes.

With `blockAdmission`, no Workload is admitted while another Workload with quota has pods that are not ready.

Kueue's scheduler blocks inside a cycle before the first admission that has to wait, and runs no other cycle
meanwhile. Once the pods are ready, or their Workloads released their quota, it admits that Workload as decided, and
continues with the later decisions. The next admission blocks in the same way. Here the remaining admissions and
preemptions are kept, and no cycle runs before they are applied.

A kept decision is dropped if its Workload is deleted, finished or inactive by then. It is also dropped if the
Workload's pod sets or queue name changed, or if its ClusterQueue is gone. In some of these cases Kueue writes the
admission and reverts it afterwards.

After a restart, the waiting Workload is recognized by its condition (WaitingForPodsReady): the first cycle decides
only about it. Sources: WaitForPodsReady in pkg/cache/scheduler, processEntry and waitForPodsReadyIfNeeded in
pkg/scheduler/scheduler.go of Kueue.
"""

from collections.abc import Callable, Sequence
from sys import maxsize
from typing import Final, NamedTuple, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.scheduling.decisions import Admit, Decision, Head, Preempt, StayPending
from batchyard.scheduling.pending_heap import is_held_back
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.lifecycle import WAITING_FOR_PODS_READY
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy


class PodsReadyGate:
    """Kueue's `blockAdmission`: blocks admissions while some Workload with quota has pods that are not ready."""

    def __init__(self, policy: PodsReadyPolicy | None = None) -> None:
        self._policy = policy or PodsReadyPolicy()
        self._unready: dict[Key, None] = {}

    @property
    def is_closed(self) -> bool:
        """Whether admissions must wait, because some Workload with quota has pods that are not ready."""
        return bool(self._unready)

    def closes_for(self, workload: Obj) -> bool:
        """Return whether the admission of this Workload blocks further admissions until its pods are ready."""
        return self._policy.covers(workload)

    def observe(self, event: WatchEvent) -> None:
        """Update the set of Workloads with unready pods from a watch event of a Workload."""
        view = workload_view(event.obj)
        holds_quota = view.quota_reserved and view.active and not view.finished and event.type is not EventType.DELETED
        if holds_quota and not view.pods_ready and self.closes_for(event.obj):
            self._unready[event.key] = None
        else:
            self._unready.pop(event.key, None)


BlockedEntry: TypeAlias = Admit | Preempt


class BlockedCycle:
    """The rest of a cycle that was interrupted until pods are ready: its waiting admission and the later decisions."""

    def __init__(self, scheduler_cache: SchedulerCache, gate: PodsReadyGate | None) -> None:
        """Start without an interrupted cycle; `gate` is None if admissions do not wait for other Workloads' pods."""
        self._cache = scheduler_cache
        self._gate = gate
        self._entries: list[BlockedEntry] = []
        self._is_first_cycle = gate is not None

    @property
    def is_blocked(self) -> bool:
        """Whether there is an interrupted cycle that must keep waiting for ready pods."""
        return bool(self._entries) and self._gate is not None and self._gate.is_closed

    @property
    def may_resume(self) -> bool:
        """Whether there is an interrupted cycle that no longer has to wait for ready pods."""
        return bool(self._entries) and not self.is_blocked

    def observe(self, event: WatchEvent) -> None:
        """Pass a watch event of a Workload to the PodsReadyGate; ignore events of other kinds."""
        if self._gate is not None and event.key.kind == scheme.WORKLOAD:
            self._gate.observe(event)

    def first_heads(self, heads: Sequence[Head]) -> Sequence[Head]:
        """Return the heads of the next cycle: `heads`, or in the first cycle any Workloads that wait for ready pods."""
        if not self._is_first_cycle:
            return heads
        self._is_first_cycle = False
        views = [view for view in self._cache.workload_cache.views() if view.pending_reason == WAITING_FOR_PODS_READY]
        current_heads = [self._head_of(view) for view in views]
        return [head for head in current_heads if head is not None] or heads

    def split(self, decisions: Sequence[Decision], reader: Reader) -> tuple[Sequence[Decision], Obj | None]:
        """Return the decisions to apply now, and the Workload that must wait for ready pods (None if none must wait).

        That Workload's admission and the later admissions and preemptions are stored. All StayPending decisions are
        returned, because a later change of the pods does not affect them.
        """
        if self._gate is None:
            return decisions, None
        is_closed = self._gate.is_closed
        for position, decision in enumerate(decisions):
            obj = reader.get(workload_key_of(decision.head.workload)) if isinstance(decision, Admit) else None
            if obj is None or not workload_view(obj).admissible:
                continue
            if is_closed:
                remaining = decisions[position:]
                self._entries = [entry for entry in remaining if not isinstance(entry, StayPending)]
                return [*decisions[:position], *(entry for entry in remaining if isinstance(entry, StayPending))], obj
            is_closed = self._gate.closes_for(obj)
        return decisions, None

    def take_decisions(self) -> Sequence[Decision]:
        """Remove the stored decisions, and return the still valid ones, with the current state of their objects."""
        stored_entries, self._entries = self._entries, []
        new_entries = [self._refresh_entry(entry) for entry in stored_entries]
        return [entry for entry in new_entries if entry is not None]

    def _head_of(self, view: WorkloadView) -> Head | None:
        queues = self._cache.queue_manager
        local_queue = self._cache.workload_cache.local_queues.get(view.queue)
        pending_queue = None if local_queue is None else queues.pending.get(local_queue.cluster_queue)
        if pending_queue is None or pending_queue.get(view.key) is None or is_held_back(view, queues.now):
            return None
        return pending_queue.head_of(view.key)

    def _refresh_entry(self, entry: BlockedEntry) -> BlockedEntry | None:
        old_view, name = entry.head.workload, entry.head.queue
        queue, view = self._cache.snapshot.queues.get(name), self._cache.workload_cache.view(old_view.key)
        if queue is None or view is None or not view.admissible or _decision_inputs(view) != _decision_inputs(old_view):
            return None
        if isinstance(entry, Admit):
            return entry._replace(head=entry.head._replace(workload=view), queue=queue)
        pending_entry = self._cache.queue_manager.pending[name].get(view.key)
        targets = self._refresh_targets(entry.targets)
        if pending_entry is None or not targets:
            return None
        return entry._replace(head=entry.head._replace(workload=pending_entry.view), queue=queue, targets=targets)

    def _refresh_targets(self, targets: Sequence[PreemptionTarget]) -> tuple[PreemptionTarget, ...]:
        holders = [self._cache.snapshot.holder(target.workload.key) for target in targets]
        return tuple(
            target if target.workload.whole is current else target._replace(workload=current)
            for target, current in zip(targets, holders, strict=True)
            if current is not None and current.uid == target.workload.uid
            if target.workload.whole is None or target.workload.whole is current
        )


def _decision_inputs(view: WorkloadView) -> tuple[object, ...]:
    """Return the fields of a Workload on which a decision about it depends.

    If one of them changes while a cycle is interrupted, the stored decision is invalid.
    """
    return view.uid, view.queue, view.shape[0], view.counts


def workload_key_of(view: WorkloadView) -> Key:
    """Return the object key of a parsed Workload."""
    return Key(scheme.WORKLOAD, view.namespace, view.name)


# Pacing of decisions for an API server over a network, where each write takes time.
#
# Cycles go on while the server processes the writes of earlier cycles. A Workload has at most one write in flight.
# Until the result is known, the Workload is neither a head nor preempted: the cached object is older than the write, so
# that a second write would be rejected as a conflict. The other heads of its cohort tree then wait too.


class DecisionPacing(NamedTuple):
    """Limits of the scheduler's writes to the API server; the defaults are for an API server in the same process."""

    #: The maximum number of writes in flight with which a cycle runs.
    in_flight_max: int = 0
    #: The maximum number of pending reasons that are written at once.
    pending_reasons_max: int = maxsize


IN_PROCESS_PACING: Final = DecisionPacing()
#: For an API server over a network. Some writes of earlier cycles may be in flight, so that a distant server does not
#: limit the rate of admissions. More would make the decisions of a burst too early: later arrivals would soon preempt
#: more Workloads, and each eviction costs four writes.
NETWORK_PACING: Final = DecisionPacing(in_flight_max=4, pending_reasons_max=32)


class WritesInFlight:
    """The Workloads whose last write by the scheduler has no result yet."""

    def __init__(self) -> None:
        self._workloads: dict[str, None] = {}
        #: Workloads whose results heads or preemptors await.
        self._awaited_workloads: dict[str, None] = {}

    def __len__(self) -> int:
        """Return the number of writes in flight."""
        return len(self._workloads)

    def __contains__(self, workload: str) -> bool:
        """Return whether a write of this Workload is in flight."""
        return workload in self._workloads

    def add(self, workload: str) -> None:
        """Record that a write of a Workload was submitted."""
        self._workloads[workload] = None

    def complete(self, workload: str) -> bool:
        """Record that a Workload's write has a result; return whether a scheduling decision awaited this result."""
        self._workloads.pop(workload, None)
        is_awaited = workload in self._awaited_workloads
        self._awaited_workloads.pop(workload, None)
        return is_awaited

    def select_heads(self, heads: Sequence[Head], tree_of: Callable[[Head], str]) -> Sequence[Head]:
        """Return the queue heads of the cohort trees in which no head has a write in flight.

        Record that the writes of the other heads are awaited. Other heads of their trees wait too: a head with a lower
        priority would get the quota that is free, and would soon be preempted.
        """
        written_heads = [head for head in heads if head.workload.key in self._workloads] if self._workloads else []
        if not written_heads:
            return heads
        self._awaited_workloads.update(dict.fromkeys([head.workload.key for head in written_heads]))
        waiting_trees = {tree_of(head) for head in written_heads}
        return [head for head in heads if tree_of(head) not in waiting_trees]

    def postpones(self, preemption: Preempt) -> bool:
        """Return whether a preemption must wait, because writes of targets that are not evicted yet are in flight.

        Record that the results of these writes are awaited.
        """
        targets = [target.workload for target in preemption.targets]
        written_targets = [target.key for target in targets if target.key in self._workloads and not target.evicted]
        self._awaited_workloads.update(dict.fromkeys(written_targets))
        return bool(written_targets)
