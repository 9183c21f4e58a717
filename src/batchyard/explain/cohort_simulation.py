"""A fork of one cohort tree, in which the scheduler's decisions are simulated until nothing changes.

A fork uses the scheduler's own queues, queue order and scheduling cycle. Preempted Workloads release their quota at
once. A trial simulates one hypothetical change and is undone after it ends, so one fork serves many trials.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from batchyard.api.views.workload import ClusterQueueView, CohortView, WorkloadView
from batchyard.base.instant import Instant
from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import Admit, Decision, Preempt, StayPending
from batchyard.scheduling.queue_manager import PendingQueue, QueueManager
from batchyard.scheduling.quota import detach_node
from batchyard.scheduling.scheduler_cache import SchedulerCache, holder_from_admission
from batchyard.scheduling.snapshot import Snapshot

# A copy of one cohort tree, to try changes without affecting the scheduler's snapshot.


def copy_tree(snapshot: Snapshot, queue: ClusterQueue) -> Snapshot:
    """Return a separate snapshot of a ClusterQueue's cohort tree with the Workloads that hold quota.

    The ids of flavor-resources are the same. Evicted Workloads are left out, because they will release their quota.
    """
    copy = Snapshot()
    for flavor in snapshot.flavors.values():
        copy.put_flavor(flavor)
    for quota_key in snapshot.names:
        copy.id_of(*quota_key)
    for view in snapshot.forest.views.values():
        copy.put_cohort(view)
    queues_of_tree = snapshot.queues_below(queue.node.path[0])
    for each in queues_of_tree:
        copy.put_queue(each.view).active = each.active
    copy.settle()
    for each in queues_of_tree:
        for quota_holder in each.workloads.values():
            if not quota_holder.evicted:
                copy.hold(_copy_holder(quota_holder, copy.queues[each.name]))
    return copy


def dismantle(snapshot: Snapshot) -> None:
    """Break the reference cycles of an unused snapshot copy, because the cyclic garbage collector runs rarely."""
    for queue in snapshot.queues.values():
        queue.workloads.clear()
        queue.forget_ranks()
        detach_node(queue.node)
    for node in snapshot.cohorts.values():
        detach_node(node)


def _copy_holder(quota_holder: AdmittedWorkload, queue: ClusterQueue) -> AdmittedWorkload:
    return AdmittedWorkload(
        quota_holder.key,
        quota_holder.uid,
        queue,
        quota_holder.usage,
        quota_holder.flavor_resources,
        quota_holder.priority,
        quota_holder.queued,
        quota_holder.reserved_at,
        quota_holder.evicted,
        quota_holder.is_admitted,
        quota_holder.local_queue,
        quota_holder.boost,
    )


#: Limits on the pending Workloads in a fork: ahead of the Workload in its queue, and in all other queues together.
AHEAD_MAX: Final = 64
OTHERS_MAX: Final = 32
#: Limits on simulated decisions: in all trials of a fork, and in one search for changes. Beyond, a trial has no result.
DECISIONS_MAX: Final = 1000
PURPOSE_MAX: Final = 400
#: If a Workload is preempted more often in one trial, the trial ends as a preemption loop.
_TIMES_PREEMPTED_MAX: Final = 3


class HypotheticalChange(NamedTuple):
    """A hypothetical change of ClusterQueues, Cohorts and Workloads, to be tried in a fork."""

    queues: Mapping[str, ClusterQueueView] = {}
    cohorts: Mapping[str, CohortView] = {}
    #: The changed Workload; None: unchanged.
    workload: WorkloadView | None = None
    #: Keys of Workloads that no longer hold quota.
    ended_workloads: Sequence[str] = ()
    #: Whether the Workload's ClusterQueue becomes active.
    activates_queue: bool = False


NO_CHANGE: Final = HypotheticalChange()


@dataclass(slots=True)
class TrialOutcome:
    """The result of a trial: whether the Workload is admitted, and the Workloads that it preempted."""

    is_admitted: bool = False
    #: Keys of the Workloads that the Workload itself preempted.
    preempted_keys: list[str] = field(default_factory=list)


class DecisionLimitReached(Exception):  # noqa: N818 - named for the event
    """The fork reached its limit of simulated decisions, so the result of the trial is unknown."""


class CohortSimulation:
    """A copy of one cohort tree with its pending Workloads, in which trials are simulated."""

    def __init__(
        self, index: SchedulerCache, policy: SchedulingPolicy, explained_view: WorkloadView, queue: ClusterQueue
    ) -> None:
        self.snapshot = copy_tree(index.snapshot, queue)
        self.explained_view = explained_view
        self.queue = self.snapshot.queues[queue.name]
        self._is_active = self.queue.active
        self._policy = policy
        self._namespaces = index.namespaces
        self._now: Instant = index.queue_manager.now
        self._pending = index.queue_manager.pending
        #: Numbers of Workloads left out because of the limits: ahead of the Workload, and elsewhere in the tree.
        self.omitted_ahead = self.omitted_elsewhere = 0
        self._waiting = self._select_pending()
        #: Views of quota holders, needed if they are preempted and become pending.
        self._views = {key: view for key in self._holder_keys() if (view := index.workload_cache.view(key)) is not None}
        self._number = 0
        self._decided = 0
        self._decided_max = PURPOSE_MAX
        self._original_views: tuple[dict[str, ClusterQueueView], dict[str, CohortView]] = ({}, {})

    def begin_search(self) -> None:
        """Start a new search for changes, with a limit of its own on simulated decisions."""
        self._decided_max = min(DECISIONS_MAX, self._decided + PURPOSE_MAX)

    def count_decisions(self, heads: int) -> None:
        """Count the decisions about a number of heads; raise DecisionLimitReached over the limit."""
        self._decided += heads
        if self._decided > self._decided_max:
            raise DecisionLimitReached

    def close(self) -> None:
        """Release the snapshot copy; no trial may follow."""
        dismantle(self.snapshot)

    def restore_quota_objects(self) -> None:
        """Undo the changes of queues and Cohorts, so that the snapshot can be read between trials."""
        self._apply_change(NO_CHANGE)

    def other_pending_views(self) -> Iterable[WorkloadView]:
        """Return all pending Workloads in the fork except the explained Workload."""
        return [view for views in self._waiting.values() for view in views if view.key != self.explained_view.key]

    def run_trial(self, change: HypotheticalChange = NO_CHANGE) -> TrialOutcome:
        """Return the outcome of a hypothetical change; raise DecisionLimitReached if it needs too many decisions."""
        self._apply_change(change)
        return _Trial(self, change).run()

    def admits(self, change: HypotheticalChange) -> bool:
        """Report whether the Workload is admitted after a hypothetical change, possibly after preemptions."""
        return self.run_trial(change).is_admitted

    def _holder_keys(self) -> list[str]:
        return [key for queue in self.snapshot.queues.values() for key in queue.workloads]

    def _select_pending(self) -> dict[str, list[WorkloadView]]:
        """Return the pending Workloads to simulate, by ClusterQueue, in queue order."""
        names = [name for name in self.snapshot.queues if name != self.queue.name and len(self._pending[name])]
        limit_per_queue = max(1, OTHERS_MAX // max(1, len(names)))
        views = {name: self._pending[name].front(limit_per_queue) for name in names[:OTHERS_MAX]}
        self.omitted_elsewhere = sum(len(self._pending[name]) for name in names) - sum(map(len, views.values()))
        own_queue = self._pending[self.queue.name]
        ahead = own_queue.place_of(self.explained_view.key) if own_queue.get(self.explained_view.key) is not None else 0
        if ahead > AHEAD_MAX:
            self.omitted_ahead = ahead
            views[self.queue.name] = [self.explained_view]
        else:
            front = [view for view in own_queue.front(ahead + OTHERS_MAX) if view.key != self.explained_view.key]
            views[self.queue.name] = [*front[:ahead], self.explained_view, *front[ahead:]]
        return views

    def _apply_change(self, change: HypotheticalChange) -> None:
        """Apply a hypothetical change to the ClusterQueues and Cohorts of the fork, and undo earlier changes."""
        queues, cohorts = self._original_views
        snapshot = self.snapshot
        for name in {**queues, **change.queues}:
            view = change.queues.get(name) or queues[name]
            current_view = snapshot.queues[name].view
            queues.setdefault(name, current_view)
            if view is not current_view:
                snapshot.put_queue(view)
        for name in {**cohorts, **change.cohorts}:
            cohort_view = change.cohorts.get(name) or cohorts[name]
            current_cohort = snapshot.forest.views[name]
            cohorts.setdefault(name, current_cohort)
            if cohort_view is not current_cohort:
                snapshot.put_cohort(cohort_view)
        self.queue.active = change.activates_queue or self._is_active
        old_cohorts, rebuilds = list(snapshot.cohorts.values()), snapshot.rebuilds
        snapshot.settle()
        if snapshot.rebuilds > rebuilds:
            for node in old_cohorts:
                detach_node(node)


class _Trial:
    """One trial in a fork: a simulation of scheduling cycles after a hypothetical change."""

    def __init__(self, simulation: CohortSimulation, change: HypotheticalChange) -> None:
        self._fork = simulation
        self._snapshot = simulation.snapshot
        self._explained_view = change.workload or simulation.explained_view
        self._queue_manager = QueueManager(simulation.snapshot, simulation._namespaces)
        self._queue_manager.now = simulation._now
        self._released: dict[str, AdmittedWorkload] = {}
        self._admitted: dict[str, WorkloadView] = {}
        self._preempted: dict[str, int] = {}
        self._outcome = TrialOutcome()
        for key in change.ended_workloads:
            self._release(key)
        for name, queue in simulation.snapshot.queues.items():
            pending_queue = self._queue_manager.pending[name] = PendingQueue(name)
            pending_queue.strict_fifo = queue.view.strict_fifo
            for view in simulation._waiting.get(name, ()):
                pending_queue.put_in_line(self._explained_view if view.key == self._explained_view.key else view)
            if len(pending_queue):
                self._queue_manager.record_new_workload(name)

    def run(self) -> TrialOutcome:
        """Run scheduling cycles until the Workload is admitted or nothing changes, then undo everything."""
        seen_signatures: dict[object, None] = {}
        try:
            while not self._outcome.is_admitted and not self._is_looping:
                heads = self._queue_manager.heads()
                self._fork.count_decisions(len(heads))
                decisions = self._cycle().run(heads)
                parked_flags = [self._apply(decision) for decision in decisions]
                if any(parked_flags) or any(not _stays_pending(decision) for decision in decisions):
                    seen_signatures.clear()
                    continue
                signature = tuple([(d.head.workload.key, repr(_tried_flavors(d))) for d in decisions])
                if signature in seen_signatures or not heads:
                    break
                seen_signatures[signature] = None
        finally:
            self._undo()
        return self._outcome

    @property
    def _is_looping(self) -> bool:
        return max(self._preempted.values(), default=0) > _TIMES_PREEMPTED_MAX

    def _cycle(self) -> Cycle:
        simulation = self._fork
        simulation._number += 1
        return Cycle(self._snapshot, simulation._policy, simulation._namespaces, simulation._number)

    def _apply(self, decision: Decision) -> bool:
        """Apply a scheduling decision; return whether its Workload was parked as inadmissible."""
        match decision:
            case Admit():
                self._admit(decision)
                return False
            case Preempt():
                for target in decision.targets:
                    self._preempt(decision, target.workload.key)
            case StayPending():
                pass
        return self._queue_manager.requeue(decision.head, decision.last_assignment, decision.requeue_reason)

    def _admit(self, decision: Admit) -> None:
        view = decision.head.workload
        self._queue_manager.pending[decision.queue.name].remove(view.key)
        self._snapshot.hold(holder_from_admission(decision, self._fork._now, admitted=True))
        self._admitted[view.key] = view
        self._outcome.is_admitted |= view.key == self._explained_view.key

    def _preempt(self, decision: Preempt, key: str) -> None:
        quota_holder = self._snapshot.holder(key)
        if quota_holder is None:
            return
        self._preempted[key] = self._preempted.get(key, 0) + 1
        if decision.head.workload.key == self._explained_view.key:
            self._outcome.preempted_keys.append(key)
        name, view = quota_holder.queue.name, self._admitted.get(key) or self._fork._views.get(key)
        self._release(key)
        self._queue_manager.mark_queue(name)
        if view is not None:
            self._queue_manager.pending[name].put_in_line(view)
            self._queue_manager.record_new_workload(name)

    def _release(self, key: str) -> None:
        quota_holder = self._snapshot.release(key)
        if key in self._admitted:
            del self._admitted[key]
        elif quota_holder is not None:
            self._released[key] = quota_holder

    def _undo(self) -> None:
        for key in self._admitted:
            self._snapshot.release(key)
        for quota_holder in self._released.values():
            self._snapshot.hold(quota_holder)
        for pending_queue in self._queue_manager.pending.values():
            pending_queue.clear()


def _tried_flavors(decision: Decision) -> object:
    """Return the flavors that the flavor search of a decision has tried; () if it admits or preempts."""
    return (
        decision.last_assignment.tried
        if isinstance(decision, StayPending) and decision.last_assignment is not None
        else ()
    )


def _stays_pending(decision: Decision) -> bool:
    """Report whether a decision leaves its Workload pending without a preemption."""
    return not isinstance(decision, Admit | Preempt)
