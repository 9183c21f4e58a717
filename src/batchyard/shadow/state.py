"""State of a comparison with Kueue: batchyard's scheduler as a model, pending changes, blockAdmission, settings."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition
from batchyard.api.times import parse_time
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling import gated_cycles
from batchyard.scheduling.blocked_cycle import PodsReadyGate
from batchyard.scheduling.controller import QuiescenceDetector
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import Decision, Head, Preempt, StayPending
from batchyard.scheduling.fair_sharing.admission_fair_sharing import (
    AdmissionFairSharing,
    LedgerEntry,
    UsageLedger,
    consumed_resources,
)
from batchyard.scheduling.fair_sharing.usage_order import UsageOrderedQueue
from batchyard.scheduling.messages import RequeueReason
from batchyard.scheduling.queue_manager import KUEUE_REQUEUE_BATCH_PERIOD, PendingQueue
from batchyard.scheduling.resource_charging import ResourceRules
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy, view_by_creation
from batchyard.shadow import observed
from batchyard.shadow.findings import ComparisonCounts, Divergence, DivergenceType

# The usage of LocalQueues (admission fair sharing), as Kueue's ledger has it.
#
# Kueue writes the consumed resources of a LocalQueue to its status, but later than it uses them. So the shadow settles
# and samples as Kueue does, and replaces the result by each status that arrives. The events of one second have no
# order among the watches. So times are whole seconds, as in the status, and a sample becomes definite when its second
# is over, or when a scheduling cycle follows it: when Kueue reserves quota, or preempts.


class ObservedUsageLedger(UsageLedger):
    """The usage of LocalQueues, computed from watch events, and corrected by the statuses that Kueue writes."""

    _now: Instant = 0

    def set_time(self, now: Instant) -> bool:
        """Set the time up to which usage is sampled; return whether a sample became due since the last time."""
        was, self._now = self._now, now // SECOND * SECOND
        return any(self._first_due_after(entry, was) <= self._now for entry in self._entries.values())

    def next_sample_at(self, local_queues: Iterable[str]) -> Instant | None:
        """Return the time of the next sample of these LocalQueues (`namespace/name`); None if none has usage."""
        entries = [self._entries[name] for name in local_queues if name in self._entries]
        return min((self._first_due_after(entry, self._now) for entry in entries), default=None)

    def usage_with(self, local_queue: str, penalty: Mapping[str, int]) -> float:
        """Return the usage of a LocalQueue with a further penalty, and with the samples that are due by now."""
        entry = self._entries.get(local_queue)
        if entry is None or entry.last_update + self.settings.sampling_period > self._now:
            return super().usage_with(local_queue, penalty)
        consumed, last_update = entry.consumed, entry.last_update
        self.take_due_samples(local_queue, self._now)
        usage = super().usage_with(local_queue, penalty)
        entry.consumed, entry.last_update = consumed, last_update
        return usage

    def prepare_event(self, event: WatchEvent, view: WorkloadView | None, now: Instant) -> None:
        """Take the samples that precede a watch event, and record the entry penalty if it shows a quota reservation.

        `view` is the Workload of the event, if it is one. This must happen before the event changes the usage.
        """
        self.set_time(now)
        is_reservation = view is not None and _reserves_quota(event, view)
        follows_cycle = is_reservation or (view is not None and _is_preempted(event, view))
        for local_queue in self._entries:
            if self._is_sampled(local_queue):
                self.take_due_samples(local_queue, self._now if follows_cycle else self._now - 1)
        if is_reservation and view is not None and (queue := self._snapshot.queues.get(view.cluster_queue)) is not None:
            self.add_penalty(view, queue, self._now)

    def observe(self, event: WatchEvent, view_of: Callable[[Obj], WorkloadView], now: Instant) -> None:
        """Update the ledger from a watch event; the status of a LocalQueue replaces the computed usage."""
        super().observe(event, view_of, now // SECOND * SECOND)
        if event.type is EventType.DELETED or event.key.kind == scheme.WORKLOAD:
            return
        for local_queue in self._local_queues:
            if local_queue not in self._entries and self._is_sampled(local_queue):
                self._entries[local_queue] = LedgerEntry(self._now)
        entry = self._entries.get(f"{event.key.namespace}/{event.key.name}")
        if event.key.kind != scheme.LOCAL_QUEUE or entry is None:
            return
        reported_at = _usage_reported_at(event.obj)
        old = event.old or {}
        is_new = (reported_at, consumed_resources(event.obj)) != (_usage_reported_at(old), consumed_resources(old))
        if reported_at is not None and is_new:
            entry.consumed, entry.last_update = consumed_resources(event.obj), reported_at

    def _is_sampled(self, local_queue: str) -> bool:
        view = self._local_queues.get(local_queue)
        queue = None if view is None or view.stop_policy != "None" else self._snapshot.queues.get(view.cluster_queue)
        return queue is not None and queue.active

    def _first_due_after(self, entry: LedgerEntry, now: Instant) -> Instant:
        period = self.settings.sampling_period
        return entry.last_update + max(1, (now - entry.last_update) // period + 1) * period


def _keep_observed_usage(cache: SchedulerCache, settings: AdmissionFairSharing) -> ObservedUsageLedger:
    workloads = cache.workload_cache
    ledger = ObservedUsageLedger(settings, cache.snapshot, workloads.local_queues, workloads.local_queue_counters)
    workloads.usage_ledger, cache.snapshot.usage_of = ledger, ledger.usage_of
    return ledger


def _reserves_quota(event: WatchEvent, view: WorkloadView) -> bool:
    if event.type is EventType.DELETED or event.old is None or not view.quota_reserved or view.finished:
        return False
    return not workload_view(event.old).quota_reserved


def _is_preempted(event: WatchEvent, view: WorkloadView) -> bool:
    return view.evicted and not view.finished and observed.observed_preemption(event.obj, view) is not None


def _usage_reported_at(local_queue: Obj) -> Instant | None:
    fair_sharing = (local_queue.get("status") or {}).get("fairSharing") or {}
    text = (fair_sharing.get("admissionFairSharingStatus") or {}).get("lastUpdate")
    return None if text is None else parse_time(text)


# The model: our scheduler on the observed objects. It predicts Kueue's decisions, and writes nothing.
#
# A decision of the model has no effect by itself. Workloads that stay pending are requeued as after a normal cycle.
# Quota and evictions count once the model processes the change that Kueue wrote.


class SchedulerModel:
    """batchyard's scheduler as a model of Kueue: its cache, queues and cycle on the observed objects."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        requeue_batch_period: Duration,
        *,
        is_ordered_by_creation: bool = False,
        resource_rules: ResourceRules | None = None,
        fair_sharing: AdmissionFairSharing | None = None,
        may_refill: bool = True,
    ) -> None:
        """`requeue_batch_period`: how long Kueue collects changes before it requeues inadmissible Workloads.

        `is_ordered_by_creation`: Workloads evicted for PodsReady keep their original place in the queue.
        `resource_rules`: the resources that quota is charged for. `fair_sharing`: the settings of admission fair
        sharing. `may_refill`: whether cycles can be refilled (FairSharingRefill); False with blockAdmission.
        """
        view_of = view_by_creation if is_ordered_by_creation else workload_view
        self.index = SchedulerCache(
            view_of,
            requeue_batch_period,
            is_reactivated_externally=True,
            rules=policy.rules,
            resource_rules=resource_rules,
        )
        self._ledger = None if fair_sharing is None else _keep_observed_usage(self.index, fair_sharing)
        self._policy = policy
        self._may_refill = may_refill
        self._quiescence_detector = QuiescenceDetector(self.index)
        self._cycle_number = 0
        #: Whether Kueue writes why Workloads are pending: then it also marks heads that wait for their victims.
        self._has_reasons = False
        #: All objects as last processed; Workloads by namespace, others under ''.
        self._objects: dict[str, dict[Key, WatchEvent]] = {}

    @property
    def has_fair_sharing(self) -> bool:
        """Whether the model of batchyard's scheduler uses fair sharing."""
        return self._policy.fair_sharing

    # Input.

    def apply_event(self, event: WatchEvent, arrived_at: Instant) -> None:
        """Process a watch event in batchyard's scheduler; Kueue's requeue batch period starts at `arrived_at`."""
        is_workload = event.key.kind == scheme.WORKLOAD
        namespace_objects = self._objects.setdefault(event.key.namespace if is_workload else "", {})
        old_event = namespace_objects.pop(event.key, None)
        if event.type is not EventType.DELETED:
            # The quota of a Workload from the initial list is not a decision.
            old, kind = (event.obj, EventType.MODIFIED) if is_workload else (None, EventType.ADDED)
            namespace_objects[event.key] = event._replace(type=kind, old=old)
        if self._ledger is not None:
            self._ledger.prepare_event(event, workload_view(event.obj) if is_workload else None, arrived_at)
        self.index.observe(event, arrived_at)
        if is_workload and event.type is not EventType.DELETED:
            self._apply_pending_message(event, old_event, arrived_at)

    def _apply_pending_message(self, event: WatchEvent, old_event: WatchEvent | None, arrived_at: Instant) -> None:
        is_waiting = observed.waits_for_victims(event.obj)
        queue_and_tree = None if is_waiting is None else self._queue_and_tree_of(str(event.key))
        if queue_and_tree is None or (entry := queue_and_tree[0].get(str(event.key))) is None:
            return
        self._has_reasons = True
        pending_queue, name, was_waiting_for_victims = queue_and_tree[0], str(event.key), None
        if old_event is not None:
            was_waiting_for_victims = observed.waits_for_victims(old_event.obj)
            condition_type = lifecycle.QUOTA_RESERVED
            if find_condition(old_event.obj, condition_type) != find_condition(event.obj, condition_type):
                pending_queue.record_attempt(name, arrived_at)
        if is_waiting and not was_waiting_for_victims:
            self.index.queue_manager.requeue(
                pending_queue.head_of(name), entry.last_assignment, RequeueReason.PENDING_PREEMPTION
            )
        elif was_waiting_for_victims is None:
            pending_queue.release_preemptor(name)

    def current_object_events(self) -> Iterator[WatchEvent]:
        """Yield a watch event for each object, in the state that batchyard's scheduler processed last."""
        return (event for events in self._objects.values() for event in events.values())

    def get(self, key: Key) -> Obj | None:
        """Return an object as batchyard's scheduler last processed it; None if it does not exist."""
        event = self._objects.get(key.namespace if key.kind == scheme.WORKLOAD else "", {}).get(key)
        return None if event is None else event.obj

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return an empty sequence: the model does not record owners."""
        del uid, namespace
        return ()

    # Decisions.

    def heads(self, now: Instant) -> list[Head]:
        """Return the first pending Workloads of the ClusterQueues, which take part in the next scheduling cycle."""
        self.index.resync(self, now)
        if self._ledger is not None and self._ledger.set_time(now):
            for name in self.index.queue_manager.pending:
                self.index.record_usage_change(name)
        return self.index.heads(now)

    def next_sample_at(self) -> Instant | None:
        """Return when the order of a ClusterQueue may change because usage is sampled; None if that is never."""
        if self._ledger is None:
            return None
        pending = self.index.queue_manager.pending
        ordered = {name for name, q in pending.items() if isinstance(q, UsageOrderedQueue) and q.has_heads()}
        local_queues = self.index.workload_cache.local_queues.values()
        return self._ledger.next_sample_at([each.key for each in local_queues if each.cluster_queue in ordered])

    def activate_trees(self, now: Instant, may_reactivate: Callable[[str], bool]) -> list[str]:
        """Requeue the inadmissible Workloads of changed cohort trees whose batching time has passed.

        Trees for which `may_reactivate` returns False are skipped. Return the requeued trees; [] if the batching time
        is 0.
        """
        queue_manager = self.index.queue_manager
        return (
            queue_manager.reactivate_marked(now - queue_manager.requeue_batch_period, may_reactivate)
            if queue_manager.requeue_batch_period
            else []
        )

    def head_if_parked_since(self, workload: str, since: Instant) -> Head | None:
        """Return a Workload as a head if it became inadmissible at or after `since`; otherwise None."""
        queue_and_tree = self._queue_and_tree_of(workload)
        parked_at = None if queue_and_tree is None else queue_and_tree[0].parked_at(workload)
        if queue_and_tree is None or parked_at is None or parked_at < since:
            return None
        return queue_and_tree[0].head_of(workload)

    def may_be_untried(self, head: Head, since: Instant) -> bool:
        """Return whether a Workload ahead of `head` in its queue became inadmissible at or after `since`.

        Then Kueue may not have tried `head` yet, because it works through a queue more slowly than this model.
        """
        return self.index.queue_manager.pending[head.queue].has_parked_predecessor(head.workload.key, since)

    def requeue_inadmissible(self, head: Head) -> None:
        """Move one inadmissible Workload back to the active heap of its ClusterQueue."""
        self.index.queue_manager.pending[head.queue].unpark_workload(head.workload.key)
        self.index.queue_manager.record_new_workload(head.queue)

    def activate_tree_of(self, workload: str, now: Instant) -> str:
        """If `workload` is inadmissible and its cohort tree has changed, requeue the tree's inadmissible Workloads.

        Return the cohort tree if it was requeued, otherwise ''.
        """
        queue_and_tree = self._queue_and_tree_of(workload)
        if queue_and_tree is None or queue_and_tree[0].parked_at(workload) is None:
            return ""
        return "".join(self.index.queue_manager.reactivate_marked(now, lambda tree: tree == queue_and_tree[1]))

    def _queue_and_tree_of(self, workload: str) -> tuple[PendingQueue, str] | None:
        view = self.index.workload_cache.view(workload)
        cluster_queue_name = None if view is None else self.queue_of(view)
        pending_queue = None if cluster_queue_name is None else self.index.queue_manager.pending.get(cluster_queue_name)
        cohort_tree = None if cluster_queue_name is None else self.tree_of_queue(cluster_queue_name)
        return None if pending_queue is None or cohort_tree is None else (pending_queue, cohort_tree)

    def decide(self, heads: Sequence[Head]) -> list[Decision]:
        """Run a cycle of batchyard's scheduler with these first Workloads of queues, and return its decisions."""
        self._cycle_number += 1
        cycle = self._create_cycle()
        if self._policy.rules.has_cycle_gates:
            queue_manager = self.index.queue_manager
            refill = gated_cycles.RefillTerms(self._ledger) if self._may_refill else None
            cycle = gated_cycles.create_cycle(cycle, queue_manager, heads, refill)
        return cycle.run(heads)

    def decide_for_only_head(self, workload: str) -> Decision | None:
        """Return the decision of batchyard's scheduler for one Workload as the only head.

        None if the Workload holds quota, has no ClusterQueue, or is finished or unknown.
        """
        view = self.index.workload_cache.view(workload)
        queue = None if view is None else self.queue_of(view)
        if view is None or queue is None or self.index.snapshot.holder(workload) is not None:
            return None
        return self._create_cycle().run([Head(view, queue)])[0]

    def requeue_heads(self, decisions: Iterable[Decision]) -> None:
        """Requeue the heads that these decisions leave pending or waiting for victims, as the scheduler does."""
        decisions_with_parked_flag: list[tuple[Decision, bool]] = []
        for decision in decisions:
            is_parked = False
            if isinstance(decision, StayPending | Preempt):
                is_parked = self.index.queue_manager.requeue(
                    decision.head, decision.last_assignment, self._requeue_reason(decision)
                )
            decisions_with_parked_flag.append((decision, is_parked))
        self._quiescence_detector.record_cycle(decisions_with_parked_flag)

    def _requeue_reason(self, decision: StayPending | Preempt) -> RequeueReason:
        """Return why a Workload is requeued.

        A head whose preemptions have no effect counts as PENDING_PREEMPTION only if Kueue's message says that it waits
        for preempted Workloads, or if no messages were recorded.
        """
        reason = decision.requeue_reason
        if reason is not RequeueReason.PENDING_PREEMPTION or observed.is_effective(decision) or not self._has_reasons:
            return reason
        obj = self.get(Key(scheme.WORKLOAD, *decision.head.workload.key.split("/", 1)))
        is_victim_wait_reported = obj is not None and observed.waits_for_victims(obj)
        return reason if is_victim_wait_reported else RequeueReason.FAILED_AFTER_NOMINATION

    def park(self, head: Head) -> bool:
        """Set aside a head that does not fit, until its cohort tree changes; return False if it stays in line.

        The head of a StrictFIFO queue stays in line and blocks the queue.
        """
        return self.index.queue_manager.requeue(head, None, RequeueReason.NO_FIT)

    def requeue_as_new(self, workload: str) -> None:
        """Add a Workload to its ClusterQueue again, as if it were new; do nothing if it is not pending."""
        view = self.index.workload_cache.view(workload)
        queue = None if view is None else self.queue_of(view)
        pending_queue = None if queue is None else self.index.queue_manager.pending.get(queue)
        if view is not None and queue is not None and pending_queue is not None and pending_queue.remove(workload):
            pending_queue.put_in_line(view)
            self.index.queue_manager.record_new_workload(queue)

    def park_all(self, now: Instant) -> None:
        """Let all pending Workloads wait for a change, as if Kueue had tried each of them without success."""
        queue_manager = self.index.queue_manager
        while any(queue_manager.requeue(head, None, RequeueReason.GENERIC) for head in self.heads(now)):
            pass  # StrictFIFO queues do not park; they become inactive with their trees
        for tree in dict.fromkeys(queue.node.tree for queue in self.index.snapshot.queues.values()):
            queue_manager.pause_tree(tree)

    # Lookups.

    def queue_of(self, view: WorkloadView) -> str | None:
        """Return the name of a pending Workload's ClusterQueue; None if the LocalQueue does not exist."""
        local_queue = self.index.workload_cache.local_queues.get(view.queue)
        return None if local_queue is None else local_queue.cluster_queue

    def tree_of_queue(self, name: str) -> str | None:
        """Return the id of a ClusterQueue's cohort tree (`cohort/ROOT`, or `queue/NAME` without a cohort).

        None for an unknown ClusterQueue.
        """
        cluster_queue = self.index.snapshot.queues.get(name)
        return None if cluster_queue is None else cluster_queue.node.tree

    def tree_of(self, workload: str, obj: Obj) -> str | None:
        """Return the cohort tree in which a Workload holds quota or is pending; None if its queue does not exist."""
        quota_holder = self.index.snapshot.holder(workload)
        if quota_holder is not None:
            return quota_holder.queue.node.tree
        key = f"{obj['metadata'].get('namespace', '')}/{obj['spec'].get('queueName', '')}"
        local_queue = self.index.workload_cache.local_queues.get(key)
        return None if local_queue is None else self.tree_of_queue(local_queue.cluster_queue)

    def _create_cycle(self) -> Cycle:
        return Cycle(self.index.snapshot, self._policy, self.index.namespaces, self._cycle_number)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all objects of a kind, or those in a namespace, as batchyard's scheduler last processed them."""
        if kind != scheme.WORKLOAD:
            events_by_key = [self._objects.get("", {})]
        else:
            events_by_key = [*self._objects.values()] if namespace is None else [self._objects.get(namespace, {})]
        return [
            event.obj
            for events in events_by_key
            for key, event in events.items()
            if key.kind == kind and namespace in (None, key.namespace)
        ]


