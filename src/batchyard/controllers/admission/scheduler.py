"""Admission: runs scheduling cycles while there is something to decide, and writes what they decide.

One constant key, "the cycle". Its rank lets all that is due settle first, and what a cycle decided settle before the
next one. An admission counts at once (assume); its watch event confirms it. Why a Workload waits changes often: it is
written once a moment at most, when the cycles have come to rest, so that nobody is told what no longer holds. Where
admission waits for pods to be ready, a cycle stops before the first admission that has to wait, and goes on from there
when they are (`blocked_cycle.py`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj
from batchyard.api.quantity import format_amount
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import SECOND, Instant
from batchyard.controllers.admission.blocked_cycle import BlockedCycle
from batchyard.controllers.admission.idle_watch import IdleWatch, is_new
from batchyard.controllers.admission.index import KINDS, AdmissionIndex
from batchyard.controllers.admission.particulars import WORDS, of_admission, of_preemption, of_wait
from batchyard.controllers.admission.pods_ready import PodsReadyGate
from batchyard.controllers.admission.preemption_loops import LoopWatch, PreemptionLoop
from batchyard.core.assignment import Assignment, PodSetAssignment
from batchyard.core.cycle import Cycle, Policy
from batchyard.core.decisions import Admit, Decision, Preempt, Wait, Why
from batchyard.core.explain.spared import NOT_WEIGHED, weighed
from batchyard.core.lifecycle import reasons
from batchyard.core.lifecycle.checks import required_checks
from batchyard.core.lifecycle.waiting import is_evaluation_awaited
from batchyard.core.lifecycle.workload import evict, reserve_quota, set_pending, with_resource_requests
from batchyard.core.preemption.request import Target
from batchyard.core.quality import Possibility
from batchyard.core.queue import Admitted
from batchyard.core.reasons import BYPASSED, PENDING_EVALUATION, preemption_message
from batchyard.core.scan import Attempt
from batchyard.ports.client import EventType, Reader, UpdateStatus, WatchEvent
from batchyard.ports.controller import EventRecord, Outcome
from batchyard.ports.cycles import CycleWatch, Unwatched

CYCLE: Final = Key("Cycle", "", "cycle")
#: Why Workloads wait is written this often at most.
REPORT_PERIOD: Final = SECOND

_PREEMPTED: Final = "Preempted"
_WAITING_FOR_PODS: Final = (
    reasons.WAITING_FOR_PODS_READY,
    "waiting for all admitted workloads to be in PodsReady condition",
)


def ignore_loop(loop: PreemptionLoop) -> None:
    """Take no notice of a loop."""


class Scheduler:
    """See the module."""

    name = "scheduler"
    rank = 10
    kinds = KINDS

    def __init__(
        self,
        index: AdmissionIndex,
        policy: Policy,
        on_loop: Callable[[PreemptionLoop], None] = ignore_loop,
        gate: PodsReadyGate | None = None,
        watch: CycleWatch | None = None,
        *,
        weighs: bool = False,
    ) -> None:
        self._index = index
        self._policy = policy
        #: Whether it is told who was not preempted, and why, when others are.
        self._weighs = weighs
        self._on_loop = on_loop
        self._watch = watch or Unwatched()
        self._blocked = BlockedCycle(index, gate)
        self._number = 0
        self._loops = LoopWatch()
        self._idle = IdleWatch(index)
        #: Why Workloads wait, and since which cycle, not yet written.
        self._reports: dict[str, tuple[Why, int]] = {}
        self._reports_due: Instant = 0
        #: Workloads that are not tried because one of their shape did not fit, and its reason.
        self._bypassed: dict[str, str] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The cycle, if there is something to decide."""
        self._blocked.observe(event)
        is_due = self._index.observe(event, now) or self._blocked.may_resume
        return (CYCLE,) if self._note_bypassed(event) or is_due else ()

    def _note_bypassed(self, event: WatchEvent) -> bool:
        """Note a Workload that came back and is not tried, since one of its shape did not fit; whether it is one."""
        if event.key.kind != scheme.WORKLOAD or event.type is EventType.DELETED:
            return False
        view = workload_view(event.obj)
        if view.waits_for != PENDING_EVALUATION or not is_evaluation_awaited(event.obj):
            return False
        reason = self._index.no_fit_reason(view)
        if reason:
            self._bypassed[view.key] = reason
        return bool(reason)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """One cycle, or the rest of one; when nothing is left to decide, say why those who wait do."""
        self._index.book.take_back()
        self._index.look_anew(reader, now)
        heads = self._index.heads(now)
        outcome = Outcome(requeue_at=now, independent=True)
        if self._blocked.may_resume:
            self._carry_out(self._blocked.resume(), reader, now, outcome)
            return outcome
        if not heads or self._blocked.stands_still:
            return self._rest(reader, now)
        self._number += 1
        self._watch.begin()
        cycle = Cycle(self._index.snapshot, self._policy, self._index.namespaces, self._number)
        decisions = cycle.run(self._blocked.first_heads(heads))
        self._watch.decide()
        self._carry_out(decisions, reader, now, outcome)
        self._watch.end(cycle, decisions)
        return outcome

    def _carry_out(self, decided: Sequence[Decision], reader: Reader, now: Instant, outcome: Outcome) -> None:
        """Apply decisions, up to the first admission that has to wait for pods; its Workload is told so."""
        decisions, blocked = self._blocked.split(decided, reader)
        if blocked is not None:
            self._reports.pop(workload_view(blocked).key, None)
            told = set_pending(blocked, *_WAITING_FOR_PODS, now)
            outcome.writes += [UpdateStatus(told)] if told is not blocked else []
        preemptions = [d for d in decisions if isinstance(d, Preempt) and is_new(d)]
        loops = self._loops.look(preemptions, self._index.snapshot, now)
        parked = [self._apply(decision, reader, now, outcome) for decision in decisions]
        self._idle.look(zip(decisions, parked, strict=True))
        for loop in loops:
            self._index.line_up.freeze(loop.tree)
            self._on_loop(loop)

    def _apply(self, decision: Decision, reader: Reader, now: Instant, outcome: Outcome) -> bool:
        """Carry a decision out; whether its Workload was parked."""
        match decision:
            case Wait():
                return self._requeue(decision, now)
            case Admit():
                self._admit(decision, reader, now, outcome)
                return False
            case Preempt():
                self._preempt(decision, reader, now, outcome)
                return self._requeue(decision, now)

    def _admit(self, decision: Admit, reader: Reader, now: Instant, outcome: Outcome) -> None:
        view = decision.head.workload
        key = _key(view)
        self._reports.pop(view.key, None)
        obj = reader.get(key)
        self._index.book.dequeue(view.key)
        if obj is None or not workload_view(obj).admissible:
            return  # its change is still to be told
        admission = {
            "clusterQueue": decision.queue.name,
            "podSetAssignments": [_pod_set_assignment(p) for p in decision.assignment.pod_sets],
        }
        checks = required_checks(decision.queue.view, admission)
        admitted = not checks
        self._index.book.assume(decision, now, admitted=admitted)
        reserved, *more = _admission_events(key, view, decision, now, admitted=admitted)
        events = [reserved._replace(details=partial(of_admission, decision, self._number)), *more]
        outcome.add(UpdateStatus(reserve_quota(obj, admission, now, admitted, checks)), events)

    def _preempt(self, decision: Preempt, reader: Reader, now: Instant, outcome: Outcome) -> None:
        others = NOT_WEIGHED
        if self._weighs and is_new(decision):
            others = weighed(decision, self._index.snapshot, fair_sharing=self._policy.fair_sharing)
        details = cache(partial(of_preemption, decision, self._number, others))  # the same of every target
        for target in decision.targets:
            key = _workload_key(target.workload.key)
            obj = reader.get(key)
            if obj is None or target.workload.evicted:
                continue
            preempted, events = self._evicted(decision, target, obj, now)
            told = [e._replace(details=details) if e.reason == _PREEMPTED else e for e in events]
            outcome.add(UpdateStatus(preempted), told)

    def _evicted(self, decision: Preempt, target: Target, obj: Obj, now: Instant) -> tuple[Obj, Sequence[EventRecord]]:
        """A Workload that is to leave for another, and what both are told."""
        snapshot, preemptor = self._index.snapshot, decision.head.workload
        message = preemption_message(
            preemptor.uid,
            preemptor.job_uid,
            target.reason,
            snapshot.path_of(decision.queue),
            snapshot.path_of(target.workload.queue),
        )
        preempted = evict(obj, reason=reasons.EVICTED_BY_PREEMPTION, message=message, now=now, preempted=target.reason)
        return preempted, _preemption_events(_workload_key(target.workload.key), preemptor, target, message)

    def _requeue(self, decision: Preempt | Wait, now: Instant) -> bool:
        head = decision.head
        parked = self._index.line_up.requeue(head, decision.last, decision.requeue, decision.why.reason)
        if not self._reports:
            self._reports_due = now + REPORT_PERIOD
        self._reports[head.workload.key] = decision.why, self._number
        return parked

    def _rest(self, reader: Reader, now: Instant) -> Outcome:
        """Nothing to decide: write the reports that are due, and say when to look again."""
        outcome = Outcome(independent=True)
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
                    told = EventRecord(key, "Warning", why.reason, why.message, partial(of_wait, why, cycle))
                    outcome.add(UpdateStatus(report), [told])
            self._reports.clear()
        times = [
            t
            for t in (self._index.line_up.next_release(), self._reports_due if self._reports else None)
            if t is not None
        ]
        outcome.requeue_at = min(times, default=None)
        return outcome


