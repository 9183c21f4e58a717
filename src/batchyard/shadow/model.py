"""The model: our scheduler on the observed objects. It decides as Kueue should, and writes nothing.

A decision of the model has no effect by itself. Workloads that stay pending are requeued as after a normal cycle. Quota
and evictions count once the model processes the change that Kueue wrote.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, Obj
from batchyard.api.views.workload import WorkloadView, view_by_creation, workload_view
from batchyard.base.instant import Duration, Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.controller import QuiescenceDetector
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import Decision, Head, Preempt, StayPending
from batchyard.scheduling.messages import RequeueReason
from batchyard.scheduling.pending_queue import PendingQueue
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle as r
from batchyard.shadow.observed import is_effective, waits_for_victims


class SchedulerModel:
    """Our scheduler cache, queues and cycle, fed with the observed objects."""

    def __init__(self, policy: SchedulingPolicy, gathers: Duration, *, is_by_creation: bool = False) -> None:
        """`gathers`: the time that Kueue batches changes before it activates parked Workloads.

        `is_by_creation`: Workloads evicted for PodsReady keep their original place in the queue.
        """
        self.index = SchedulerCache(view_by_creation if is_by_creation else workload_view)
        self.index.queue_manager.gathers = gathers
        self.index.queue_manager.is_woken_from_outside = True
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
            if find_condition(before.obj, r.QUOTA_RESERVED) != find_condition(event.obj, r.QUOTA_RESERVED):
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
            queue_manager.reactivate_marked(now - queue_manager.gathers, may_reactivate)
            if queue_manager.gathers
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
