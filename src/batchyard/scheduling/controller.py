"""Scheduler: runs scheduling cycles while Workloads are pending, and writes the cycles' decisions.

The controller has one constant key, CYCLE_KEY. Its rank lets other due reconciles run first, such as those that follow
from the last cycle. An admission is counted at once (assumed) and confirmed by its watch event. Over a network, cycles
go on while writes are in flight, up to a limit (`DecisionPacing`). Pending reasons change often, so they
are written at most once per REPORT_PERIOD, when no cycle is due. If admission waits for ready pods
(`blockAdmission`), a cycle stops before the first admission that must wait, and resumes there (`BlockedCycle`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from typing import Any, Final, NamedTuple, Protocol

from batchyard.api import scheme
from batchyard.api.errors import ApiError
from batchyard.api.meta import Key, Obj, format_amount
from batchyard.api.views.node import Requests
from batchyard.api.views.topology import format_topology_assignment
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.scheduling import decision_details, gated_cycles, slices
from batchyard.scheduling.blocked_cycle import (
    IN_PROCESS_PACING,
    BlockedCycle,
    DecisionPacing,
    PodsReadyGate,
    WritesInFlight,
    workload_key_of,
)
from batchyard.scheduling.cluster_queue import AdmittedWorkload, FlavorAttempt
from batchyard.scheduling.cycle import Cycle, PreemptionLoop, PreemptionLoopDetector, SchedulingPolicy
from batchyard.scheduling.decisions import Admit, Decision, Head, InadmissibleReason, Preempt, StayPending
from batchyard.scheduling.flavor_assigner import Assignment, PodSetAssignment
from batchyard.scheduling.messages import BYPASSED, PENDING_EVALUATION, preemption_message
from batchyard.scheduling.preemption import shrinking
from batchyard.scheduling.preemption.alternatives import NO_SPARED_WORKLOADS, find_spared_workloads
from batchyard.scheduling.preemption.context import PreemptionTarget
from batchyard.scheduling.quota import PreemptionPossibility
from batchyard.scheduling.scheduler_cache import NODE_KINDS, WATCHED_KINDS, SchedulerCache
from batchyard.scheduling.snapshot import Snapshot
from batchyard.scheduling.workload import evictions, lifecycle, node_failures
from batchyard.scheduling.workload.evictions import evict
from batchyard.scheduling.workload.lifecycle import required_checks, reserve_quota, set_pending, with_resource_requests
from batchyard.scheduling.workload.pending_reason import is_evaluation_awaited

# Observers measure scheduling cycles (decisions and durations) for metrics. They do not affect decisions.


class CycleObserver(Protocol):
    """Interface for measuring the stages of a scheduling cycle."""

    def begin(self) -> None:
        """Handle the start of a scheduling cycle."""

    def end_decisions(self) -> None:
        """Handle the end of a cycle's decision stage; after this call, the scheduler writes the decisions."""

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """Handle the end of a scheduling cycle, after the scheduler has applied its decisions."""


class NoCycleObserver:
    """CycleObserver that ignores every call."""

    def begin(self) -> None:
        """Ignore the start of a scheduling cycle."""

    def end_decisions(self) -> None:
        """Ignore the end of a scheduling cycle's decision stage."""

    def end(self, cycle: Cycle, decisions: Sequence[Decision]) -> None:
        """Ignore the end of a scheduling cycle."""


# Detects when cycles no longer change anything in a cohort tree, so that the scheduler may skip the tree.
#
# A head that has tried all flavors gets the same decision again, so one repetition is enough. A head with untried
# flavors resumes its search in every cycle, and Kueue's scheduler retries it without pause. The search position at the
# next change decides which flavors it gets. In recordings of Kueue, five cycles follow the last change.


#: Cycles without a change after which a tree is paused although its heads have untried flavors.
_CYCLES_BEFORE_PAUSE: Final = 5


@dataclass(slots=True)
class _StalledTree:
    change_count: int
    #: Each distinct combination of decisions seen since the change.
    seen_signatures: dict[object, None] = field(default_factory=dict)
    #: The number of cycles after the first one since the change.
    later_cycles: int = -1


