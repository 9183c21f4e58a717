"""Scheduler: runs scheduling cycles while Workloads are pending, and writes their decisions.

It has one constant key, "the cycle". Its rank lets other due work finish first, including what the last cycle decided.
An admission counts at once (assume), and its watch event confirms it. The reason why a Workload is pending changes
often. It is therefore written at most once per REPORT_PERIOD, after the cycles have settled, so that it is not
outdated. If admission waits for ready pods, a cycle stops before the first admission that has to wait, and resumes
there once they are ready (`blocked_cycle.py`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final, Protocol, TypeAlias

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, format_amount
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.scheduling.cluster_queue import AdmittedWorkload, FlavorAttempt
from batchyard.scheduling.cycle import Cycle, PreemptionLoop, PreemptionLoopDetector, SchedulingPolicy
from batchyard.scheduling.decision_details import WORDS, admission_details, pending_details, preemption_details
from batchyard.scheduling.decisions import Admit, Decision, Head, InadmissibleReason, Preempt, StayPending
from batchyard.scheduling.flavor_assigner import Assignment, PodSetAssignment
from batchyard.scheduling.messages import BYPASSED, PENDING_EVALUATION, preemption_message
from batchyard.scheduling.preemption.alternatives import (
    NO_ALTERNATIVES,
    preemption_alternatives,
)
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.queue_manager import is_held_back
from batchyard.scheduling.quota import PreemptionPossibility
from batchyard.scheduling.scheduler_cache import KINDS, SchedulerCache
from batchyard.scheduling.workload import evictions, lifecycle
from batchyard.scheduling.workload.evictions import evict
from batchyard.scheduling.workload.lifecycle import (
    WAITING_FOR_PODS_READY,
    required_checks,
    reserve_quota,
    set_pending,
    with_resource_requests,
)
from batchyard.scheduling.workload.pending_reason import is_evaluation_awaited
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy

# --- observer ---
#
# Observer of scheduling cycles, for metrics of decisions and durations. It does not affect decisions.


class CycleObserver(Protocol):
    """Notified of every cycle. In virtual time, no implementation reads a clock."""

    def begin(self) -> None:
        """A cycle begins."""

    def decide(self) -> None:
        """The decisions are made; writing them begins."""

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """The cycle ends."""


class NoCycleObserver:
    """Ignores all cycles."""

    def begin(self) -> None:
        """Do nothing."""

    def decide(self) -> None:
        """Do nothing."""

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """Do nothing."""


# --- block admission ---
#
# Kueue's blockAdmission: no Workload is admitted while another with quota has pods that are not ready.
#
# Source: WaitForPodsReady in pkg/cache/scheduler of Kueue.


class PodsReadyGate:
    """The Workloads that hold quota and are not ready, tracked by watch events."""

    def __init__(self, policy: PodsReadyPolicy | None = None) -> None:
        self._policy = policy or PodsReadyPolicy()
        self._unready: dict[Key, None] = {}

    @property
    def is_closed(self) -> bool:
        """Whether admissions have to wait."""
        return bool(self._unready)

    def awaits(self, workload: Obj) -> bool:
        """Report whether an admission of this Workload closes the gate until its pods are ready."""
        return self._policy.awaits(workload)

    def observe(self, event: WatchEvent) -> None:
        """Process a change of a Workload."""
        view = workload_view(event.obj)
        holds = view.quota_reserved and view.active and not view.finished and event.type is not EventType.DELETED
        if holds and not view.pods_ready and self.awaits(event.obj):
            self._unready[event.key] = None
        else:
            self._unready.pop(event.key, None)


# --- blocked cycle ---
#
# The rest of a cycle that waits until the pods of all admitted Workloads are ready.
#
# Kueue's scheduler blocks inside a cycle before the first admission that has to wait, and runs no other cycle
# meanwhile. Once the pods are ready, or their Workloads released their quota, it admits that entry as decided, and
# continues with the entries behind it. The next admission blocks in the same way. Here the remaining admissions and
# preemptions are kept, and no cycle runs before they are applied.
#
# An entry is dropped if its Workload is deleted, finished or inactive by then. It is also dropped if its pod sets or
# its queue name changed, or if its ClusterQueue is gone. In some of these cases Kueue writes the admission and reverts
# it afterwards.
#
# After a restart the entry is recognized by its condition (WaitingForPodsReady): the first cycle decides only about
# it. Source: processEntry and waitForPodsReadyIfNeeded in pkg/scheduler/scheduler.go of Kueue.


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


# --- quiescence ---
#
# Detects when a cohort tree may rest although a Workload is in line there, because cycles no longer change anything.
#
# A head that has tried all flavors gets the same decision again, so one repetition is enough. A head with flavors left
# resumes its search in every cycle, and Kueue's scheduler spins on it. The position of its search at the next change
# decides which flavors it gets. The recorded cases of upstream spin five cycles after the last change.


#: A tree whose heads have flavors left rests after this many cycles without a change.
_SPINS: Final = 5


@dataclass(slots=True)
class _Standstill:
    """The decisions of a tree's cycles since the last change in it."""

    touches: int
    #: The decisions seen.
    signatures: dict[object, None] = field(default_factory=dict)
    #: The number of cycles after the first one since the change.
    spins: int = -1


