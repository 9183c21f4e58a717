"""Shadow state: the model, the changes that it has not processed yet, Workload names by uid, and the time limits."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, find_condition
from batchyard.api.views.workload import WorkloadView, view_by_creation, workload_view
from batchyard.base.instant import SECOND, Duration, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.controller import PodsReadyGate, QuiescenceDetector
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import Decision, Head, Preempt, StayPending
from batchyard.scheduling.messages import RequeueReason
from batchyard.scheduling.queue_manager import KUEUE_REQUEUE_BATCH_PERIOD, PendingQueue
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy
from batchyard.shadow.findings import ComparisonCounts, Divergence, DivergenceType
from batchyard.shadow.observed import (
    ChangeBacklog,
    ObservedAdmission,
    ObservedChange,
    ObservedPreemption,
    PendingChange,
    Signature,
    is_effective,
    waits_for_victims,
)

# --- model ---
#
# The model: our scheduler on the observed objects. It decides as Kueue should, and writes nothing.
#
# A decision of the model has no effect by itself. Workloads that stay pending are requeued as after a normal cycle.
# Quota and evictions count once the model processes the change that Kueue wrote.


class SchedulerModel:
    """Our scheduler cache, queues and cycle, fed with the observed objects."""

    def __init__(
        self, policy: SchedulingPolicy, requeue_batch_period: Duration, *, is_by_creation: bool = False
    ) -> None:
        """`requeue_batch_period`: the time that Kueue batches changes before it activates parked Workloads.

        `is_by_creation`: Workloads evicted for PodsReady keep their original place in the queue.
        """
        view_of = view_by_creation if is_by_creation else workload_view
        self.index = SchedulerCache(view_of, requeue_batch_period, is_woken_from_outside=True)
        self._policy = policy
        self._idle = QuiescenceDetector(self.index)
        self._number = 0
        #: Whether Kueue writes why Workloads are pending: then it also marks heads that wait for their victims.
        self._reports_reasons = False
        #: All objects as last processed; Workloads by namespace, others under ''.
        self._shown: dict[str, dict[Key, WatchEvent]] = {}

    @property
    def shares_fairly(self) -> bool:
        """Whether fair sharing is enabled."""
        return self._policy.fair_sharing

    # Input.

    def show(self, event: WatchEvent, came: Instant) -> None:
        """Process a change that arrived at `came`; Kueue's batching time for it starts then."""
        is_workload = event.key.kind == scheme.WORKLOAD
        of_namespace = self._shown.setdefault(event.key.namespace if is_workload else "", {})
        before = of_namespace.pop(event.key, None)
        if event.type is not EventType.DELETED:
            # The quota of a Workload from the initial list is not a decision.
            old, kind = (event.obj, EventType.MODIFIED) if is_workload else (None, EventType.ADDED)
            of_namespace[event.key] = event._replace(type=kind, old=old)
        self.index.observe(event, came)
        if is_workload and event.type is not EventType.DELETED:
            self._heed(event, before, came)

    def _heed(self, event: WatchEvent, before: WatchEvent | None, came: Instant) -> None:
        """Apply a new pending message of Kueue: the Workload was tried, and stays head if it waits for its victims."""
        is_waiting = waits_for_victims(event.obj)
        place = None if is_waiting is None else self._place_of(str(event.key))
        if place is None or (waiting := place[0].get(str(event.key))) is None:
            return
        self._reports_reasons = True
        queue, name, was_waiting = place[0], str(event.key), None
        if before is not None:
            was_waiting = waits_for_victims(before.obj)
            if find_condition(before.obj, lifecycle.QUOTA_RESERVED) != find_condition(
                event.obj, lifecycle.QUOTA_RESERVED
            ):
                queue.record_attempt(name, came)
        if is_waiting and not was_waiting:
            self.index.queue_manager.requeue(queue.head_of(name), waiting.last, RequeueReason.PENDING_PREEMPTION)
        elif was_waiting is None:
            queue.release_preemptor(name)

    def shown(self) -> Iterator[WatchEvent]:
        """Yield all objects as last processed, as watch events."""
        return (event for events in self._shown.values() for event in events.values())

    def get(self, key: Key) -> Obj | None:
        """Return a Workload as last processed."""
        event = self._shown.get(key.namespace, {}).get(key)
        return None if event is None else event.obj

    def owned_by(self, uid: str, namespace: str) -> Sequence[Obj]:
        """Return nothing: this is never called on the model."""
        del uid, namespace
        return ()

    # Decisions.

    def heads(self, now: Instant) -> list[Head]:
        """Return the heads of the next cycle."""
        self.index.resync(self, now)
        return self.index.heads(now)

    def wake(self, now: Instant, may_reactivate: Callable[[str], bool]) -> list[str]:
        """Activate the trees whose batching time has passed by then; return them."""
        queue_manager = self.index.queue_manager
        return (
            queue_manager.reactivate_marked(now - queue_manager.requeue_batch_period, may_reactivate)
            if queue_manager.requeue_batch_period
            else []
        )

    def parked(self, workload: str, since: Instant) -> Head | None:
        """Return the head of a Workload that was parked at or after `since`; else None."""
        place = self._place_of(workload)
        if place is None or (parked_at := place[0].parked_at(workload)) is None or parked_at < since:
            return None
        return place[0].head_of(workload)

    def may_be_late(self, head: Head, since: Instant) -> bool:
        """Report whether Kueue may still be processing Workloads before this head, parked at or after `since`."""
        return self.index.queue_manager.pending[head.queue].has_parked_before(head.workload.key, since)

    def unpark(self, head: Head) -> None:
        """Move one parked Workload back into the active heap."""
        self.index.queue_manager.pending[head.queue].unpark(head.workload.key)
        self.index.queue_manager.show_new(head.queue)

    def wake_for(self, workload: str, now: Instant) -> str:
        """Activate the tree of a parked Workload if a change may help it; return the tree, or ''."""
        place = self._place_of(workload)
        if place is None or place[0].parked_at(workload) is None:
            return ""
        return "".join(self.index.queue_manager.reactivate_marked(now, lambda tree: tree == place[1]))

    def _place_of(self, workload: str) -> tuple[PendingQueue, str] | None:
        """Return the pending queue and the tree of a Workload."""
        view = self.index.book.view(workload)
        queue = None if view is None else self.queue_of(view)
        waiting = None if queue is None else self.index.queue_manager.pending.get(queue)
        tree = None if queue is None else self.tree_of_queue(queue)
        return None if waiting is None or tree is None else (waiting, tree)

    def decide(self, heads: Sequence[Head]) -> list[Decision]:
        """Run a cycle."""
        self._number += 1
        return self._cycle().run(heads)

    def opinion(self, workload: str) -> Decision | None:
        """Decide about one Workload alone, as if it were a head; None if it is not pending."""
        view = self.index.book.view(workload)
        queue = None if view is None else self.queue_of(view)
        if view is None or queue is None or self.index.snapshot.holder(workload) is not None:
            return None
        return self._cycle().run([Head(view, queue)])[0]

    def put_back(self, decisions: Iterable[Decision]) -> None:
        """Requeue pending Workloads, and those that wait for their victims, as after a cycle."""
        looked: list[tuple[Decision, bool]] = []
        for decision in decisions:
            parked = False
            if isinstance(decision, StayPending | Preempt):
                parked = self.index.queue_manager.requeue(decision.head, decision.last, self._reason(decision))
            looked.append((decision, parked))
        self._idle.look(looked)

    def _reason(self, decision: StayPending | Preempt) -> RequeueReason:
        """Return the requeue reason; whether a Workload waits for victims of others is taken from Kueue's message."""
        reason = decision.requeue
        if reason is not RequeueReason.PENDING_PREEMPTION or is_effective(decision) or not self._reports_reasons:
            return reason
        obj = self.get(Key(scheme.WORKLOAD, *decision.head.workload.key.split("/", 1)))
        is_reported = obj is not None and waits_for_victims(obj)
        return reason if is_reported else RequeueReason.FAILED_AFTER_NOMINATION

    def park(self, head: Head) -> bool:
        """Park a Workload until something changes; report whether its queue continues with the next one."""
        return self.index.queue_manager.requeue(head, None, RequeueReason.NO_FIT)

    def take_up(self, workload: str) -> None:
        """Return a parked Workload to the active heap."""
        view = self.index.book.view(workload)
        queue = None if view is None else self.queue_of(view)
        waiting = None if queue is None else self.index.queue_manager.pending.get(queue)
        if view is not None and queue is not None and waiting is not None and waiting.remove(workload):
            waiting.put_in_line(view)
            self.index.queue_manager.show_new(queue)

    def rest(self, now: Instant) -> None:
        """Assume that all pending Workloads were tried without success; they wait until something changes."""
        queue_manager = self.index.queue_manager
        while any(queue_manager.requeue(head, None, RequeueReason.GENERIC) for head in self.heads(now)):
            pass  # StrictFIFO queues do not park; they become inactive with their trees
        for tree in dict.fromkeys(queue.node.tree for queue in self.index.snapshot.queues.values()):
            queue_manager.rest(tree)

    # Lookups.

    def queue_of(self, view: WorkloadView) -> str | None:
        """Return the ClusterQueue of a pending Workload."""
        local = self.index.book.local_queues.get(view.queue)
        return None if local is None else local.cluster_queue

    def tree_of_queue(self, name: str) -> str | None:
        """Return the cohort tree of a ClusterQueue."""
        queue = self.index.snapshot.queues.get(name)
        return None if queue is None else queue.node.tree

    def tree_of(self, workload: str, obj: Obj) -> str | None:
        """Return the cohort tree that a Workload is pending or holds quota in, or None."""
        held = self.index.snapshot.holder(workload)
        if held is not None:
            return held.queue.node.tree
        key = f"{obj['metadata'].get('namespace', '')}/{obj['spec'].get('queueName', '')}"
        local = self.index.book.local_queues.get(key)
        return None if local is None else self.tree_of_queue(local.cluster_queue)

    def _cycle(self) -> Cycle:
        return Cycle(self.index.snapshot, self._policy, self.index.namespaces, self._number)

    def list(self, kind: str, namespace: str | None = None) -> Sequence[Obj]:
        """Return all Workloads as last processed."""
        found = self._shown.values() if namespace is None else [self._shown.get(namespace, {})]
        return [event.obj for events in found for event in events.values() if event.key.kind == kind]