class QuiescenceDetector:
    """Stops cycles for a cohort tree while they change nothing, as with a blocked StrictFIFO head."""

    def __init__(self, scheduler_cache: SchedulerCache) -> None:
        self._cache = scheduler_cache
        self._stalled_trees: dict[str, _StalledTree] = {}

    def record_cycle(self, decisions_with_parked: Iterable[tuple[Decision, bool]]) -> None:
        """Record a cycle's decisions; pause each cohort tree whose decisions repeat without a change in between.

        The second item of each pair is whether the Workload was set aside until a change or the end of a backoff. A
        tree whose heads have untried flavors is paused only after _CYCLES_BEFORE_PAUSE cycles without a change.
        """
        unchanged_heads_by_tree: dict[str, list[tuple[str, str]] | None] = {}
        for decision, parked in decisions_with_parked:
            root = self._cache.snapshot.queues[decision.head.queue].node.tree
            if parked or isinstance(decision, Admit) or preempts_new_victim(decision):
                unchanged_heads_by_tree[root] = None
                continue
            unchanged_heads = unchanged_heads_by_tree.setdefault(root, [])
            if unchanged_heads is not None:
                search_position = repr(decision.last_assignment.tried) if decision.last_assignment else ""
                unchanged_heads.append((decision.head.workload.key, search_position))
        for root, heads in unchanged_heads_by_tree.items():
            self._update_tree(root, heads)

    def _update_tree(self, root: str, unchanged_heads: list[tuple[str, str]] | None) -> None:
        change_count = self._cache.queue_manager.tree_change_counts.get(root, 0)
        tree = self._stalled_trees.get(root)
        if tree is None or unchanged_heads is None or tree.change_count != change_count:
            tree = self._stalled_trees[root] = _StalledTree(change_count)
        tree.later_cycles += 1
        if unchanged_heads is None:
            return
        signature = tuple(sorted(unchanged_heads, key=lambda head: head[0]))
        has_flavors_left = any(position for _, position in unchanged_heads)
        if signature in tree.seen_signatures and (tree.later_cycles >= _CYCLES_BEFORE_PAUSE or not has_flavors_left):
            self._cache.queue_manager.pause_tree(root)
        tree.seen_signatures[signature] = None


def preempts_new_victim(decision: Decision) -> bool:
    """Return whether a decision is a preemption with at least one victim that is not being evicted yet."""
    return isinstance(decision, Preempt) and not all(target.workload.evicted for target in decision.targets)


CYCLE_KEY: Final = Key("Cycle", "", "cycle")
#: The minimum period between writes of pending reasons.
REPORT_PERIOD: Final = SECOND
#: The maximum delay of due pending reasons while other writes are in flight.
_REPORT_DELAY_MAX: Final = 10 * SECOND

_PREEMPTED: Final = "Preempted"
#: The reasons of the Events with the details of a preemption.
_DETAILED: Final = (_PREEMPTED, shrinking.PARTIALLY_PREEMPTED)
_WAITING: Final = (lifecycle.WAITING_FOR_PODS_READY, "waiting for all admitted workloads to be in PodsReady condition")


def ignore_preemption_loop(loop: PreemptionLoop) -> None:
    """Do nothing about a detected preemption loop; the default callback of Scheduler."""


# The controller of the scheduling cycles.


def _refill_terms(cache: SchedulerCache, in_flight: WritesInFlight) -> gated_cycles.RefillTerms:
    def tree_of(head: Head) -> str:
        return cache.snapshot.queues[head.queue].node.tree

    def may_join(head: Head) -> bool:
        return bool(in_flight.select_heads([head], tree_of))

    return gated_cycles.RefillTerms(cache.workload_cache.usage_ledger, may_join)


class SchedulerSettings(NamedTuple):
    """Settings of the scheduler's writes: the details of preemptions, and when decisions are written."""

    #: Whether preemption details list the Workloads that were not preempted, with the reasons.
    record_spared_candidates: bool = False
    pacing: DecisionPacing = IN_PROCESS_PACING
    #: Whether Nodes and Pods are watched, for topology-aware scheduling.
    watches_nodes: bool = False