# Periods in which Kueue made no decision because it waited for the pods of admitted Workloads (blockAdmission).
#
# Kueue's single scheduling thread blocks during such a period. So no decision of the model becomes overdue in it.
# Source: waitForPodsReadyIfNeeded in pkg/scheduler/scheduler.go of Kueue.


_PODS_READY_POLICY: Final = PodsReadyPolicy(without_job=True)
#: The number of periods that are kept: only recent changes are replayed in other orders.
_BLOCKED_PERIODS_MAX: Final = 100


class BlockedPeriods:
    """The recent periods in which Kueue admitted nothing (blockAdmission), while admitted pods were not ready."""

    def __init__(self) -> None:
        self._gate = PodsReadyGate(_PODS_READY_POLICY)
        #: Begin and end of each period, in order; the last may have no end yet.
        self._periods: deque[tuple[Instant, Instant | None]] = deque(maxlen=_BLOCKED_PERIODS_MAX)

    def reset(self, events: Iterable[WatchEvent], now: Instant) -> None:
        """Replace the recorded Workloads by all existing ones, after the initial list or a gap in a watch."""
        self._gate = PodsReadyGate(_PODS_READY_POLICY)
        self.observe(events, now)

    def observe(self, events: Iterable[WatchEvent], now: Instant) -> None:
        """Begin or end a blockAdmission period according to watch events of Workloads."""
        for event in events:
            self._gate.observe(event)
        was_blocked = bool(self._periods) and self._periods[-1][1] is None
        if self._gate.is_closed and not was_blocked:
            self._periods.append((now, None))
        elif was_blocked and not self._gate.is_closed:
            self._periods[-1] = (self._periods[-1][0], now)

    def wait_start(self, start_time: Instant, now: Instant) -> Instant:
        """Return `start_time`, or the end of the last blockAdmission period if that is later; `now` while one lasts."""
        for begin, end in reversed(self._periods):
            if begin <= now:
                return max(start_time, now if end is None or end > now else end)
        return start_time