# --- held back ---
#
# Periods in which Kueue decided nothing because it waited for the pods of admitted Workloads (blockAdmission).
#
# Kueue's single scheduling thread blocks meanwhile. So our decisions are not overdue, and Kueue has seen nothing new.
# Source: waitForPodsReadyIfNeeded in pkg/scheduler/scheduler.go of Kueue.


_POLICY: Final = PodsReadyPolicy(without_job=True)
#: The number of periods that are kept: only recent changes are replayed in other orders.
_SPANS_MAX: Final = 100


class BlockedPeriods:
    """The recent periods in which the blockAdmission gate was closed, computed from the Workloads of all trees."""

    def __init__(self) -> None:
        self._gate = PodsReadyGate(_POLICY)
        #: Begin and end of each period, in order; the last may have no end yet.
        self._spans: deque[tuple[Instant, Instant | None]] = deque(maxlen=_SPANS_MAX)

    def recall(self, events: Iterable[WatchEvent], now: Instant) -> None:
        """Restart from all existing Workloads, at the start or after a gap in a watch."""
        self._gate = PodsReadyGate(_POLICY)
        self.observe(events, now)

    def observe(self, events: Iterable[WatchEvent], now: Instant) -> None:
        """Update the periods from changes of Workloads."""
        for event in events:
            self._gate.observe(event)
        was_closed = bool(self._spans) and self._spans[-1][1] is None
        if self._gate.is_closed and not was_closed:
            self._spans.append((now, None))
        elif was_closed and not self._gate.is_closed:
            self._spans[-1] = (self._spans[-1][0], now)

    def since(self, first: Instant, now: Instant) -> Instant:
        """Return the time from which `first` counts: the end of a period without decisions; `now` while it lasts."""
        for begin, end in reversed(self._spans):
            if begin <= now:
                return max(first, now if end is None or end > now else end)
        return first