class Scheduler:
    """Controller that runs scheduling cycles on the scheduler cache and writes the decisions to Workloads."""

    name = "scheduler"
    rank = 10

    def __init__(
        self,
        scheduler_cache: SchedulerCache,
        policy: SchedulingPolicy,
        on_preemption_loop: Callable[[PreemptionLoop], None] = ignore_preemption_loop,
        gate: PodsReadyGate | None = None,
        watch: CycleObserver | None = None,
        settings: SchedulerSettings | None = None,
    ) -> None:
        self._cache = scheduler_cache
        self._policy = policy
        self._settings = settings or SchedulerSettings()
        self.kinds: Sequence[str] = WATCHED_KINDS + (NODE_KINDS if self._settings.watches_nodes else ())
        if policy.rules.preempts_by_rules:
            self.kinds = (*self.kinds, scheme.PREEMPTION_CONFIG)
        self._second_pass = node_failures.SecondPassQueue()
        #: With a gate, a cycle must see the pods of all admitted Workloads, so no write may be in flight.
        self._in_flight_max = self._settings.pacing.in_flight_max if gate is None else 0
        self._in_flight = WritesInFlight()
        self._on_preemption_loop = on_preemption_loop
        self._observer = watch or NoCycleObserver()
        self._blocked = BlockedCycle(scheduler_cache, gate)
        self._has_cycle_gates = policy.rules.has_cycle_gates
        #: With `blockAdmission`, Kueue refills no cycles.
        self._refill = _refill_terms(scheduler_cache, self._in_flight) if gate is None else None
        self._number = 0
        self._loops = PreemptionLoopDetector()
        self._quiescence = QuiescenceDetector(scheduler_cache)
        #: Pending reasons that are not written yet, each with its cycle.
        self._reports: dict[str, tuple[InadmissibleReason, int]] = {}
        self._reports_due: Instant = 0
        #: Bypassed Workloads, each with the reason why an equivalent Workload did not fit.
        self._bypassed: dict[str, str] = {}
        #: Admissions of slices that replace another slice: by Workload while the write is in flight, then confirmed.
        self._unconfirmed_replacements: dict[str, Admit] = {}
        self._due_replacements: list[Admit] = []

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Process a watch event; return (CYCLE_KEY,) if the scheduler must be reconciled because of it, else ().

        It must be reconciled if a scheduling cycle may be due, or to report a pending Workload that was not evaluated
        because an equivalent Workload did not fit.
        """
        if self._settings.watches_nodes and event.key.kind in NODE_KINDS and not self._cache.snapshot.topology.flavors:
            return ()
        self._blocked.observe(event)
        has_work = self._cache.observe(event, now) or self._blocked.may_resume
        if self._settings.watches_nodes and event.key.kind == scheme.WORKLOAD:
            has_work |= self._second_pass.observe(event, now)
        return (CYCLE_KEY,) if self._record_bypassed_workload(event) or has_work else ()

    def _record_bypassed_workload(self, event: WatchEvent) -> bool:
        if event.key.kind != scheme.WORKLOAD or event.type is EventType.DELETED:
            return False
        view = workload_view(event.obj)
        if view.pending_reason != PENDING_EVALUATION or not is_evaluation_awaited(event.obj):
            return False
        reason = self._cache.no_fit_reason(view)
        if reason:
            self._bypassed[view.key] = reason
        return bool(reason)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Run a scheduling cycle or the rest of an interrupted one; if neither is due, write due pending reasons."""
        self._cache.resync(reader, now)
        if self._due_replacements:
            return self._finish_replaced_slices(reader, now)
        heads = self._in_flight.select_heads(self._cache.heads(now), self._tree_of)
        outcome = self._new_result(requeue_at=now)
        if self._blocked.may_resume:
            self._apply_decisions(self._blocked.take_decisions(), reader, now, outcome)
            return outcome
        watches_nodes = self._settings.watches_nodes and not self._blocked.is_blocked
        failed = self._second_pass.take_due(now) if watches_nodes else ()
        if (not heads and not failed) or self._blocked.is_blocked:
            return self._write_due_reports(reader, now)
        self._number += 1
        self._observer.begin()
        cycle = Cycle(self._cache.snapshot, self._policy, self._cache.namespaces, self._number)
        if self._has_cycle_gates:
            cycle = gated_cycles.create_cycle(cycle, self._cache.queue_manager, heads, self._refill)
        if failed:
            from batchyard.scheduling.second_pass import SecondPass  # noqa: PLC0415 - few clusters need it

            cycle.second_pass = SecondPass(cycle, failed)
        decisions = cycle.run(self._blocked.first_heads(heads))
        self._observer.end_decisions()
        if cycle.second_pass is not None:
            pass_of_heads = failed, self._second_pass
            outcomes = cycle.second_pass.outcomes
            preemptions = node_failures.apply_second_pass(outcomes, pass_of_heads, reader, now, outcome)
            for preemption in preemptions:
                if not self._in_flight.postpones(preemption):
                    self._preempt_targets(preemption, reader, now, outcome)
        self._apply_decisions(decisions, reader, now, outcome)
        self._observer.end(cycle, decisions)
        return outcome

    def _new_result(self, requeue_at: Instant | None = None) -> ReconcileResult:
        return ReconcileResult(
            requeue_at=requeue_at, independent=True, in_flight_max=self._in_flight_max, on_result=self._process_result
        )

    def _tree_of(self, head: Head) -> str:
        return self._cache.snapshot.queues[head.queue].node.tree

    def _write(self, outcome: ReconcileResult, workload: Obj, events: Sequence[EventRecord] = ()) -> None:
        self._in_flight.add(_name_of(workload))
        outcome.add(UpdateStatus(workload), events)

    def _process_result(self, write: Write, error: ApiError | None) -> bool:
        assert isinstance(write, UpdateStatus)
        key = _name_of(write.obj)
        if error is not None:
            self._cache.workload_cache.revert_assumption(key)
        is_awaited = self._in_flight.complete(key)
        if self._unconfirmed_replacements and key in self._unconfirmed_replacements:
            replacement = self._unconfirmed_replacements.pop(key)
            if error is None:
                self._due_replacements.append(replacement)
                is_awaited = True
        quota_holder = self._cache.snapshot.holder(key)
        if is_awaited and quota_holder is not None:
            self._cache.queue_manager.record_tree_change(quota_holder.queue)
        return is_awaited

    def _apply_decisions(
        self, all_decisions: Sequence[Decision], reader: Reader, now: Instant, outcome: ReconcileResult
    ) -> None:
        decisions, blocked_workload = self._blocked.split(all_decisions, reader)
        if blocked_workload is not None:
            self._reports.pop(workload_view(blocked_workload).key, None)
            waiting_workload = set_pending(blocked_workload, *_WAITING, now)
            if waiting_workload is not blocked_workload:
                self._write(outcome, waiting_workload)
        decisions = [self._postpone_preemption(decision) for decision in decisions]
        preemptions = [d for d in decisions if isinstance(d, Preempt) and preempts_new_victim(d)]
        preemption_loops = self._loops.find_loops(preemptions, self._cache.snapshot, now)
        parked_flags = [self._apply_decision(decision, reader, now, outcome) for decision in decisions]
        self._quiescence.record_cycle(zip(decisions, parked_flags, strict=True))
        if self._cache.snapshot.preemption.protection_ends:
            _retry_after_protection(decisions, self._cache)
        for loop in preemption_loops:
            self._cache.queue_manager.freeze_tree(loop.tree)
            self._on_preemption_loop(loop)

    def _postpone_preemption(self, decision: Decision) -> Decision:
        if not isinstance(decision, Preempt) or not self._in_flight.postpones(decision):
            return decision
        return StayPending(decision.head, decision.why, decision.requeue_reason, decision.last_assignment)

    def _apply_decision(self, decision: Decision, reader: Reader, now: Instant, outcome: ReconcileResult) -> bool:
        """Apply a decision; return whether its Workload was set aside until a change or the end of a backoff."""
        if isinstance(decision, Admit):
            self._admit_workload(decision, reader, now, outcome)
            return False
        if isinstance(decision, Preempt):
            self._preempt_targets(decision, reader, now, outcome)
        return self._requeue_pending(decision, now)

    def _admit_workload(self, decision: Admit, reader: Reader, now: Instant, outcome: ReconcileResult) -> None:
        view = decision.head.workload
        key = workload_key_of(view)
        self._reports.pop(view.key, None)
        obj = reader.get(key)
        self._cache.workload_cache.dequeue(view.key)
        if obj is None or not workload_view(obj).admissible:
            return  # its change is not processed yet
        admission = {
            "clusterQueue": decision.queue.name,
            "podSetAssignments": [_pod_set_assignment_status(p) for p in decision.assignment.pod_sets],
        }
        checks = required_checks(decision.queue.view, admission)
        is_admitted = not checks
        self._cache.workload_cache.assume(decision, now, admitted=is_admitted)
        reserved_event, *other_events = _admission_events(key, view, decision, now, admitted=is_admitted)
        get_admission_details = partial(decision_details.admission_details, decision, self._number)
        events = [reserved_event._replace(details=get_admission_details), *other_events]
        if decision.replaced is not None:
            self._unconfirmed_replacements[view.key] = decision
        self._write(outcome, reserve_quota(obj, admission, now, is_admitted, checks), events)

    def _finish_replaced_slices(self, reader: Reader, now: Instant) -> ReconcileResult:
        """Finish the slices whose replacements are admitted; no cycle runs before their quota is free.

        If a write fails, the job reconciler finishes the slice. Source: replaceOldWorkloadSlice in Kueue's scheduler.
        """
        outcome = self._new_result(requeue_at=now)
        replacements, self._due_replacements = self._due_replacements, []
        for decision in replacements:
            assert decision.replaced is not None
            key, new_slice = _workload_key(decision.replaced.key), decision.head.workload
            obj = reader.get(key)
            if obj is None or lifecycle.is_finished(obj):
                continue
            message = slices.replacement_message(new_slice.uid, new_slice.job_uid)
            finished_slice = lifecycle.finish(obj, slices.SLICE_REPLACED, message, now)
            self._write(outcome, finished_slice, [EventRecord(key, "Normal", slices.SLICE_REPLACED, message)])
        return outcome

    def _preempt_targets(self, decision: Preempt, reader: Reader, now: Instant, outcome: ReconcileResult) -> None:
        alternatives = NO_SPARED_WORKLOADS
        if self._settings.record_spared_candidates and preempts_new_victim(decision):
            alternatives = find_spared_workloads(decision, self._cache.snapshot, self._policy.fair_strategies)
        # The details are the same for every target, so they are computed once.
        details = cache(partial(decision_details.preemption_details, decision, self._number, alternatives))
        for target in decision.targets:
            key = _workload_key(target.workload.key)
            obj = reader.get(key)
            if obj is None or target.workload.evicted:
                continue
            evicted_workload, eviction_events = _evict_target(decision, target, obj, now)
            detailed_events = [e._replace(details=details) if e.reason in _DETAILED else e for e in eviction_events]
            self._write(outcome, evicted_workload, detailed_events)
            if target.workload.whole is not None:
                target.workload.whole.obj = evicted_workload  # until the write is confirmed or fails
            elif outcome.in_flight_max:
                self._cache.workload_cache.assume_eviction(target.workload.key)

    def _requeue_pending(self, decision: Preempt | StayPending, now: Instant) -> bool:
        head = decision.head
        is_parked = self._cache.queue_manager.requeue(
            head, decision.last_assignment, decision.requeue_reason, decision.why.reason
        )
        if not self._reports:
            self._reports_due = now + REPORT_PERIOD
        self._reports[head.workload.key] = decision.why, self._number
        return is_parked

    def _write_due_reports(self, reader: Reader, now: Instant) -> ReconcileResult:
        outcome = self._new_result()
        count_max = self._settings.pacing.pending_reasons_max
        if not self._in_flight or now >= self._reports_due + _REPORT_DELAY_MAX:
            self._report_bypassed_workloads(reader, now, outcome, count_max)
            if now >= self._reports_due:
                self._report_pending_reasons(reader, now, outcome, count_max)
        # While writes are in flight, the result of the last one causes the next reconcile.
        next_report = self._reports_due + (_REPORT_DELAY_MAX if self._in_flight else 0)
        due_times = [self._cache.queue_manager.next_release(), next_report if self._reports else None]
        if self._settings.watches_nodes and not self._blocked.is_blocked:
            due_times.append(self._second_pass.next_due())
        outcome.requeue_at = min((t for t in due_times if t is not None), default=None)
        return outcome

    def _without_writes_in_flight(self, workloads: Iterable[str]) -> list[str]:
        return [workload for workload in workloads if workload not in self._in_flight]

    def _report_bypassed_workloads(
        self, reader: Reader, now: Instant, outcome: ReconcileResult, count_max: int
    ) -> None:
        for name in self._without_writes_in_flight(self._bypassed)[:count_max]:
            reason, obj = self._bypassed.pop(name), reader.get(_workload_key(name))
            if obj is not None and is_evaluation_awaited(obj):
                self._write(outcome, set_pending(obj, reason, BYPASSED, now))

    def _report_pending_reasons(self, reader: Reader, now: Instant, outcome: ReconcileResult, count_max: int) -> None:
        for name in self._without_writes_in_flight(self._reports)[-count_max:]:  # the newest
            why, cycle = self._reports.pop(name)
            key = _workload_key(name)
            obj = reader.get(key)
            if obj is None:
                continue
            reported_workload = _with_pending_reason(obj, self._cache.charged_view(obj), why, now)
            if reported_workload is not None:
                details = partial(decision_details.pending_details, why, cycle)
                self._write(outcome, reported_workload, [EventRecord(key, "Warning", why.reason, why.message, details)])


