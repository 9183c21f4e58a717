"""Scheduler cache: the snapshot and the pending Workloads that the scheduler reads, built only from watch events.

A change that may make pending Workloads admissible marks their ClusterQueue. Before the next cycle, the inadmissible
Workloads of its whole cohort tree are put back in line. A restart rebuilds the cache. Sources: Kueue's event handlers
in pkg/controller/core and pkg/cache/queue/manager.go.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Obj, has_equal_queue_settings, is_true, key_of
from batchyard.api.views.node import FlavorView, flavor_view, namespace_labels
from batchyard.api.views.workload import (
    ClusterQueueView,
    LocalQueueView,
    WorkloadView,
    cluster_queue_view,
    cohort_view,
    local_queue_view,
    workload_view,
)
from batchyard.base.instant import MINUTE, Duration, Instant
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.scheduling import topology_nomination
from batchyard.scheduling.active_status import AdmissionCheckInfo, QueueActiveStatus, compute_active_status
from batchyard.scheduling.cluster_queue import AdmittedWorkload
from batchyard.scheduling.cycle import holder_from_admission
from batchyard.scheduling.decisions import DEFAULT_RULES, Admit, DecisionRules, Head
from batchyard.scheduling.fair_sharing.admission_fair_sharing import UsageLedger
from batchyard.scheduling.fair_sharing.usage_order import UsageOrderedQueue, make_pending_queue
from batchyard.scheduling.preemption.context import queues_after_config_event
from batchyard.scheduling.queue_manager import QueueManager
from batchyard.scheduling.resource_charging import ResourceRules
from batchyard.scheduling.snapshot import QueueCounters, Snapshot, make_holder
from batchyard.scheduling.topology_nomination import queues_after_node_event
from batchyard.scheduling.workload.adjustments import AdjustedViews
from batchyard.topology.state import TopologyUsage

# Workload cache: quota holders and pending Workloads, from watch events of Workloads.
#
# Source: Kueue's workload event handlers in pkg/controller/core. One defect of Kueue is fixed. When a Workload whose
# LocalQueue is deleted or stopped releases quota, Kueue does not reactivate inadmissible Workloads. They wait for the
# next release, or forever if there is none. Here they are reactivated after a grace period, or at once if no other
# Workload remains whose release would reactivate them.


#: How long released quota may stay free before inadmissible Workloads are tried again.
REACTIVATION_GRACE_PERIOD: Final = 5 * MINUTE

_DELETED: Final = EventType.DELETED


class WorkloadCache:
    """The Workloads by LocalQueue, the usage per queue, and the admissions that no watch event has confirmed yet."""

    def __init__(
        self, snapshot: Snapshot, queue_manager: QueueManager, view_of: Callable[[Obj], WorkloadView] = workload_view
    ) -> None:
        self._view_of = view_of
        self.snapshot = snapshot
        self.queue_manager = queue_manager
        self.local_queues: dict[str, LocalQueueView] = {}
        #: Reserved and used quota, by ClusterQueue and by LocalQueue.
        self.cluster_queue_counters = QueueCounters()
        self.local_queue_counters = QueueCounters()
        #: The usage of LocalQueues; None without admission fair sharing.
        self.usage_ledger: UsageLedger | None = None
        #: Unfinished Workloads by LocalQueue.
        self._workloads: dict[str, dict[str, WorkloadView]] = {}
        self._queue_of: dict[str, str] = {}
        #: Workloads whose admission counts as usage although its watch event has not arrived yet.
        self._assumed_keys: dict[str, None] = {}

    def enqueue_local_queue(self, local_queue_view: LocalQueueView) -> None:
        """Queue a LocalQueue's pending Workloads, unless the LocalQueue is stopped or its ClusterQueue is missing."""
        pending_queue = self.queue_manager.pending.get(local_queue_view.cluster_queue)
        if pending_queue is None or local_queue_view.stop_policy != "None":
            return
        for view in self._workloads.get(local_queue_view.key, {}).values():
            if view.admissible and self.snapshot.holder(view.key) is None:
                pending_queue.put_in_line(view)
        if pending_queue.has_heads():
            self.queue_manager.record_new_workload(local_queue_view.cluster_queue)

    def forget_queue(self, cluster_queue: str) -> None:
        """Remove a deleted ClusterQueue, and subtract the quota of its Workloads from the usage of LocalQueues."""
        for quota_holder in self.snapshot.queues[cluster_queue].workloads.values():
            self.local_queue_counters.remove(quota_holder.local_queue, quota_holder)
        self.cluster_queue_counters.forget(cluster_queue)
        self.snapshot.remove_queue(cluster_queue)

    def count_admissible(self, local_queue: str) -> int:
        """Return the number of pending Workloads of a LocalQueue (a key), even if its ClusterQueue is missing."""
        views = self._workloads.get(local_queue, {}).values()
        return sum(view.admissible and self.snapshot.holder(view.key) is None for view in views)

    def dequeue_local_queue(self, key: str) -> None:
        """Remove the Workloads of a LocalQueue (given its key) from the pending Workloads of its ClusterQueue."""
        for workload in self._workloads.get(key, {}):
            self.dequeue(workload)

    def assume(self, decision: Admit, now: Instant, *, admitted: bool) -> None:
        """Count the quota usage of an admission before the admission is written, as kube-scheduler assumes a pod."""
        self._add_holder(holder_from_admission(decision, now, admitted=admitted))
        self._assumed_keys[decision.head.workload.key] = None
        if self.usage_ledger is not None:
            self.usage_ledger.add_penalty(decision.head.workload, decision.queue, now)

    def view(self, key: str) -> WorkloadView | None:
        """Return the parsed Workload with this key; None if it does not exist or is finished."""
        return self._workloads.get(self._queue_of.get(key, ""), {}).get(key)

    def views(self) -> Iterator[WorkloadView]:
        """Iterate over all parsed Workloads that are not finished."""
        return (view for views in self._workloads.values() for view in views.values())

    @property
    def has_assumed_workloads(self) -> bool:
        """Whether some assumed admission has not been confirmed by a watch event yet."""
        return bool(self._assumed_keys)

    def assume_eviction(self, key: str) -> None:
        """Count a Workload with quota as evicted before the eviction is written."""
        quota_holder = self.snapshot.holder(key)
        if quota_holder is not None:
            self._add_holder(replace(quota_holder, evicted=True))

    def revert_assumption(self, key: str) -> None:
        """Undo the assumed admission or eviction of a Workload whose write was rejected; requeue it if pending."""
        view = self.view(key)
        if view is not None and view.quota_reserved and view.active:
            self._record_reservation(view, None)
            return
        if key not in self._assumed_keys:
            return
        del self._assumed_keys[key]
        if self.usage_ledger is not None:
            self.usage_ledger.drop_penalty(self._queue_of.get(key, ""), key)
        self._mark_tree_of_workload(key)
        self._remove_holder(key)
        if view is not None and view.admissible:
            self._enqueue_workload(view)

    def record_reservations_in(self, cluster_queue: str) -> None:
        """Count the quota that Workloads hold in a ClusterQueue, if they were observed before the ClusterQueue."""
        for workloads in self._workloads.values():
            for view in list(workloads.values()):
                if view.quota_reserved and view.active and view.cluster_queue == cluster_queue:
                    self._record_reservation(view, None)

    def observe(self, event: WatchEvent) -> None:
        """Update the cache from a watch event of a Workload."""
        view = self._view_of(event.obj)
        if self._assumed_keys and view.quota_reserved:
            self._assumed_keys.pop(view.key, None)
        if event.type is _DELETED:
            self._forget_workload(view.key)
            return
        self._store_view(view)
        if view.finished or not view.active:
            self._release_inactive_workload(view)
            return
        if view.quota_reserved:
            self._record_reservation(view, event.old)
            return
        if self.snapshot.holder(view.key) is not None:
            self._mark_tree_of_workload(view.key)
            self._remove_holder(view.key)
        if view.admissible:
            self._enqueue_workload(view)
        else:
            self.dequeue(view.key)

    def _store_view(self, view: WorkloadView) -> None:
        previous_queue = self._queue_of.get(view.key)
        if previous_queue is not None and previous_queue != view.queue:
            self.dequeue(view.key)
            del self._workloads[previous_queue][view.key]
        self._queue_of[view.key] = view.queue
        self._workloads.setdefault(view.queue, {})[view.key] = view

    def _release_inactive_workload(self, view: WorkloadView) -> None:
        self.dequeue(view.key)
        self._mark_tree_of_workload(view.key)
        self._remove_holder(view.key)
        if view.finished:
            self._workloads[view.queue].pop(view.key, None)

    def _record_reservation(self, view: WorkloadView, old: Obj | None) -> None:
        self.dequeue(view.key)
        queue = self.snapshot.queues.get(view.cluster_queue)
        if queue is None:
            self._remove_holder(view.key)
            return
        usage: dict[int, int] = {}
        assigned_frs: dict[int, None] = {}
        topology_usage: TopologyUsage = ()
        for holding in view.admitted_pod_sets:
            resource_amounts = dict(holding.usage)
            for resource, flavor in holding.flavors.items():
                fr = self.snapshot.flavor_resource_id(flavor, resource)
                assigned_frs[fr] = None
                usage[fr] = usage.get(fr, 0) + resource_amounts.get(resource, 0)
            if holding.topology is not None:
                topology_usage += topology_nomination.usage_of_pod_set(view, holding)
        holder = make_holder(
            view,
            queue,
            tuple(usage.items()),
            frozenset(assigned_frs),
            reserved_at=view.reserved_at or 0,
            is_admitted=view.admitted,
        )
        holder.topology_usage = topology_usage
        if view.elastic:
            holder.pod_sets = view.admitted_pod_sets
        self._add_holder(holder)
        if old is not None:
            old_view = self._view_of(old)
            if old_view.quota_reserved and (old_view.counts != view.counts or old_view.priority != view.priority):
                self._mark_tree_of_workload(view.key)

    def _forget_workload(self, key: str) -> None:
        self.dequeue(key)
        self._mark_tree_of_workload(key)
        self._remove_holder(key)
        local_queue = self._queue_of.pop(key, None)
        if local_queue is not None:
            self._workloads[local_queue].pop(key, None)

    def _add_holder(self, quota_holder: AdmittedWorkload) -> None:
        previous_holder = self.snapshot.holder(quota_holder.key)
        if previous_holder is not None and previous_holder.is_equivalent(quota_holder):
            self.snapshot.confirm_admission(previous_holder)  # an admission counted before it was written
            previous_holder.obj = quota_holder.obj
        else:
            self._stop_counting_holder(previous_holder)
            self.snapshot.add_holder(quota_holder)
            self.cluster_queue_counters.add(quota_holder.queue.name, quota_holder)
            self.local_queue_counters.add(quota_holder.local_queue, quota_holder)
        self._record_change(quota_holder)

    def _remove_holder(self, key: str) -> None:
        quota_holder = self.snapshot.remove_holder(key)
        if quota_holder is not None:
            self._stop_counting_holder(quota_holder)
            self._record_change(quota_holder)

    def _record_change(self, quota_holder: AdmittedWorkload) -> None:
        self.queue_manager.record_tree_change(quota_holder.queue)
        if quota_holder.topology_usage:
            # Nodes are shared by all cohort trees, so the heads of the others may fit now.
            for name in self.queue_manager.paused_queues():
                queue = self.snapshot.queues.get(name)
                if queue is not None and queue.topology_flavors:
                    self.queue_manager.record_tree_change(queue)

    def _stop_counting_holder(self, quota_holder: AdmittedWorkload | None) -> None:
        if quota_holder is not None:
            self.cluster_queue_counters.remove(quota_holder.queue.name, quota_holder)
            self.local_queue_counters.remove(quota_holder.local_queue, quota_holder)

    def _enqueue_workload(self, view: WorkloadView) -> None:
        local_queue = self.local_queues.get(view.queue)
        if local_queue is not None and local_queue.stop_policy == "None":
            self.queue_manager.put(local_queue.cluster_queue, view)

    def dequeue(self, key: str) -> None:
        """Remove a Workload from the pending Workloads of its ClusterQueue, if it is one of them."""
        local_queue = self.local_queues.get(self._queue_of.get(key, ""))
        pending_queue = self.queue_manager.pending.get(local_queue.cluster_queue) if local_queue is not None else None
        if pending_queue is not None and pending_queue.remove(key):
            self.queue_manager.record_new_workload(pending_queue.name)  # the head may have changed

    def _mark_tree_of_workload(self, key: str) -> None:
        """Have inadmissible Workloads tried again in the cohort tree in which this Workload releases quota.

        They are tried in the next cycle. If the LocalQueue is stopped or missing, but a later release by another
        Workload will reactivate them, they are tried after REACTIVATION_GRACE_PERIOD at the latest.
        """
        if self._is_local_queue_open(self._queue_of.get(key, "")):
            self.queue_manager.mark_queue_for_retry(self.local_queues[self._queue_of[key]].cluster_queue)
            return
        holder = self.snapshot.holder(key)
        if holder is None:
            return
        root = holder.queue.node.path[0]
        other_holders = (
            w for queue in self.snapshot.queues_below(root) for w in queue.workloads.values() if w is not holder
        )
        if any(self._is_local_queue_open(other.local_queue) for other in other_holders):
            self.queue_manager.reactivate_later(holder.queue, self.queue_manager.now + REACTIVATION_GRACE_PERIOD)
        else:
            self.queue_manager.mark_queue_for_retry(holder.queue.name)

    def _is_local_queue_open(self, local_queue: str) -> bool:
        view = self.local_queues.get(local_queue)
        return view is not None and view.stop_policy == "None"


