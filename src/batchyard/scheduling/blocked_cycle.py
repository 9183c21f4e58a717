"""The rest of a cycle that waits until the pods of all admitted Workloads are ready.

Kueue's scheduler blocks inside a cycle before the first admission that has to wait, and runs no other cycle meanwhile.
Once the pods are ready, or their Workloads released their quota, it admits that entry as decided, and continues with
the entries behind it. The next admission blocks in the same way. Here the remaining admissions and preemptions are
kept, and no cycle runs before they are applied.

An entry is dropped if its Workload is deleted, finished or inactive by then. It is also dropped if its pod sets or its
queue name changed, or if its ClusterQueue is gone. In some of these cases Kueue writes the admission and reverts it
afterwards.

After a restart the entry is recognized by its condition (WaitingForPodsReady): the first cycle decides only about it.
Source: processEntry and waitForPodsReadyIfNeeded in pkg/scheduler/scheduler.go of Kueue.
"""

from collections.abc import Sequence
from typing import TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.interfaces.client import Reader, WatchEvent
from batchyard.scheduling.block_admission import PodsReadyGate
from batchyard.scheduling.decisions import Admit, Decision, Head, Preempt, StayPending
from batchyard.scheduling.pending_queue import is_held_back
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload.lifecycle import WAITING_FOR_PODS_READY

BlockedEntry: TypeAlias = Admit | Preempt


class BlockedCycle:
    """The entries of a cycle that are not applied yet: the one that waits for pods, then those behind it."""

    def __init__(self, index: SchedulerCache, gate: PodsReadyGate | None) -> None:
        """`gate` is None if admissions do not wait for the pods of others."""
        self._index = index
        self._gate = gate
        self._entries: list[BlockedEntry] = []
        self._is_first_cycle = gate is not None

    @property
    def is_blocked(self) -> bool:
        """Whether an entry is blocked."""
        return bool(self._entries) and self._gate is not None and self._gate.is_closed

    @property
    def may_resume(self) -> bool:
        """Whether entries are kept and no longer blocked."""
        return bool(self._entries) and not self.is_blocked

    def observe(self, event: WatchEvent) -> None:
        """Process a change of an object."""
        if self._gate is not None and event.key.kind == scheme.WORKLOAD:
            self._gate.observe(event)

    def first_heads(self, heads: list[Head]) -> list[Head]:
        """Return the heads of a cycle; for the first cycle, the Workloads blocked before a restart, if any."""
        if not self._is_first_cycle:
            return heads
        self._is_first_cycle = False
        waiting = [view for view in self._index.book.views() if view.waits_for == WAITING_FOR_PODS_READY]
        found = [self._head_of(view) for view in waiting]
        return [head for head in found if head is not None] or heads

    def split(self, decisions: Sequence[Decision], reader: Reader) -> tuple[Sequence[Decision], Obj | None]:
        """Return the decisions to apply now, and the Workload that has to wait; keep the entries from there on.

        A Wait decision is never kept, because nothing that happens meanwhile changes it.
        """
        if self._gate is None:
            return decisions, None
        is_closed = self._gate.is_closed
        for place, decision in enumerate(decisions):
            obj = reader.get(_key(decision.head.workload)) if isinstance(decision, Admit) else None
            if obj is None or not workload_view(obj).admissible:
                continue
            if is_closed:
                behind = decisions[place:]
                self._entries = [entry for entry in behind if not isinstance(entry, StayPending)]
                return [*decisions[:place], *(entry for entry in behind if isinstance(entry, StayPending))], obj
            is_closed = self._gate.awaits(obj)
        return decisions, None

    def resume(self) -> Sequence[Decision]:
        """Return the kept entries that still hold, and drop all."""
        entries, self._entries = self._entries, []
        found = [self._as_of_now(entry) for entry in entries]
        return [entry for entry in found if entry is not None]

    def _head_of(self, view: WorkloadView) -> Head | None:
        local = self._index.book.local_queues.get(view.queue)
        waiting = None if local is None else self._index.queue_manager.pending.get(local.cluster_queue)
        if waiting is None or waiting.get(view.key) is None or is_held_back(view, self._index.queue_manager.now):
            return None
        return waiting.head_of(view.key)

    def _as_of_now(self, entry: BlockedEntry) -> BlockedEntry | None:
        """Return an entry with its current objects; None if it no longer holds."""
        decided, name = entry.head.workload, entry.head.queue
        queue, view = self._index.snapshot.queues.get(name), self._index.book.view(decided.key)
        if queue is None or view is None or not view.admissible or _asks(view) != _asks(decided):
            return None
        if isinstance(entry, Admit):
            return entry._replace(head=entry.head._replace(workload=view), queue=queue)
        waiting, targets = self._index.queue_manager.pending[name].get(view.key), self._still_holding(entry.targets)
        if waiting is None or not targets:
            return None
        return entry._replace(head=entry.head._replace(workload=waiting.view), queue=queue, targets=targets)

    def _still_holding(self, targets: Sequence[PreemptionTarget]) -> tuple[PreemptionTarget, ...]:
        holders = [self._index.snapshot.holder(target.workload.key) for target in targets]
        return tuple(
            target._replace(workload=held)
            for target, held in zip(targets, holders, strict=True)
            if held is not None and held.uid == target.workload.uid
        )


def _asks(view: WorkloadView) -> tuple[object, ...]:
    """Return what a decision about a Workload depends on, except its queue order."""
    return view.uid, view.queue, view.shape[0], view.counts


def _key(view: WorkloadView) -> Key:
    return Key(scheme.WORKLOAD, view.namespace, view.name)