#: The tree name for changes that affect all trees.
ALL_TREES: Final = "*"
#: The number of deleted Workloads whose names are kept: later decisions may refer to them.
_DELETED_NAMES_MAX: Final = 1000


class ShadowSettings(NamedTuple):
    """The time limits of the shadow's comparison, and the Kueue settings that it assumes."""

    #: The maximum difference between the delays of two watches.
    watch_skew_max: Duration = 2 * SECOND
    #: The time within which Kueue must make a decision of the model.
    patience: Duration = 15 * SECOND
    #: The time that Kueue batches changes before it requeues inadmissible Workloads.
    requeue_batch_period: Duration = KUEUE_REQUEUE_BATCH_PERIOD
    #: Whether Kueue orders Workloads evicted for PodsReady by creation time instead of eviction time.
    is_ordered_by_creation: bool = False
    #: The periods in which Kueue waited for ready pods; None if blockAdmission is disabled.
    blocked_periods: BlockedPeriods | None = None
    #: The resources that quota is charged for; None: the requests of the pods.
    resource_rules: ResourceRules | None = None
    #: The settings of admission fair sharing; None if Kueue does not use it.
    admission_fair_sharing: AdmissionFairSharing | None = None

    def wait_start(self, start_time: Instant, now: Instant) -> Instant:
        """Return the instant from which Kueue's delay is measured, for an action that was expected at `start_time`.

        That is `start_time`, or the end of the last period in which Kueue waited for ready pods (blockAdmission) if
        that end is later. During such a period, it is `now` (or `start_time` if later).
        """
        return start_time if self.blocked_periods is None else self.blocked_periods.wait_start(start_time, now)