WATCHED_KINDS: Final = (
    *(scheme.WORKLOAD, scheme.LOCAL_QUEUE, scheme.CLUSTER_QUEUE, scheme.COHORT, scheme.RESOURCE_FLAVOR),
    scheme.TOPOLOGY,
    scheme.NAMESPACE,
    scheme.ADMISSION_CHECK,
    scheme.LIMIT_RANGE,
    scheme.RUNTIME_CLASS,
)
#: The further kinds that topology-aware scheduling needs.
NODE_KINDS: Final = (scheme.NODE, scheme.POD)


class SchedulerCache:
    """The state that the scheduler reads: the snapshot, pending Workloads, Namespaces and AdmissionChecks."""

    def __init__(
        self,
        view_of: Callable[[Obj], WorkloadView] = workload_view,
        requeue_batch_period: Duration = 0,
        *,
        is_reactivated_externally: bool = False,
        rules: DecisionRules = DEFAULT_RULES,
        resource_rules: ResourceRules | None = None,
    ) -> None:
        """Create an empty cache; `view_of` parses a Workload, including the `queued` time for the queue order.

        With `is_reactivated_externally` and a batch period, another component must requeue inadmissible Workloads.
        `resource_rules` are the resources that quota is charged for; None charges the requests of the pods.
        """
        self.snapshot = Snapshot(ignores_undeclared=resource_rules is not None and resource_rules.ignores_undeclared)
        self.resource_rules = resource_rules
        #: Labels by namespace.
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.queue_manager = QueueManager(
            self.snapshot, self.namespaces, requeue_batch_period, is_reactivated_externally=is_reactivated_externally
        )
        self._rules = rules
        #: Whether the Active conditions of ClusterQueues depend on Cohorts.
        self.reports_cohort_cycles = rules.is_current
        self._views = AdjustedViews(view_of, rules, resource_rules)
        self.workload_cache = WorkloadCache(self.snapshot, self.queue_manager, self._views.view)
        self._checks: dict[str, AdmissionCheckInfo] = {}
        self._terminating_queues: dict[str, None] = {}
        self._rebuild_count = 0
        self._handlers: dict[str, Callable[[WatchEvent], None]] = {
            scheme.WORKLOAD: self.workload_cache.observe,
            scheme.LOCAL_QUEUE: self._on_local_queue,
            scheme.CLUSTER_QUEUE: self._on_cluster_queue,
            scheme.COHORT: self._on_cohort,
            scheme.RESOURCE_FLAVOR: self._on_flavor,
            scheme.TOPOLOGY: self._on_topology,
            scheme.NAMESPACE: self._on_namespace,
            scheme.ADMISSION_CHECK: self._on_check,
            scheme.LIMIT_RANGE: self._views.observe,
            scheme.RUNTIME_CLASS: self._views.observe_runtime_class,
            scheme.NODE: self._on_node_or_preemption_config,
            scheme.POD: self._on_node_or_preemption_config,
            scheme.PREEMPTION_CONFIG: self._on_node_or_preemption_config,
        }

    def no_fit_reason(self, view: WorkloadView) -> str:
        """Return why an equivalent Workload did not fit, if cycles skip this Workload for that reason; otherwise ''."""
        local_queue = self.workload_cache.local_queues.get(view.queue)
        pending_queue = None if local_queue is None else self.queue_manager.pending.get(local_queue.cluster_queue)
        return "" if pending_queue is None else pending_queue.no_fit_reason(view)

    def observe(self, event: WatchEvent, now: Instant) -> bool:
        """Update the cache from a watch event; return whether a scheduling cycle may have something to decide."""
        self.queue_manager.now = now
        self._handlers[event.key.kind](event)
        if self.workload_cache.usage_ledger is not None:
            self.workload_cache.usage_ledger.observe(event, self._views.view, now)
        return self.queue_manager.has_work() or self._views.has_changed

    def resync(self, reader: Reader, now: Instant) -> None:
        """Parse again the pending Workloads that a changed LimitRange or RuntimeClass may affect."""
        # The events of Nodes and Pods were ignored until the first flavor with a Topology.
        if self.snapshot.topology.needs_listing:
            self.snapshot.topology.list_nodes(reader)
        if not self._views.has_changed:
            return
        self.queue_manager.now = now
        for obj in self._views.outdated_workloads(scheme.WORKLOAD, reader):
            if workload_view(obj).admissible:
                revision = int(obj["metadata"].get("resourceVersion", 0))
                self.workload_cache.observe(WatchEvent(EventType.MODIFIED, key_of(obj), obj, obj, revision))

    def heads(self, now: Instant) -> list[Head]:
        """Return the head of each active ClusterQueue with a Workload to try, sorted by queue name.

        First, the inadmissible Workloads of changed cohort trees are requeued. Paused cohort trees have no heads.
        """
        self.queue_manager.now = self.snapshot.preemption.now = now
        self.snapshot.rebuild_if_changed()
        if self.snapshot.rebuild_count != self._rebuild_count:  # another caller may have rebuilt the trees
            self._rebuild_count = self.snapshot.rebuild_count
            self.queue_manager.activate_all()
        self.queue_manager.mark_due_queues_for_retry()
        return self.queue_manager.heads()

    def is_terminating(self, name: str) -> bool:
        """Return whether a ClusterQueue is being deleted."""
        return name in self._terminating_queues

    def active_status(self, name: str) -> QueueActiveStatus:
        """Return the Active condition that a ClusterQueue should have, given its spec and the objects it references."""
        return self.active_status_of_view(self.snapshot.queues[name].view)

    def active_status_of_view(
        self, view: ClusterQueueView, new_flavors: Iterable[FlavorView] = ()
    ) -> QueueActiveStatus:
        """Return the Active condition that a ClusterQueue would have with a hypothetical spec and new flavors."""
        return compute_active_status(
            view,
            terminating=view.name in self._terminating_queues,
            flavors={**self.snapshot.flavors, **{flavor.name: flavor for flavor in new_flavors}},
            topologies=self.snapshot.topology.topologies,
            checks=self._checks,
            is_cohort_cyclic=self.reports_cohort_cycles and self.snapshot.forest.has_cycle(view.cohort),
        )

    def has_admission_check(self, name: str) -> bool:
        """Return whether an AdmissionCheck exists."""
        return name in self._checks

    def charged_view(self, obj: Obj) -> WorkloadView:
        """Return the parsed Workload; its requests are the charged ones if the Configuration changes requests."""
        return self._views.view(obj) if self._views.is_charging else workload_view(obj)

    def hypothetical_view(self, obj: Obj, current_view: WorkloadView) -> WorkloadView:
        """Parse a hypothetically changed Workload (`obj`); `current_view` is the parsed existing Workload."""
        return self._views.hypothetical_view(obj, current_view)

    def pending_in(self, cluster_queue: str) -> list[WorkloadView] | None:
        """Return the pending Workloads of a ClusterQueue in queue order, a preemptor first; None without the queue."""
        pending_queue = self.queue_manager.pending.get(cluster_queue)
        return None if pending_queue is None else pending_queue.views()

    def first_pending(self, cluster_queue: str, count: int) -> list[WorkloadView]:
        """Return the first `count` pending Workloads of a ClusterQueue, a preemptor first; [] without the queue."""
        pending_queue = self.queue_manager.pending.get(cluster_queue)
        return [] if pending_queue is None else pending_queue.first_workloads(count)

    def count_pending(self, cluster_queue: str) -> int:
        """Return the number of pending Workloads of a ClusterQueue; 0 if it does not exist."""
        pending_queue = self.queue_manager.pending.get(cluster_queue)
        return 0 if pending_queue is None else len(pending_queue)

    def count_ahead_of(self, cluster_queue: str, workload: str) -> int | None:
        """Return how many Workloads precede a pending Workload in a ClusterQueue; None if it is not pending there."""
        queue = self.queue_manager.pending.get(cluster_queue)
        return None if queue is None or queue.get(workload) is None else queue.count_ahead_of(workload)

    def cluster_queue_of(self, namespace: str, local_queue: str) -> str | None:
        """Return the name of a LocalQueue's ClusterQueue; None if the LocalQueue does not exist."""
        local_queue_view = self.workload_cache.local_queues.get(f"{namespace}/{local_queue}")
        return None if local_queue_view is None else local_queue_view.cluster_queue

    def _on_local_queue(self, event: WatchEvent) -> None:
        view = local_queue_view(event.obj)
        previous_view = self.workload_cache.local_queues.get(view.key)
        if event.type is _DELETED:
            self.workload_cache.dequeue_local_queue(view.key)
            self.workload_cache.local_queues.pop(view.key, None)
            return
        if previous_view is not None and replace(previous_view, weight=view.weight) == view:
            self.workload_cache.local_queues[view.key] = view
            if view != previous_view:
                self.record_usage_change(view.cluster_queue)
            return
        if previous_view is not None:
            self.workload_cache.dequeue_local_queue(view.key)
        self.workload_cache.local_queues[view.key] = view
        self.workload_cache.enqueue_local_queue(view)

    def _on_cluster_queue(self, event: WatchEvent) -> None:
        name = event.key.name
        if self._rules.preempts_by_rules:
            self._on_node_or_preemption_config(event)
        if event.type is _DELETED:
            self.workload_cache.forget_queue(name)
            self.queue_manager.forget_queue(name)
            self.queue_manager.activate_all()
            self._terminating_queues.pop(name, None)
            return
        if event.obj["metadata"].get("deletionTimestamp"):
            self._terminating_queues[name] = None
        if event.old and has_equal_queue_settings(event.old, event.obj) and name in self.queue_manager.pending:
            self._set_active(name)
            return
        queue = self.snapshot.put_queue(cluster_queue_view(event.obj))
        is_new = name not in self.queue_manager.pending
        pending_queue = self.queue_manager.pending.setdefault(
            name, make_pending_queue(queue, self.snapshot, self._rules)
        )
        pending_queue.strict_fifo = queue.view.strict_fifo
        self._set_active(name)
        self.queue_manager.mark_queue_for_retry(name)
        if is_new:
            self.workload_cache.record_reservations_in(name)
            for local_queue in self.workload_cache.local_queues.values():
                if local_queue.cluster_queue == name:
                    self.workload_cache.enqueue_local_queue(local_queue)

    def record_usage_change(self, cluster_queue: str) -> None:
        """Let the next cycle consider a usage-based ClusterQueue, because its first Workload may have changed."""
        pending_queue = self.queue_manager.pending.get(cluster_queue)
        if isinstance(pending_queue, UsageOrderedQueue) and pending_queue.has_heads():
            self.queue_manager.record_new_workload(cluster_queue)

    def _set_active(self, name: str) -> None:
        queue = self.snapshot.queues[name]
        was_active = queue.active
        queue.active = self.active_status(name).active
        queue.provisioned_flavors = topology_nomination.provisioned_flavors(queue.view, self._checks)
        if queue.active and not was_active:
            self.queue_manager.mark_queue_for_retry(name)
            self.queue_manager.record_new_workload(name)

    def _on_cohort(self, event: WatchEvent) -> None:
        view = cohort_view(event.obj)
        if event.type is _DELETED:
            self.snapshot.remove_cohort(view.name)
        elif event.old is not None and has_equal_queue_settings(event.old, event.obj):
            return
        else:
            self.snapshot.put_cohort(view)
        self.snapshot.rebuild_if_changed()
        self.queue_manager.activate_all()
        if self._rules.is_current:  # a cycle of Cohorts makes ClusterQueues inactive
            for name in self.snapshot.queues:
                self._set_active(name)
        if event.type is _DELETED:
            return
        node = self.snapshot.cohorts[view.name]
        for queue in self.snapshot.queues_below(node.path[0])[:1]:
            self.queue_manager.mark_queue_for_retry(queue.name)

    def _on_flavor(self, event: WatchEvent) -> None:
        flavor = flavor_view(event.obj)
        if event.type is _DELETED:
            self.snapshot.remove_flavor(flavor.name)
        else:
            self.snapshot.put_flavor(flavor)
        for name, queue in self.snapshot.queues.items():
            if any(flavor.name in group.flavors for group in queue.view.groups):
                self._set_active(name)
                self.queue_manager.mark_queue_for_retry(name)
            elif flavor.topology and queue.active:
                self.queue_manager.mark_queue_for_retry(name)

    def _on_topology(self, event: WatchEvent) -> None:
        for name in topology_nomination.queues_after_topology_event(event, self.snapshot):
            self._set_active(name)
            if self.snapshot.topology.is_enabled:
                self.queue_manager.mark_queue_for_retry(name)

    def _on_node_or_preemption_config(self, event: WatchEvent) -> None:
        find_queues = queues_after_node_event if event.key.kind in NODE_KINDS else queues_after_config_event
        for name in find_queues(event, self.snapshot):
            self.queue_manager.mark_queue_for_retry(name)

    def _on_namespace(self, event: WatchEvent) -> None:
        name, labels = event.obj["metadata"]["name"], namespace_labels(event.obj)
        old_labels = self.namespaces.get(name)
        if event.type is _DELETED:
            self.namespaces.pop(name, None)
            return
        self.namespaces[name] = labels
        if labels == old_labels:
            return
        for queue in self.snapshot.queues.values():
            selector = queue.view.namespaces
            if selector is not None and selector.matches(labels):
                self.queue_manager.mark_queue_for_retry(queue.name)

    def _on_check(self, event: WatchEvent) -> None:
        name = event.obj["metadata"]["name"]
        self._checks.pop(name, None)
        if event.type is not _DELETED:
            is_active = is_true(event.obj.get("status") or {}, "Active")
            self._checks[name] = AdmissionCheckInfo(is_active, event.obj["spec"].get("controllerName", ""))
        for queue in self.snapshot.queues.values():
            if name in queue.view.admission_checks:
                self._set_active(queue.name)