def _retry_after_protection(decisions: Sequence[Decision], scheduler_cache: SchedulerCache) -> None:
    """Have pending Workloads tried again when the first minimal run time ends that kept a victim from them."""
    snapshot = scheduler_cache.snapshot
    for decision in decisions:
        end = snapshot.preemption.protection_ends.get(decision.head.queue)
        if end is not None and isinstance(decision, StayPending):
            scheduler_cache.queue_manager.reactivate_later(snapshot.queues[decision.head.queue], end)


def _evict_target(
    decision: Preempt, target: PreemptionTarget, obj: Obj, now: Instant
) -> tuple[Obj, Sequence[EventRecord]]:
    preemptor, victim_queue = decision.head.workload, target.workload.queue
    paths = [Snapshot.path_of(queue) for queue in (decision.queue, victim_queue)]
    message = preemption_message(preemptor.uid, preemptor.job_uid, target.reason, *paths)
    if target.workload.whole is not None:
        kept, pod_count = shrinking.pod_counts_after(target.workload)
        message += f"; the job shrinks from {pod_count} to {kept} pods"
        shrunk_workload = evictions.shrink(obj, message=message, now=now, preemption=target.reason)
        return shrunk_workload, _shrink_events(_workload_key(target.workload.key), preemptor, target, message)
    cause = f"Preempted by {preemptor.key} because of preemption config {target.rules}" if target.rules else ""
    reason, preemption = evictions.EVICTED_BY_PREEMPTION, target.reason
    evicted_workload = evict(obj, reason=reason, message=message, now=now, preemption=preemption, cause=cause)
    return evicted_workload, _preemption_events(_workload_key(target.workload.key), preemptor, target, message)