#: The tree name for changes that affect all trees.
ALL: Final = "*"
#: The number of deleted Workloads whose names are kept: later decisions may refer to them.
_GONE_MAX: Final = 1000


class ShadowSettings(NamedTuple):
    """Time limits and settings of the comparison."""

    #: The maximum difference between the delays of two watches.
    settle: Duration = 2 * SECOND
    #: The time that Kueue has to do what the model decided.
    patience: Duration = 15 * SECOND
    #: The time that Kueue batches changes before it activates parked Workloads.
    requeue_batch_period: Duration = KUEUE_REQUEUE_BATCH_PERIOD
    #: Whether Kueue orders Workloads evicted for PodsReady by creation time instead of eviction time.
    is_by_creation: bool = False
    #: The periods in which Kueue waited for pods to be ready; None if it never does.
    held_back: BlockedPeriods | None = None

    def since(self, first: Instant, now: Instant) -> Instant:
        """Return the time from which a missing action of Kueue counts; `now` while Kueue decides nothing."""
        return first if self.held_back is None else self.held_back.since(first, now)


class ShadowState:
    """The model, the pending changes and the findings of one follower."""

    def __init__(self, policy: SchedulingPolicy, terms: ShadowSettings) -> None:
        self.model = SchedulerModel(policy, terms.requeue_batch_period, is_by_creation=terms.is_by_creation)
        self.counts = ComparisonCounts()
        #: Findings that are not reported yet.
        self.findings: list[Divergence] = []
        self._terms = terms
        #: Changes that the model has not processed yet.
        self.backlog = ChangeBacklog()
        #: Decisions of the model reported as missing: their Workloads stay parked until Kueue acts.
        self.missed: dict[str, Signature] = {}
        self._names: dict[str, str] = {}
        self._gone: deque[str] = deque()
        self._now: Instant = 0

    def recall(self, events: Sequence[WatchEvent], now: Instant) -> None:
        """Load the initial objects; they contain no decision to compare."""
        self._now = now
        for event in events:
            self._name(event)
            self.model.show(event, now)

    def recall_settled(self) -> None:
        """Assume that Kueue has already tried all pending Workloads without success."""
        self.model.rest(self._now)

    @property
    def requeue_batch_period(self) -> Duration:
        """The time that Kueue is assumed to batch changes before it activates parked Workloads."""
        return self.model.index.queue_manager.requeue_batch_period

    @requeue_batch_period.setter
    def requeue_batch_period(self, requeue_batch_period: Duration) -> None:
        self.model.index.queue_manager.requeue_batch_period = requeue_batch_period

    @property
    def size(self) -> int:
        """The number of Workloads, including recently deleted ones."""
        return len(self._names)

    def _take_up(self, change: ObservedChange) -> None:
        """Requeue a Workload that was left aside if Kueue acted on it after all, or if its spec changed."""
        if isinstance(change.decision, ObservedPreemption):
            self._requeue_missed(self._names.get(change.decision.by, ""))
        view, old = workload_view(change.event.obj), change.event.old
        is_other = (
            old is None or change.event.type is EventType.DELETED or old.get("spec") != change.event.obj.get("spec")
        )
        if view.key in self.missed and (change.decision is not None or is_other):
            self._requeue_missed(view.key)
            if isinstance(change.decision, ObservedAdmission):
                self.counts.late += 1
                self.findings.append(Divergence(DivergenceType.LATE, self._now, view.key, "admitted after all"))

    def _requeue_missed(self, workload: str) -> None:
        if workload in self.missed:
            del self.missed[workload]
            self.model.take_up(workload)

    def _name(self, event: WatchEvent) -> None:
        if event.key.kind == scheme.WORKLOAD:
            view = workload_view(event.obj)
            self._names[view.uid] = view.key
            if event.type is EventType.DELETED:
                self._gone.append(view.uid)
        if len(self._gone) > _GONE_MAX:
            self._names.pop(self._gone.popleft(), None)

    def _tree(self, queue: str) -> str:
        return self.model.tree_of_queue(queue) or queue

    def _tree_of(self, item: PendingChange) -> str:
        """Return the tree that a change affects."""
        event = item.change.event
        if event.key.kind == scheme.WORKLOAD:
            return self.model.tree_of(str(event.key), event.obj) or str(event.key)
        if event.key.kind == scheme.LOCAL_QUEUE:
            return self._tree(event.obj["spec"]["clusterQueue"])
        return ALL
