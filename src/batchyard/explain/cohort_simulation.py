"""Simulates scheduling cycles in a copy of one cohort tree, to learn whether a hypothetical change admits a Workload.

The simulation uses the scheduler's own queues, queue order and scheduling cycle. Preempted Workloads release their
quota at once. A trial simulates one hypothetical change and is then undone, so that one copy serves many trials.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, NamedTuple

from batchyard.api.views.node import FlavorView, NodeView
from batchyard.api.views.workload import ClusterQueueView, CohortView, WorkloadView
from batchyard.base.instant import Instant
from batchyard.scheduling import gated_cycles
from batchyard.scheduling.cluster_queue import AdmittedWorkload, ClusterQueue
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy, holder_from_admission
from batchyard.scheduling.decisions import Admit, Decision, Head, Preempt, StayPending
from batchyard.scheduling.fair_sharing.usage_order import make_pending_queue
from batchyard.scheduling.preemption.shrinking import remaining_holder
from batchyard.scheduling.queue_manager import QueueManager
from batchyard.scheduling.quota import detach_node
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.snapshot import Snapshot
from batchyard.topology.state import TopologyUsage

# A copy of one cohort tree, to try changes without affecting the scheduler's snapshot.


class CorrectedObjects(NamedTuple):
    """A corrected ClusterQueue, and the corrected or created ResourceFlavors and Cohorts that it needs."""

    queue: ClusterQueueView
    flavors: Sequence[FlavorView] = ()
    cohorts: Sequence[CohortView] = ()


def copy_tree(snapshot: Snapshot, queue: ClusterQueue, corrected: CorrectedObjects | None = None) -> Snapshot:
    """Return a new snapshot with the cohort tree of a ClusterQueue and the Workloads that hold quota in the tree.

    Flavor-resource pairs keep their ids. Evicted Workloads are left out, because they will release their quota. If the
    Cohort's parents form a cycle, all ClusterQueues below cycles are copied, because a correction may connect them. The
    snapshot has the flavors and Cohorts of `corrected`, but not its ClusterQueue.
    """
    snapshot_copy = Snapshot(ignores_undeclared=snapshot.ignores_undeclared)
    snapshot_copy.usage_of, snapshot_copy.preemption.now = snapshot.usage_of, snapshot.preemption.now
    snapshot_copy.preemption.configs = snapshot.preemption.configs
    snapshot_copy.preemption.queue_labels = snapshot.preemption.queue_labels
    if snapshot.topology.is_enabled:
        snapshot_copy.topology = snapshot.topology.copy()
    new_flavors, new_cohorts = ((), ()) if corrected is None else (corrected.flavors, corrected.cohorts)
    for flavor in (*snapshot.flavors.values(), *new_flavors):
        snapshot_copy.put_flavor(flavor)
    for quota_key in snapshot.flavor_resource_names:
        snapshot_copy.flavor_resource_id(*quota_key)
    for view in (*snapshot.forest.views.values(), *new_cohorts):
        snapshot_copy.put_cohort(view)
    queues_of_tree = snapshot.queues_below(queue.node.path[0])
    if queue.is_in_cohort_cycle:
        queues_of_tree = [each for each in snapshot.queues.values() if each.is_in_cohort_cycle]
    for each in queues_of_tree:
        snapshot_copy.put_queue(each.view).active = each.active
    snapshot_copy.rebuild_if_changed()
    for each in queues_of_tree:
        for quota_holder in each.workloads.values():
            if quota_holder.topology_usage:  # the copied topologies contain it
                snapshot_copy.topology.add_usage(quota_holder.topology_usage, -1)
            if not quota_holder.evicted:
                snapshot_copy.add_holder(_copy_holder(quota_holder, snapshot_copy.queues[each.name]))
    return snapshot_copy


def dismantle_snapshot(snapshot: Snapshot) -> None:
    """Break the reference cycles of a discarded snapshot, because Python's cyclic garbage collector runs rarely."""
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
        quota_holder.pod_sets,
        quota_holder.topology_usage,
        quota_holder.obj,
    )


#: Limits on the simulated pending Workloads: ahead of the explained one in its queue, and in all other queues together.
AHEAD_WORKLOADS_MAX: Final = 64
OTHER_WORKLOADS_MAX: Final = 32
#: Limits on simulated decisions: of all trials of a CohortSimulation, and of one trial. Beyond, a trial has no result.
DECISIONS_MAX: Final = 2000
TRIAL_DECISIONS_MAX: Final = 400
#: If a Workload is preempted more often in one trial, the trial ends as a preemption loop.
_TIMES_PREEMPTED_MAX: Final = 3