def _name_of(workload: Obj) -> str:
    metadata = workload["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def _workload_key(name: str) -> Key:
    namespace, _, name = name.partition("/")
    return Key(scheme.WORKLOAD, namespace, name)


def _pod_set_assignment_status(assignment: PodSetAssignment) -> Mapping[str, Any]:
    choices = assignment.choices
    flavors = tuple([(resource, choices[resource].flavor) for resource in sorted(choices)])
    status = _shared_assignment_status(assignment.name, assignment.count, assignment.requests, flavors)
    if flavors and assignment.topology is not None:
        return {**status, "topologyAssignment": format_topology_assignment(assignment.topology)}
    if flavors and assignment.is_topology_delayed:
        return {**status, "delayedTopologyRequest": "Pending"}
    return status


@lru_cache(maxsize=4096)
def _shared_assignment_status(
    name: str, count: int, requests: Requests, flavors: tuple[tuple[str, str], ...]
) -> Mapping[str, Any]:
    """Return the status of a pod set assignment without topology; equal assignments share one object."""
    if not flavors:
        return {"name": name, "count": count}
    amounts = dict(requests)
    return {
        "name": name,
        "flavors": dict(flavors),
        "resourceUsage": {resource: format_amount(resource, amounts.get(resource, 0)) for resource, _ in flavors},
        "count": count,
    }


def _with_pending_reason(
    obj: Obj, view: WorkloadView, inadmissible_reason: InadmissibleReason, now: Instant
) -> Obj | None:
    if not view.admissible:
        return None
    reported_requests: list[Mapping[str, Any]] = []
    for pod_set, count in zip(view.pod_sets, view.counts, strict=True):
        amounts = {r: format_amount(r, n * count) for r, n in sorted(pod_set.template.requests)}
        reported_requests.append({"name": pod_set.name, "resources": amounts} if amounts else {"name": pod_set.name})
    reported_workload = with_resource_requests(
        lifecycle.set_waiting(obj, inadmissible_reason.reason, inadmissible_reason.message, now), reported_requests
    )
    return None if reported_workload is obj else reported_workload


def _format_priority(workload: WorkloadView | AdmittedWorkload) -> str:
    priority, boost = workload.priority, workload.boost
    return f"effective priority: {priority} (base: {priority - boost}, boost: {boost})"


def _preemption_events(key: Key, preemptor: WorkloadView, target: PreemptionTarget, message: str) -> list[EventRecord]:
    priorities = f"; preemptor {_format_priority(preemptor)}; preemptee {_format_priority(target.workload)}"
    victim = f"{target.workload.key} (UID: {target.workload.uid}) in ClusterQueue {target.workload.queue.name}"
    return [
        EventRecord(key, "Normal", "EvictedDueToPreempted", message),
        EventRecord(key, "Normal", _PREEMPTED, message + priorities),
        EventRecord(
            workload_key_of(preemptor), "Normal", "PreemptedWorkload", f"Preempted workload {victim}{priorities}"
        ),
    ]


def _shrink_events(key: Key, preemptor: WorkloadView, target: PreemptionTarget, message: str) -> list[EventRecord]:
    priorities = f"; preemptor {_format_priority(preemptor)}; preemptee {_format_priority(target.workload)}"
    victim = f"{target.workload.key} (UID: {target.workload.uid}) in ClusterQueue {target.workload.queue.name}"
    text = f"Partially preempted workload {victim}{priorities}"
    return [
        EventRecord(key, "Normal", shrinking.PARTIALLY_PREEMPTED, message + priorities),
        EventRecord(workload_key_of(preemptor), "Normal", "PartiallyPreemptedWorkload", text),
    ]


def _admission_events(
    key: Key, view: WorkloadView, decision: Admit, now: Instant, *, admitted: bool
) -> list[EventRecord]:
    queue = decision.queue.name
    wait_seconds = round((now - view.waiting_since) / SECOND)
    message = f"Quota reserved in ClusterQueue {queue}, wait time since queued was {wait_seconds}s"
    considered_flavors_text = _format_considered_flavors(decision.assignment)
    if considered_flavors_text:
        message += f"; Flavors considered: {considered_flavors_text}"
    events = [EventRecord(key, "Normal", "QuotaReserved", message)]
    if admitted:
        admitted_message = f"Admitted by ClusterQueue {queue}, wait time since reservation was 0s"
        events.append(EventRecord(key, "Normal", "Admitted", admitted_message))
    return events


def _format_considered_flavors(assignment: Assignment) -> str:
    pod_set_texts = []
    for pod_set in assignment.pod_sets:
        attempts = [
            _format_attempt(a)
            for a in sorted(pod_set.attempts)
            if a.possibility is not PreemptionPossibility.FIT or a.borrowing_height
        ]
        if attempts:
            pod_set_texts.append(f"{pod_set.name}: {', '.join(attempts)}")
    return " | ".join(pod_set_texts)


def _format_attempt(attempt: FlavorAttempt) -> str:
    attempt_texts = [decision_details.POSSIBILITY_WORDS[attempt.possibility]]
    if attempt.borrowing_height:
        attempt_texts.append(f"borrow={attempt.borrowing_height}")
    attempt_texts += sorted(map(str, attempt.rejections))
    return f"{attempt.flavor}({';'.join(attempt_texts)})"