class QuiescenceDetector:
    """Lets a tree rest when its cycles no longer change anything, as with a blocked StrictFIFO head."""

    def __init__(self, index: SchedulerCache) -> None:
        self._index = index
        self._standstills: dict[str, _Standstill] = {}

    def look(self, decided: Iterable[tuple[Decision, bool]]) -> None:
        """Process the decisions of a cycle, each with whether its Workload was parked."""
        trees: dict[str, list[tuple[str, str]] | None] = {}
        for decision, parked in decided:
            queue = self._index.snapshot.queues.get(decision.head.queue)
            if queue is None:
                continue
            root = queue.node.tree
            if parked or isinstance(decision, Admit) or is_new(decision):
                trees[root] = None
                continue
            stuck = trees.setdefault(root, [])
            if stuck is not None:
                tried = repr(decision.last.tried) if decision.last else ""
                stuck.append((decision.head.workload.key, tried))
        for root, heads in trees.items():
            self._look_at(root, heads)

    def _look_at(self, root: str, stuck: list[tuple[str, str]] | None) -> None:
        touches = self._index.queue_manager.touches.get(root, 0)
        known = self._standstills.get(root)
        if known is None or stuck is None or known.touches != touches:
            known = self._standstills[root] = _Standstill(touches)
        known.spins += 1
        if stuck is None:
            return
        signature = tuple(sorted(stuck, key=lambda head: head[0]))
        has_flavors_left = any(tried for _, tried in stuck)
        if signature in known.signatures and (known.spins >= _SPINS or not has_flavors_left):
            self._index.queue_manager.rest(root)
        known.signatures[signature] = None


def is_new(decision: Decision) -> bool:
    """Report whether it preempts a Workload that is not being evicted already."""
    return isinstance(decision, Preempt) and not all(target.workload.evicted for target in decision.targets)


CYCLE: Final = Key("Cycle", "", "cycle")
#: The minimum period between writes of pending reasons.
REPORT_PERIOD: Final = SECOND

_PREEMPTED: Final = "Preempted"
_WAITING_FOR_PODS: Final = (
    lifecycle.WAITING_FOR_PODS_READY,
    "waiting for all admitted workloads to be in PodsReady condition",
)


def ignore_loop(loop: PreemptionLoop) -> None:
    """Ignore a loop."""