def _key(view: WorkloadView) -> Key:
    return Key(scheme.WORKLOAD, view.namespace, view.name)


def _workload_key(name: str) -> Key:
    """The key of a Workload by its namespace and name."""
    namespace, _, name = name.partition("/")
    return Key(scheme.WORKLOAD, namespace, name)


def _pod_set_assignment(assignment: PodSetAssignment) -> dict[str, Any]:
    """A pod set's part of status.admission; without requests it has no flavors, as upstream's Go types write it."""
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


def _report(obj: Obj | None, why: Why, now: Instant) -> Obj | None:
    """The Workload with the reason why it waits; None if it no longer does or says so already."""
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


def _priority(workload: WorkloadView | Admitted) -> str:
    priority, boost = workload.priority, workload.boost
    return f"effective priority: {priority} (base: {priority - boost}, boost: {boost})"


def _preemption_events(key: Key, preemptor: WorkloadView, target: Target, message: str) -> list[EventRecord]:
    """What both sides of a preemption are told."""
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
    """The flavors looked at that were not simply free, in Kueue's words."""
    pod_sets = []
    for pod_set in assignment.pod_sets:
        told = [_told(a) for a in sorted(pod_set.attempts) if a.possibility is not Possibility.FIT or a.borrow]
        if told:
            pod_sets.append(f"{pod_set.name}: {', '.join(told)}")
    return " | ".join(pod_sets)


def _told(attempt: Attempt) -> str:
    parts = [WORDS[attempt.possibility]]
    if attempt.borrow:
        parts.append(f"borrow={attempt.borrow}")
    parts += sorted(map(str, attempt.facts))
    return f"{attempt.flavor}({';'.join(parts)})"