class ShadowState:
    """The state of one cohort tree's comparison: the scheduler, pending changes, counts, and findings to report."""

    def __init__(self, policy: SchedulingPolicy, settings: ShadowSettings) -> None:
        self.model = SchedulerModel(
            policy,
            settings.requeue_batch_period,
            is_ordered_by_creation=settings.is_ordered_by_creation,
            resource_rules=settings.resource_rules,
            fair_sharing=settings.admission_fair_sharing,
            may_refill=settings.blocked_periods is None,
        )
        self.counts = ComparisonCounts()
        #: Findings that are not reported yet.
        self.findings: list[Divergence] = []
        self._settings = settings
        #: Changes that the model has not processed yet.
        self.backlog = observed.ChangeBacklog()
        #: Decisions of the model reported as missing: their Workloads stay inadmissible until Kueue acts.
        self.reported_decisions: dict[str, observed.Signature] = {}
        self._names_by_uid: dict[str, str] = {}
        self._deleted_uids: deque[str] = deque()
        self._now: Instant = 0

    def reset(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Load the current objects into batchyard's scheduler; their existing quota reservations are not compared."""
        self._now = now
        for event in events:
            self._record_workload_name(event)
            self.model.apply_event(event, now)

    def park_all_pending_workloads(self) -> None:
        """Let all pending Workloads wait for a change, as if Kueue had tried each of them without success."""
        self.model.park_all(self._now)

    @property
    def requeue_batch_period(self) -> Duration:
        """How long Kueue is assumed to collect changes before it requeues inadmissible Workloads."""
        return self.model.index.queue_manager.requeue_batch_period

    @requeue_batch_period.setter
    def requeue_batch_period(self, requeue_batch_period: Duration) -> None:
        self.model.index.queue_manager.requeue_batch_period = requeue_batch_period

    @property
    def workload_count(self) -> int:
        """The number of observed Workloads, including recently deleted ones."""
        return len(self._names_by_uid)

    def _requeue_if_missed(self, change: observed.ObservedChange) -> None:
        if isinstance(change.decision, observed.ObservedPreemption):
            self._requeue_missed_workload(self._names_by_uid.get(change.decision.preemptor_uid, ""))
        event, old = change.event, change.event.old
        view = workload_view(event.obj)
        is_spec_changed = old is None or event.type is EventType.DELETED or old.get("spec") != event.obj.get("spec")
        if view.key in self.reported_decisions and (change.decision is not None or is_spec_changed):
            self._requeue_missed_workload(view.key)
            if isinstance(change.decision, observed.ObservedAdmission):
                self.counts.late_count += 1
                self.findings.append(Divergence(DivergenceType.LATE, self._now, view.key, "admitted late"))

    def _requeue_missed_workload(self, workload: str) -> None:
        if workload in self.reported_decisions:
            del self.reported_decisions[workload]
            self.model.requeue_as_new(workload)

    def _record_workload_name(self, event: WatchEvent) -> None:
        if event.key.kind == scheme.WORKLOAD:
            view = workload_view(event.obj)
            self._names_by_uid[view.uid] = view.key
            if event.type is EventType.DELETED:
                self._deleted_uids.append(view.uid)
        if len(self._deleted_uids) > _DELETED_NAMES_MAX:
            self._names_by_uid.pop(self._deleted_uids.popleft(), None)

    def _tree_of_queue(self, queue: str) -> str:
        return self.model.tree_of_queue(queue) or queue

    def _tree_of(self, pending: observed.PendingChange) -> str:
        """Return the cohort tree that a pending change affects; `*` if it affects all trees.

        If the queue does not exist, return the name of the ClusterQueue, or the key of the Workload.
        """
        event = pending.change.event
        if event.key.kind == scheme.WORKLOAD:
            return self.model.tree_of(str(event.key), event.obj) or str(event.key)
        if event.key.kind == scheme.LOCAL_QUEUE:
            return self._tree_of_queue(event.obj["spec"]["clusterQueue"])
        return ALL_TREES