class Scheduler:
    """Runs the cycles over the scheduler cache, and holds the pending reasons that are not written yet."""

    name = "scheduler"
    rank = 10
    kinds = KINDS

    def __init__(
        self,
        index: SchedulerCache,
        policy: SchedulingPolicy,
        on_loop: Callable[[PreemptionLoop], None] = ignore_loop,
        gate: PodsReadyGate | None = None,
        watch: CycleObserver | None = None,
        *,
        weighs: bool = False,
    ) -> None:
        self._index = index
        self._policy = policy
        #: Whether preemptions record the passed-over quota holders and the reasons.
        self._weighs = weighs
        self._on_loop = on_loop
        self._watch = watch or NoCycleObserver()
        self._blocked = BlockedCycle(index, gate)
        self._number = 0
        self._loops = PreemptionLoopDetector()
        self._idle = QuiescenceDetector(index)
        #: Pending reasons that are not written yet, each with its cycle.
        self._reports: dict[str, tuple[InadmissibleReason, int]] = {}
        self._reports_due: Instant = 0
        #: Workloads that are bypassed because one of their shape did not fit, with its reason.
        self._bypassed: dict[str, str] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the cycle's key if there is something to decide."""
        self._blocked.observe(event)
        is_due = self._index.observe(event, now) or self._blocked.may_resume
        return (CYCLE,) if self._note_bypassed(event) or is_due else ()

    def _note_bypassed(self, event: WatchEvent) -> bool:
        """Record a requeued Workload that is bypassed because one of its shape did not fit. Return whether it is."""
        if event.key.kind != scheme.WORKLOAD or event.type is EventType.DELETED:
            return False
        view = workload_view(event.obj)
        if view.waits_for != PENDING_EVALUATION or not is_evaluation_awaited(event.obj):
            return False
        reason = self._index.no_fit_reason(view)
        if reason:
            self._bypassed[view.key] = reason
        return bool(reason)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Run a cycle or the rest of one. If nothing is left to decide, write the pending reasons."""
        self._index.book.drop_unconfirmed()
        self._index.resync(reader, now)
        heads = self._index.heads(now)
        outcome = ReconcileResult(requeue_at=now, independent=True)
        if self._blocked.may_resume:
            self._carry_out(self._blocked.resume(), reader, now, outcome)
            return outcome
        if not heads or self._blocked.is_blocked:
            return self._rest(reader, now)
        self._number += 1
        self._watch.begin()
        cycle = Cycle(self._index.snapshot, self._policy, self._index.namespaces, self._number)
        decisions = cycle.run(self._blocked.first_heads(heads))
        self._watch.decide()
        self._carry_out(decisions, reader, now, outcome)
        self._watch.end(cycle, decisions)
        return outcome

    def _carry_out(self, decided: Sequence[Decision], reader: Reader, now: Instant, outcome: ReconcileResult) -> None:
        """Apply decisions up to the first admission that has to wait for pods, and report that on its Workload."""
        decisions, blocked = self._blocked.split(decided, reader)
        if blocked is not None:
            self._reports.pop(workload_view(blocked).key, None)
            updated = set_pending(blocked, *_WAITING_FOR_PODS, now)
            outcome.writes += [UpdateStatus(updated)] if updated is not blocked else []
        preemptions = [d for d in decisions if isinstance(d, Preempt) and is_new(d)]
        loops = self._loops.look(preemptions, self._index.snapshot, now)
        parked = [self._apply(decision, reader, now, outcome) for decision in decisions]
        self._idle.look(zip(decisions, parked, strict=True))
        for loop in loops:
            self._index.queue_manager.freeze(loop.tree)
            self._on_loop(loop)

    def _apply(self, decision: Decision, reader: Reader, now: Instant, outcome: ReconcileResult) -> bool:
        """Apply a decision. Return whether its Workload was parked."""
        match decision:
            case StayPending():
                return self._requeue(decision, now)
            case Admit():
                self._admit(decision, reader, now, outcome)
                return False
            case Preempt():
                self._preempt(decision, reader, now, outcome)
                return self._requeue(decision, now)

    def _admit(self, decision: Admit, reader: Reader, now: Instant, outcome: ReconcileResult) -> None:
        view = decision.head.workload
        key = _key(view)
        self._reports.pop(view.key, None)
        obj = reader.get(key)
        self._index.book.dequeue(view.key)
        if obj is None or not workload_view(obj).admissible:
            return  # its change is not processed yet
        admission = {
            "clusterQueue": decision.queue.name,
            "podSetAssignments": [_pod_set_assignment(p) for p in decision.assignment.pod_sets],
        }
        checks = required_checks(decision.queue.view, admission)
        admitted = not checks
        self._index.book.assume(decision, now, admitted=admitted)
        reserved, *more = _admission_events(key, view, decision, now, admitted=admitted)
        events = [reserved._replace(details=partial(admission_details, decision, self._number)), *more]
        outcome.add(UpdateStatus(reserve_quota(obj, admission, now, admitted, checks)), events)

    def _preempt(self, decision: Preempt, reader: Reader, now: Instant, outcome: ReconcileResult) -> None:
        others = NO_ALTERNATIVES
        if self._weighs and is_new(decision):
            others = preemption_alternatives(decision, self._index.snapshot, fair_sharing=self._policy.fair_sharing)
        details = cache(partial(preemption_details, decision, self._number, others))  # the same for every target
        for target in decision.targets:
            key = _workload_key(target.workload.key)
            obj = reader.get(key)
            if obj is None or target.workload.evicted:
                continue
            preempted, events = self._evicted(decision, target, obj, now)
            detailed = [e._replace(details=details) if e.reason == _PREEMPTED else e for e in events]
            outcome.add(UpdateStatus(preempted), detailed)

    def _evicted(
        self, decision: Preempt, target: PreemptionTarget, obj: Obj, now: Instant
    ) -> tuple[Obj, Sequence[EventRecord]]:
        """Return the evicted Workload, and the Events of both sides."""
        snapshot, preemptor = self._index.snapshot, decision.head.workload
        message = preemption_message(
            preemptor.uid,
            preemptor.job_uid,
            target.reason,
            snapshot.path_of(decision.queue),
            snapshot.path_of(target.workload.queue),
        )
        preempted = evict(
            obj, reason=evictions.EVICTED_BY_PREEMPTION, message=message, now=now, preempted=target.reason
        )
        return preempted, _preemption_events(_workload_key(target.workload.key), preemptor, target, message)

    def _requeue(self, decision: Preempt | StayPending, now: Instant) -> bool:
        head = decision.head
        parked = self._index.queue_manager.requeue(head, decision.last, decision.requeue, decision.why.reason)
        if not self._reports:
            self._reports_due = now + REPORT_PERIOD
        self._reports[head.workload.key] = decision.why, self._number
        return parked

    def _rest(self, reader: Reader, now: Instant) -> ReconcileResult:
        """Write the reports that are due, and requeue for the next release or report."""
        outcome = ReconcileResult(independent=True)
        for name, reason in self._bypassed.items():
            obj = reader.get(_workload_key(name))
            if obj is not None and is_evaluation_awaited(obj):
                outcome.add(UpdateStatus(set_pending(obj, reason, BYPASSED, now)), [])
        self._bypassed.clear()
        if self._reports and now >= self._reports_due:
            for name, (why, cycle) in self._reports.items():
                key = _workload_key(name)
                report = _report(reader.get(key), why, now)
                if report is not None:
                    event = EventRecord(key, "Warning", why.reason, why.message, partial(pending_details, why, cycle))
                    outcome.add(UpdateStatus(report), [event])
            self._reports.clear()
        times = [
            t
            for t in (self._index.queue_manager.next_release(), self._reports_due if self._reports else None)
            if t is not None
        ]
        outcome.requeue_at = min(times, default=None)
        return outcome


def _workload_key(name: str) -> Key:
    """Return the key of a Workload, given its namespace and name."""
    namespace, _, name = name.partition("/")
    return Key(scheme.WORKLOAD, namespace, name)


def _pod_set_assignment(assignment: PodSetAssignment) -> dict[str, Any]:
    """Return a pod set's part of status.admission; without requests it has no flavors, like upstream's Go types."""
    requests = dict(assignment.requests)
    resources = sorted(assignment.choices)
    if not resources:
        return {"name": assignment.name, "count": assignment.count}
    return {
        "name": assignment.name,
        "flavors": {r: assignment.choices[r].flavor for r in resources},
        "resourceUsage": {r: format_amount(r, requests.get(r, 0)) for r in resources},
        "count": assignment.count,
    }


def _report(obj: Obj | None, why: InadmissibleReason, now: Instant) -> Obj | None:
    """Return the Workload with its pending reason; None if it is not pending or has that reason already."""
    if obj is None:
        return None
    view = workload_view(obj)
    if not view.admissible:
        return None
    requests: list[Mapping[str, Any]] = []
    for pod_set, count in zip(view.pod_sets, view.counts, strict=True):
        amounts = {r: format_amount(r, n * count) for r, n in sorted(pod_set.template.requests)}
        requests.append({"name": pod_set.name, "resources": amounts} if amounts else {"name": pod_set.name})
    report = with_resource_requests(set_pending(obj, why.reason, why.message, now), requests)
    return None if report is obj else report


def _priority(workload: WorkloadView | AdmittedWorkload) -> str:
    priority, boost = workload.priority, workload.boost
    return f"effective priority: {priority} (base: {priority - boost}, boost: {boost})"


def _preemption_events(key: Key, preemptor: WorkloadView, target: PreemptionTarget, message: str) -> list[EventRecord]:
    """Return the Events for both sides of a preemption."""
    priorities = f"; preemptor {_priority(preemptor)}; preemptee {_priority(target.workload)}"
    victim = f"{target.workload.key} (UID: {target.workload.uid}) in ClusterQueue {target.workload.queue.name}"
    return [
        EventRecord(key, "Normal", "EvictedDueToPreempted", message),
        EventRecord(key, "Normal", _PREEMPTED, message + priorities),
        EventRecord(_key(preemptor), "Normal", "PreemptedWorkload", f"Preempted workload {victim}{priorities}"),
    ]


def _admission_events(
    key: Key, view: WorkloadView, decision: Admit, now: Instant, *, admitted: bool
) -> list[EventRecord]:
    queue = decision.queue.name
    waited = round((now - view.waiting_since) / SECOND)
    message = f"Quota reserved in ClusterQueue {queue}, wait time since queued was {waited}s"
    considered = _considered(decision.assignment)
    if considered:
        message += f"; Flavors considered: {considered}"
    events = [EventRecord(key, "Normal", "QuotaReserved", message)]
    if admitted:
        text = f"Admitted by ClusterQueue {queue}, wait time since reservation was 0s"
        events.append(EventRecord(key, "Normal", "Admitted", text))
    return events


def _considered(assignment: Assignment) -> str:
    """Return the considered flavors except those with free quota, in Kueue's words."""
    pod_sets = []
    for pod_set in assignment.pod_sets:
        texts = [
            _format_attempt(a)
            for a in sorted(pod_set.attempts)
            if a.possibility is not PreemptionPossibility.FIT or a.borrow
        ]
        if texts:
            pod_sets.append(f"{pod_set.name}: {', '.join(texts)}")
    return " | ".join(pod_sets)


def _format_attempt(attempt: FlavorAttempt) -> str:
    parts = [WORDS[attempt.possibility]]
    if attempt.borrow:
        parts.append(f"borrow={attempt.borrow}")
    parts += sorted(map(str, attempt.facts))
    return f"{attempt.flavor}({';'.join(parts)})"