class HypotheticalChange(NamedTuple):
    """A change of ClusterQueues, Cohorts or Workloads whose effect on admission is simulated."""

    queues: Mapping[str, ClusterQueueView] = {}
    cohorts: Mapping[str, CohortView] = {}
    #: The changed Workload; None: unchanged.
    workload: WorkloadView | None = None
    #: Keys of Workloads that no longer hold quota.
    ended_workloads: Sequence[str] = ()
    #: Keys of Workloads that are no longer pending.
    withdrawn_workloads: Sequence[str] = ()
    #: Nodes that are added; they enlarge topology domains.
    added_nodes: Sequence[NodeView] = ()


NO_CHANGE: Final = HypotheticalChange()


@dataclass(slots=True)
class TrialOutcome:
    """The result of a simulated change: whether the explained Workload is admitted, and which Workloads it preempts."""

    is_admitted: bool = False
    #: Keys of the Workloads that the Workload itself preempted.
    preempted_keys: list[str] = field(default_factory=list)


class DecisionLimitReached(Exception):  # noqa: N818 - named for the event
    """The simulation reached its limit of scheduling decisions, so the effect of the change is unknown."""


class CohortSimulation:
    """A copy of the explained Workload's cohort tree, with its pending Workloads, in which changes are tried."""

    def __init__(
        self,
        cache: SchedulerCache,
        policy: SchedulingPolicy,
        explained_view: WorkloadView,
        queue: ClusterQueue,
        corrected: CorrectedObjects | None = None,
    ) -> None:
        """Copy the cohort tree of `queue` from the cache.

        `corrected` objects replace those of the cache in all simulated cycles, and their ClusterQueue counts as active.
        """
        self.snapshot = copy_tree(cache.snapshot, queue, corrected)
        self.explained_view = explained_view
        if corrected is not None:
            self.snapshot.put_queue(corrected.queue).active = True
            self.snapshot.rebuild_if_changed()
        self.queue = self.snapshot.queues[queue.name]
        self._policy = policy
        self._namespaces = cache.namespaces
        self._now: Instant = cache.queue_manager.now
        self._pending_queues = cache.queue_manager.pending
        #: Numbers of Workloads left out because of the limits: ahead of the Workload, and elsewhere in the tree.
        self.omitted_ahead_count = self.omitted_elsewhere_count = 0
        self._pending_views = self._select_pending()
        #: Views of quota holders, needed if they are preempted and become pending.
        self._views = {key: view for key in self._holder_keys() if (view := cache.workload_cache.view(key)) is not None}
        self._cycle_number = 0
        #: The number of scheduling decisions in all trials, and the number at which the current trial ends.
        self.decision_count = 0
        self._decision_count_max = 0
        self._added_nodes: list[str] = []
        #: The usage of topology domains by Workloads of other cohort trees.
        self.foreign_usage: dict[str, TopologyUsage] = {}
        if self.snapshot.topology.flavors:
            self.foreign_usage = _foreign_topology_usage(cache.snapshot, self.snapshot)
        self._original_views: tuple[dict[str, ClusterQueueView], dict[str, CohortView]] = ({}, {})

    def count_decisions(self, decision_count: int) -> None:
        """Count simulated scheduling decisions; raise DecisionLimitReached if their total exceeds the limit."""
        self.decision_count += decision_count
        if self.decision_count > self._decision_count_max:
            raise DecisionLimitReached

    def close(self) -> None:
        """Dismantle the copied snapshot; no further change can be simulated."""
        dismantle_snapshot(self.snapshot)

    def restore_quota_objects(self) -> None:
        """Undo hypothetical changes of ClusterQueues and Cohorts, so that the snapshot shows the original quotas."""
        self._apply_change(NO_CHANGE)

    def other_pending_views(self) -> Iterable[WorkloadView]:
        """Return the views of all simulated pending Workloads except the explained Workload."""
        return [view for views in self._pending_views.values() for view in views if view.key != self.explained_view.key]

    def workloads_ahead(self) -> list[WorkloadView]:
        """Return the simulated Workloads that are ahead of the explained Workload in its queue, in queue order."""
        return list(takewhile(lambda each: each is not self.explained_view, self._pending_views[self.queue.name]))

    def run_trial(self, change: HypotheticalChange = NO_CHANGE) -> TrialOutcome:
        """Simulate a change and return the outcome; raise DecisionLimitReached if it takes too many decisions."""
        self._decision_count_max = min(DECISIONS_MAX, self.decision_count + TRIAL_DECISIONS_MAX)
        self._apply_change(change)
        return _Trial(self, change).run()

    def run_trial_within_limit(self, change: HypotheticalChange = NO_CHANGE) -> TrialOutcome:
        """Simulate a change and return the outcome; "not admitted" if the simulation exceeds its decision limit."""
        try:
            return self.run_trial(change)
        except DecisionLimitReached:
            return TrialOutcome()

    def admits(self, change: HypotheticalChange) -> bool:
        """Return whether the explained Workload is admitted after a hypothetical change, possibly by preemption.

        Raise DecisionLimitReached if the simulation takes too many decisions.
        """
        return self.run_trial(change).is_admitted

    def _holder_keys(self) -> list[str]:
        return [key for queue in self.snapshot.queues.values() for key in queue.workloads]

    def _select_pending(self) -> dict[str, list[WorkloadView]]:
        names = [name for name in self.snapshot.queues if name != self.queue.name and len(self._pending_queues[name])]
        limit_per_queue = max(1, OTHER_WORKLOADS_MAX // max(1, len(names)))
        views = {
            name: self._pending_queues[name].first_not_held_back(limit_per_queue)
            for name in names[:OTHER_WORKLOADS_MAX]
        }
        self.omitted_elsewhere_count = sum(len(self._pending_queues[name]) for name in names) - sum(
            map(len, views.values())
        )
        own_queue = self._pending_queues[self.queue.name]
        ahead_count = (
            own_queue.count_ahead_of(self.explained_view.key)
            if own_queue.get(self.explained_view.key) is not None
            else 0
        )
        if ahead_count > AHEAD_WORKLOADS_MAX:
            self.omitted_ahead_count = ahead_count
            views[self.queue.name] = [self.explained_view]
        else:
            front_views = [
                v
                for v in own_queue.first_not_held_back(ahead_count + OTHER_WORKLOADS_MAX)
                if v.key != self.explained_view.key
            ]
            views[self.queue.name] = [*front_views[:ahead_count], self.explained_view, *front_views[ahead_count:]]
        return views

    def _apply_change(self, change: HypotheticalChange) -> None:
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
        if self._added_nodes or change.added_nodes:
            snapshot.topology.replace_nodes(self._added_nodes, change.added_nodes)
            self._added_nodes = [node.name for node in change.added_nodes]
        old_cohorts, rebuild_count = list(snapshot.cohorts.values()), snapshot.rebuild_count
        snapshot.rebuild_if_changed()
        if snapshot.rebuild_count > rebuild_count:
            for node in old_cohorts:
                detach_node(node)


def _foreign_topology_usage(snapshot: Snapshot, copied: Snapshot) -> dict[str, TopologyUsage]:
    return {
        key: holder.topology_usage
        for queue in snapshot.queues.values()
        if queue.name not in copied.queues
        for key, holder in queue.workloads.items()
        if holder.topology_usage
    }


class _Trial:
    def __init__(self, simulation: CohortSimulation, change: HypotheticalChange) -> None:
        self._simulation = simulation
        self._snapshot = simulation.snapshot
        self._explained_view = change.workload or simulation.explained_view
        self._queue_manager = QueueManager(simulation.snapshot, simulation._namespaces)
        self._queue_manager.now = simulation._now
        self._released_holders: dict[str, AdmittedWorkload] = {}
        self._admitted_views: dict[str, WorkloadView] = {}
        self._preemption_counts: dict[str, int] = {}
        self._ended_foreign_usage: list[TopologyUsage] = []
        self._outcome = TrialOutcome()
        for key in change.ended_workloads:
            self._release_quota(key)
        for name, queue in simulation.snapshot.queues.items():
            pending_queue = make_pending_queue(queue, simulation.snapshot, simulation._policy.rules)
            self._queue_manager.pending[name] = pending_queue
            pending_queue.strict_fifo = queue.view.strict_fifo
            for view in simulation._pending_views.get(name, ()):
                if view.key in change.withdrawn_workloads:
                    continue
                pending_queue.put_in_line(self._explained_view if view.key == self._explained_view.key else view)
            if len(pending_queue):
                self._queue_manager.record_new_workload(name)

    def run(self) -> TrialOutcome:
        seen_signatures: dict[object, None] = {}
        try:
            while not self._outcome.is_admitted and not self._is_preemption_looping:
                heads = self._queue_manager.heads()
                self._simulation.count_decisions(len(heads))
                decisions = self._new_cycle(heads).run(heads)
                parked_flags = [self._apply_decision(decision) for decision in decisions]
                if any(parked_flags) or any(not _stays_pending(decision) for decision in decisions):
                    seen_signatures.clear()
                    continue
                signature = tuple([(d.head.workload.key, repr(_tried_flavors(d))) for d in decisions])
                if signature in seen_signatures or not heads:
                    break
                seen_signatures[signature] = None
        finally:
            self._undo_quota_changes()
        return self._outcome

    @property
    def _is_preemption_looping(self) -> bool:
        return max(self._preemption_counts.values(), default=0) > _TIMES_PREEMPTED_MAX

    def _new_cycle(self, heads: Sequence[Head]) -> Cycle:
        simulation = self._simulation
        simulation._cycle_number += 1
        cycle = Cycle(self._snapshot, simulation._policy, simulation._namespaces, simulation._cycle_number)
        if not simulation._policy.rules.has_cycle_gates:
            return cycle
        return gated_cycles.create_cycle(cycle, self._queue_manager, heads, gated_cycles.RefillTerms())

    def _apply_decision(self, decision: Decision) -> bool:
        match decision:
            case Admit():
                self._admit_workload(decision)
                return False
            case Preempt():
                for target in decision.targets:
                    if target.workload.whole is None:
                        self._preempt_workload(decision, target.workload.key)
                    else:
                        self._shrink_workload(decision, target.workload)
            case StayPending():
                pass
        return self._queue_manager.requeue(decision.head, decision.last_assignment, decision.requeue_reason)

    def _admit_workload(self, decision: Admit) -> None:
        view = decision.head.workload
        self._queue_manager.pending[decision.queue.name].remove(view.key)
        self._snapshot.add_holder(holder_from_admission(decision, self._simulation._now, admitted=True))
        if decision.replaced is not None:
            self._release_quota(decision.replaced.key)
            self._queue_manager.mark_queue_for_retry(decision.queue.name)
        self._admitted_views[view.key] = view
        self._outcome.is_admitted |= view.key == self._explained_view.key

    def _preempt_workload(self, decision: Preempt, key: str) -> None:
        quota_holder = self._snapshot.holder(key)
        if quota_holder is None:
            return
        self._preemption_counts[key] = self._preemption_counts.get(key, 0) + 1
        if decision.head.workload.key == self._explained_view.key:
            self._outcome.preempted_keys.append(key)
        name, view = quota_holder.queue.name, self._admitted_views.get(key) or self._simulation._views.get(key)
        self._release_quota(key)
        self._queue_manager.mark_queue_for_retry(name)
        if view is not None:
            self._queue_manager.pending[name].put_in_line(view)
            self._queue_manager.record_new_workload(name)

    def _shrink_workload(self, decision: Preempt, part: AdmittedWorkload) -> None:
        """Release the part of a Workload that a partial preemption frees; it is not shrunk again, nor replaced."""
        quota_holder = self._snapshot.holder(part.key)
        if quota_holder is None:
            return
        if decision.head.workload.key == self._explained_view.key:
            self._outcome.preempted_keys.append(part.key)
        if part.key not in self._admitted_views:
            self._released_holders.setdefault(part.key, quota_holder)
        self._snapshot.add_holder(remaining_holder(part))
        self._queue_manager.mark_queue_for_retry(quota_holder.queue.name)

    def _release_quota(self, key: str) -> None:
        foreign_usage = self._simulation.foreign_usage.get(key)
        if foreign_usage is not None:
            self._snapshot.topology.add_usage(foreign_usage, -1)
            self._ended_foreign_usage.append(foreign_usage)
            return
        quota_holder = self._snapshot.remove_holder(key)
        if key in self._admitted_views:
            del self._admitted_views[key]
        elif quota_holder is not None:
            self._released_holders.setdefault(key, quota_holder)

    def _undo_quota_changes(self) -> None:
        for key in self._admitted_views:
            self._snapshot.remove_holder(key)
        for quota_holder in self._released_holders.values():
            self._snapshot.add_holder(quota_holder)
        for usage in self._ended_foreign_usage:
            self._snapshot.topology.add_usage(usage)
        for pending_queue in self._queue_manager.pending.values():
            pending_queue.clear()


def _tried_flavors(decision: Decision) -> object:
    return (
        decision.last_assignment.tried
        if isinstance(decision, StayPending) and decision.last_assignment is not None
        else ()
    )


def _stays_pending(decision: Decision) -> bool:
    return not isinstance(decision, Admit | Preempt)
