"""Invariants of quota, reservations, the scheduler's cache, Job status, and pods that run only with quota."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from batchyard.admission_plugins.built_in import is_managed_namespace
from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, controller_of, is_true, key_of
from batchyard.api.views.pods import FAILED, RUNNING, SUCCEEDED, is_terminal, phase, pod_view
from batchyard.api.views.workload import (
    AdmittedPodSet,
    ClusterQueueView,
    PodSet,
    ResourceGroup,
    WorkloadView,
    workload_view,
)
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.jobframework.slices import has_gate
from batchyard.scheduling.cluster_queue import AdmittedWorkload, flavor_mismatch
from batchyard.scheduling.quota import QuotaNode
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.snapshot import QueueCounter, Snapshot
from batchyard.sim.invariants import object_states
from batchyard.sim.invariants.invariant import Invariant, WorldView
from batchyard.sim.world import World

# No reservation exceeds the free quota of the cohort tree, and no tree holds more than its quota.
#
# If quota is reduced below the usage, the excess may remain but must not grow. A scheduling cycle may already use the
# quota of the Workloads that it preempts.


class QuotaNeverOversubscribed(Invariant):
    """Invariant: new reservations fit the free quota, and usage exceeds quota only if the quota was reduced."""

    name = "quota_never_oversubscribed"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        self._preempted_workloads: list[WorkloadView] = []
        self._known_deficits: dict[tuple[str, object_states.QuotaKey], int] = {}
        self._has_quota_changed = False

    def before_batch(self, batch: Sequence[WatchEvent]) -> None:
        """Collect the Workloads that the batch of watch events preempts."""
        preemptions = [event for event in batch if object_states.is_new_preemption(event)]
        self._preempted_workloads = [workload_view(event.obj) for event in preemptions]

    def check_event(self, event: WatchEvent) -> None:
        """Check that a new reservation fits the free quota; record whether a quota changed."""
        if object_states.changes_quota(event):
            self._has_quota_changed = True
        if event.key.kind != scheme.WORKLOAD or not object_states.is_new_reservation(event):
            return
        view = workload_view(event.obj)
        node = f"queue/{view.cluster_queue}"
        replaced_slice = self.states.workloads.get(view.replaced_slice)  # it finishes at the same instant
        released_workloads = [*self._preempted_workloads, *([] if replaced_slice is None else [replaced_slice])]
        for quota_key, amount in object_states.held_amounts_of(view).items():
            available = self._available_without(released_workloads, node, quota_key)
            if amount > max(0, available):
                available = self._available_without([*released_workloads, *self._replaced_slices()], node, quota_key)
            if amount > max(0, available):
                name = "/".join(quota_key)
                description = f"{view.key} reserved {amount} of {name} in {node}, but only {available} was free"
                self.violate(description, event.key, Key(scheme.CLUSTER_QUEUE, "", view.cluster_queue))

    def end_instant(self) -> None:
        """Check that no ClusterQueue or Cohort exceeds its quota more than before, unless a quota changed.

        After a crash, a slice and its replacement may both hold quota for some seconds.
        """
        if any(self._is_being_replaced(view) for view in self.states.workloads.values() if view.replaced_slice):
            return
        deficits = dict(self._deficits())
        for (node, quota_key), amount in deficits.items():
            known_deficit = self._known_deficits.get((node, quota_key), 0)
            if amount > known_deficit and not self._has_quota_changed:
                holders = [Key(scheme.WORKLOAD, *key.split("/")) for key in self._holder_keys(node, quota_key)]
                description = (
                    f"{node} exceeds its quota of {'/'.join(quota_key)} by {amount}, by {known_deficit} before"
                )
                self.violate(description, *holders)
        self._known_deficits, self._has_quota_changed = deficits, False

    def _replaced_slices(self) -> list[WorkloadView]:
        """Return the slices with quota whose replacement has quota too: they finish at the same instant."""
        replacements = [view for view in self.states.workloads.values() if view.replaced_slice and _holds_quota(view)]
        return [self.states.workloads[view.replaced_slice] for view in replacements if self._is_being_replaced(view)]

    def _is_being_replaced(self, view: WorkloadView) -> bool:
        replaced_slice = self.states.workloads.get(view.replaced_slice)
        return replaced_slice is not None and _holds_quota(view) and _holds_quota(replaced_slice)

    def _available_without(self, victims: Iterable[WorkloadView], node: str, quota_key: object_states.QuotaKey) -> int:
        quota = self.states.quota
        removed_amounts = {}
        for view in victims:
            holders_of_queue = quota.holders.get(f"queue/{view.cluster_queue}", {})
            if view.key in holders_of_queue:
                removed_amounts[view.key] = holders_of_queue, holders_of_queue.pop(view.key)
        available = quota.available(node, quota_key)
        for key, (holders_of_queue, amounts) in removed_amounts.items():
            holders_of_queue[key] = amounts
        return available

    def _deficits(self) -> Iterator[tuple[tuple[str, object_states.QuotaKey], int]]:
        quota = self.states.quota
        for root in [node for node in quota.nodes.values() if not node.parent]:
            for quota_key in quota.quota_keys(root.name):
                for node in quota.with_descendants(root.name):
                    available = quota.available(node, quota_key)
                    if available < 0:
                        yield (node, quota_key), -available

    def _holder_keys(self, node: str, quota_key: object_states.QuotaKey) -> list[str]:
        holders = (self.states.quota.holders.get(name, {}) for name in self.states.quota.with_descendants(node))
        return [key for amounts_by_key in holders for key, amounts in amounts_by_key.items() if amounts.get(quota_key)]


# The usage of every ClusterQueue in the scheduler is the sum of its Workloads' admission status.
#
# The usage of a Cohort is its children's usage above their guaranteed quota. Cohort trees may be outdated between
# cycles, so they are checked only after a cycle that admitted a Workload. They are not checked while a rejected
# admission has to be reverted, or while the platform is down.


class UsageIsSumOfAdmitted(Invariant):
    """Invariant: the scheduler's usage of each ClusterQueue and Cohort equals the sum over its Workloads."""

    name = "usage_is_sum_of_admitted"

    def after_batch(self, batch: Sequence[WatchEvent]) -> None:
        """Check the usage of all ClusterQueues and Cohorts after a scheduling cycle that admitted a Workload."""
        platform = self.world_view.world.platform
        if platform.runner.is_stopped or platform.index.workload_cache.has_assumed_workloads:
            return
        if any(event.key.kind == scheme.WORKLOAD and object_states.is_new_reservation(event) for event in batch):
            self._compare_trees()

    def end_instant(self) -> None:
        """Check the usage of all ClusterQueues (that of Cohorts may be outdated between scheduling cycles)."""
        for name, queue in self.world_view.world.platform.index.snapshot.queues.items():
            self._compare_usage(f"queue/{name}", queue.node)

    def _compare_trees(self) -> None:
        snapshot = self.world_view.world.platform.index.snapshot
        for name, queue in snapshot.queues.items():
            quota = self.states.quota
            path = ["/".join(("queue" if n is queue.node else "cohort", n.name)) for n in queue.node.path]
            if path != quota.path(f"queue/{name}"):
                self.violate(f"{name} is at {path} in the scheduler, but at {quota.path(f'queue/{name}')} by its spec")
            for node_name, node in zip(path, queue.node.path, strict=True):
                self._compare_usage(node_name, node)

    def _compare_usage(self, node_name: str, node: QuotaNode) -> None:
        quota, names = self.states.quota, self.world_view.world.platform.index.snapshot.flavor_resource_names
        for quota_key, used in zip(names, node.usage, strict=False):
            expected_usage = quota.usage(node_name, quota_key)
            if used != expected_usage:
                holders = [Key(scheme.WORKLOAD, *key.split("/")) for key in quota.holders.get(node_name, {})]
                name = "/".join(quota_key)
                description = f"the usage of {node_name} is {used} of {name}, but its Workloads hold {expected_usage}"
                self.violate(description, *holders)


class AdmittedHasAssignment(Invariant):
    """Invariant: every quota reservation gives each pod set a valid count, the right usage and suitable flavors."""

    name = "admitted_has_assignment"

    def check_event(self, event: WatchEvent) -> None:
        """Check each new quota reservation."""
        if event.key.kind == scheme.WORKLOAD and object_states.is_new_reservation(event):
            view = self.world_view.world.platform.index.charged_view(event.obj)
            for fault in self._find_faults(view, _admitted_pod_sets(event.obj)):
                self.violate(f"{view.key}: {fault}", event.key)

    def _find_faults(self, view: WorkloadView, assignments: Sequence[AdmittedPodSet]) -> Iterator[str]:
        queue = self.states.queue_of(view)
        if queue is None or queue.name != view.cluster_queue:
            yield f"it has quota in {view.cluster_queue}, but its LocalQueue {view.queue} has another ClusterQueue"
            return
        if queue.stop_policy != "None" or queue.name in self.states.terminating_queues:
            yield f"its ClusterQueue {queue.name} is stopped"
        if [h.name for h in assignments] != [p.name for p in view.pod_sets]:
            yield f"the assigned pod sets are {[h.name for h in assignments]}, not {[p.name for p in view.pod_sets]}"
            return
        for pod_set, pod_count, holding in zip(view.pod_sets, view.counts, assignments, strict=True):
            yield from self._pod_set_errors(queue, pod_set, pod_count, holding)

    def _pod_set_errors(
        self, queue: ClusterQueueView, pod_set: PodSet, count: int, holding: AdmittedPodSet
    ) -> Iterator[str]:
        count_min = count if pod_set.min_count is None else min(count, pod_set.min_count)
        if not count_min <= holding.pods <= count:
            yield f"{holding.pods} pods of pod set {pod_set.name} are assigned; {count_min} to {count} are allowed"
        requests = {resource: amount * holding.pods for resource, amount in pod_set.template.requests}
        usage = dict(holding.usage)
        if any("pods" in group.resources for group in queue.groups):
            requests["pods"] = holding.pods
        covered = [resource for group in queue.groups for resource in group.resources]
        ignores_undeclared = self.world_view.world.platform.index.snapshot.ignores_undeclared
        for resource, amount in requests.items():
            is_ignored = ignores_undeclared and resource not in covered
            if amount and not is_ignored and usage.get(resource) != amount:
                yield f"pod set {pod_set.name} uses {usage.get(resource)} of {resource}, but requests {amount}"
        for group in queue.groups:
            yield from self._group_errors(group, pod_set, holding)
        if any(resource not in covered for resource in holding.flavors):
            yield f"pod set {pod_set.name} has flavors for {sorted(holding.flavors)}; covered: {sorted(covered)}"

    def _group_errors(self, group: ResourceGroup, pod_set: PodSet, holding: AdmittedPodSet) -> Iterator[str]:
        flavors = sorted({holding.flavors[resource] for resource in group.resources if resource in holding.flavors})
        if len(flavors) > 1:
            yield f"pod set {pod_set.name} has several flavors of one resource group: {flavors}"
        for flavor in flavors:
            if flavor not in group.flavors:
                yield f"pod set {pod_set.name} has flavor {flavor}, but its resource group has {group.flavors}"
            obstacle = flavor_mismatch(pod_set.template, flavor, self.states.flavors.get(flavor))
            if obstacle:
                yield f"pod set {pod_set.name} may not use flavor {flavor}: {obstacle}"


def _admitted_pod_sets(obj: Obj) -> list[AdmittedPodSet]:
    return [
        AdmittedPodSet(
            assignment["name"],
            assignment.get("count", 0),
            assignment.get("flavors") or {},
            tuple((r, meta.amount(r, amount)) for r, amount in (assignment.get("resourceUsage") or {}).items()),
        )
        for assignment in obj["status"]["admission"].get("podSetAssignments") or ()
    ]


# The scheduler's state at the end of an instant equals the state rebuilt from the objects, so a restart loses nothing.


#: The kinds that the scheduler reads, in the order in which a restart processes them.
KINDS: Final = (
    scheme.NAMESPACE,
    scheme.RESOURCE_FLAVOR,
    scheme.TOPOLOGY,
    scheme.ADMISSION_CHECK,
    scheme.COHORT,
    scheme.CLUSTER_QUEUE,
    scheme.LOCAL_QUEUE,
    scheme.WORKLOAD,
)


class AssumedEqualsConfirmed(Invariant):
    """Invariant: the scheduler cache equals a cache that is built anew from the stored objects."""

    name = "assumed_equals_confirmed"

    def end_instant(self) -> None:
        """Compare the scheduler cache with one that is built from the stored objects."""
        world = self.world_view.world
        actual_inputs = _decision_inputs(world.platform.index)
        expected_inputs = _decision_inputs(rebuild_cache(world, world.kernel.now()))
        for name in sorted({**actual_inputs, **expected_inputs}):
            if actual_inputs.get(name) != expected_inputs.get(name):
                self.violate(f"{name} is {actual_inputs.get(name)} in the cache, not {expected_inputs.get(name)}")


def rebuild_cache(world: World, now: Instant) -> SchedulerCache:
    """Return a scheduler cache that is built anew from the stored objects of a simulated world."""
    index = world.platform.index
    scheduler_cache = SchedulerCache(rules=world.scenario.kueue.policy.rules, resource_rules=index.resource_rules)
    for kind in KINDS:
        for obj in world.objects(kind):
            scheduler_cache.observe(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 0), now)
    scheduler_cache.snapshot.rebuild_if_changed()
    return scheduler_cache


def _decision_inputs(index: SchedulerCache) -> dict[str, Any]:
    snapshot = index.snapshot
    queues = index.workload_cache.local_queues.items()
    values: dict[str, Any] = {f"local queue {key}": (view.cluster_queue, view.stop_policy) for key, view in queues}
    for name, queue in snapshot.queues.items():
        values[f"queue {name}"] = queue.active
        values[f"counts of {name}"] = _counter_values(index.workload_cache.cluster_queue_counters.get(name), snapshot)
        values[f"waiting in {name}"] = sorted(view.key for view in index.queue_manager.pending[name].views())
        for admitted_workload in queue.workloads.values():
            values[f"quota of {admitted_workload.key}"] = _holding_values(admitted_workload, snapshot)
    for key in index.workload_cache.local_queues:
        values[f"counts of {key}"] = _counter_values(index.workload_cache.local_queue_counters.get(key), snapshot)
    return values


def _holding_values(admitted_workload: AdmittedWorkload, snapshot: Snapshot) -> tuple[Any, ...]:
    usage = sorted((snapshot.flavor_resource_names[fr], amount) for fr, amount in admitted_workload.usage if amount)
    flavors = sorted(snapshot.flavor_resource_names[fr] for fr in admitted_workload.flavor_resources)
    order_values = admitted_workload.priority, admitted_workload.queued, admitted_workload.reserved_at
    return (
        admitted_workload.uid,
        admitted_workload.queue.name,
        admitted_workload.local_queue,
        usage,
        flavors,
        order_values,
        admitted_workload.evicted,
        admitted_workload.is_admitted,
    )


def _counter_values(queue_counter: QueueCounter, snapshot: Snapshot) -> tuple[Any, ...]:
    usages = queue_counter.reserved_usage, queue_counter.admitted_usage
    named_usages = [
        sorted((snapshot.flavor_resource_names[fr], amount) for fr, amount in usage.items() if amount)
        for usage in usages
    ]
    return queue_counter.reserving, queue_counter.admitted, named_usages


# The counts in the status of a Job match its pods.


class JobsCountRight(Invariant):
    """Invariant: a Job counts no more ended pods than have ended, nor more pods than its spec allows."""

    name = "jobs_count_right"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        #: By the uid of a Job, the uids of its succeeded pods, and of its failed or deleted pods.
        self._succeeded_pods: dict[str, dict[str, None]] = {}
        self._failed_pods: dict[str, dict[str, None]] = {}
        self._changed_jobs: dict[Key, None] = {}

    def check_event(self, event: WatchEvent) -> None:
        """Record which pods ended and which Jobs changed; check that the counts of a Job do not decrease."""
        if event.key.kind == scheme.JOB:
            self._changed_jobs[event.key] = None
            self._check_counts_grow(event)
        owner = controller_of(event.obj) if event.key.kind == scheme.POD else None
        if owner is None:
            return
        uid = event.obj["metadata"]["uid"]
        if phase(event.obj) == SUCCEEDED:
            self._succeeded_pods.setdefault(owner["uid"], {})[uid] = None
        elif phase(event.obj) == FAILED or "deletionTimestamp" in event.obj["metadata"] or _is_deletion(event):
            self._failed_pods.setdefault(owner["uid"], {})[uid] = None

    def end_instant(self) -> None:
        """Check the pod counts in the status of the Jobs that changed."""
        for key in self._changed_jobs:
            job = self.world_view.world.client.get(key)
            for description in () if job is None else self._find_faults(job):
                self.violate(f"{key}: {description}", key)
        self._changed_jobs.clear()

    def finish(self) -> None:
        """Check, if no more events are scheduled, that no ended Job still counts active or terminating pods."""
        for job in self.world_view.world.objects(scheme.JOB) if self.is_at_rest else ():
            status, name = job.get("status") or {}, job["metadata"]["name"]
            has_ended = is_true(status, "Complete") or is_true(status, "Failed")
            if has_ended and (status.get("active") or status.get("terminating")):
                description = f"Job {name} has ended, but counts {status.get('active')} active pods"
                self.violate(description, Key(scheme.JOB, job["metadata"]["namespace"], name))

    def _find_faults(self, job: Obj) -> Iterator[str]:
        spec, status, uid = job["spec"], job.get("status") or {}, job["metadata"]["uid"]
        successes, failures, active_count = (status.get(field) or 0 for field in ("succeeded", "failed", "active"))
        succeeded_pods, failed_pods = len(self._succeeded_pods.get(uid, ())), len(self._failed_pods.get(uid, ()))
        if successes > succeeded_pods:
            yield f"status.succeeded is {successes}, but {succeeded_pods} pods succeeded"
        if failures > failed_pods:
            yield f"status.failed is {failures}, but {failed_pods} pods failed or were deleted"
        if successes > spec.get("completions", successes):
            yield f"status.succeeded is {successes}, above spec.completions {spec['completions']}"
        # A Job without completions keeps its pods once one has succeeded, even if its parallelism is reduced.
        if active_count > spec.get("parallelism", 1) and (successes == 0 or "completions" in spec):
            yield f"status.active is {active_count}, above spec.parallelism {spec.get('parallelism', 1)}"
        completed_count = _count_indexes(status.get("completedIndexes") or "")
        if spec.get("completionMode") == "Indexed" and successes != completed_count:
            yield f"status.succeeded is {successes}, but completedIndexes is {status.get('completedIndexes')}"
        if is_true(status, "Complete") and "successPolicy" not in spec and successes < spec.get("completions", 0):
            yield f"it is complete after {successes} of {spec['completions']} completions"

    def _check_counts_grow(self, event: WatchEvent) -> None:
        if event.old is None:
            return
        for field in ("succeeded", "failed"):
            old_count, new_count = ((obj.get("status") or {}).get(field) or 0 for obj in (event.old, event.obj))
            if new_count < old_count:
                self.violate(f"{event.key}: status.{field} decreased from {old_count} to {new_count}", event.key)


def _is_deletion(event: WatchEvent) -> bool:
    return event.type is EventType.DELETED


def _count_indexes(indexes: str) -> int:
    """Return how many completion indexes of a Job a text such as `0,2-4` lists."""
    index_ranges = [part.split("-") for part in indexes.split(",") if part]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in index_ranges)


# A managed Job or JobSet runs only while its Workload is admitted.


_JOB_KINDS = (scheme.JOB, scheme.JOB_SET)
_END_CONDITIONS = ("Complete", "Completed", "Failed")


class NoJobRunsWithoutAdmission(Invariant):
    """Invariant: a managed Job or JobSet is unsuspended only while its Workload is admitted."""

    name = "no_job_runs_without_admission"

    def check_event(self, event: WatchEvent) -> None:
        """Check that the Workload of a starting job is admitted."""
        if event.key.kind in _JOB_KINDS and event.type is not EventType.DELETED and self._is_running(event.obj):
            was_running = event.old is not None and self._is_running(event.old)
            if not was_running and not self._is_admitted(event.obj):
                self.violate(f"job {event.key} starts, but its Workload is not admitted", event.key)

    def end_instant(self) -> None:
        """Check that the Workloads of all running jobs are admitted."""
        for kind in _JOB_KINDS:
            for job in self.world_view.world.objects(kind):
                if self._is_running(job) and not self._is_admitted(job):
                    self.violate(f"job {key_of(job)} runs, but its Workload is not admitted", key_of(job))

    def _is_running(self, job: Obj) -> bool:
        return _is_unfinished_root(job) and _is_managed(job, self.world_view.world)

    def _is_admitted(self, job: Obj) -> bool:
        return any(view.admitted and not view.finished for view in self._workloads(job["metadata"]))

    def _workloads(self, job_metadata: Obj) -> list[WorkloadView]:
        owned_objects = self.world_view.world.client.owned_by(job_metadata["uid"], job_metadata["namespace"])
        return [workload_view(obj) for obj in owned_objects if key_of(obj).kind == scheme.WORKLOAD]


def _is_managed(job: Obj, world: World) -> bool:
    managed_jobs, namespace = world.scenario.kueue.managed_jobs, job["metadata"]["namespace"]
    if not managed_jobs.has_kind_of(job) or not managed_jobs.names(job):
        return False
    return is_managed_namespace(namespace, managed_jobs.namespaces, world.client.get)


def _is_unfinished_root(job: Obj) -> bool:
    if controller_of(job) is not None or job["spec"].get("suspend"):
        return False
    conditions = (job.get("status") or {}).get("conditions") or ()
    return not any(c["type"] in _END_CONDITIONS and c["status"] == "True" for c in conditions)


# No pod of a managed job is bound, or starts to run, while the job's Workload has no quota.


class NoPodWithoutAdmission(Invariant):
    """Invariant: no pod of a managed job is bound to a node, or starts to run, without quota."""

    name = "no_pod_without_admission"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        self._started_pods: dict[Key, str] = {}  # by key, their uids

    def check_event(self, event: WatchEvent) -> None:
        """Record each pod that was bound to a node or started to run."""
        if event.key.kind != scheme.POD or event.type is EventType.DELETED:
            return
        new, old = pod_view(event.obj), None if event.old is None else pod_view(event.old)
        is_newly_bound = new.node_name and not (old and old.node_name)
        has_started = new.phase == RUNNING and not (old and old.phase == RUNNING)
        if is_newly_bound or has_started:
            self._started_pods[event.key] = event.obj["metadata"]["uid"]

    def end_instant(self) -> None:
        """Check that the jobs of started pods have quota, unless the pods are being deleted."""
        for key, uid in self._started_pods.items():
            pod = self.world_view.world.client.get(key)
            is_gone = pod is None or "deletionTimestamp" in pod["metadata"] or pod["metadata"]["uid"] != uid
            root = None if pod is None or is_gone else self._root_owner(pod)
            if root is not None and _is_managed(root, self.world_view.world) and not self._has_quota(root):
                self.violate(f"pod {key} was bound or started, but its job has no quota", key)
        self._started_pods.clear()

    def _root_owner(self, obj: Obj) -> Obj | None:
        """Return the outermost Job or JobSet that owns a pod, else the pod; None if an owner is gone or terminating."""
        client = self.world_view.world.client
        owner = controller_of(obj)
        kind = None if owner is None else {"Job": scheme.JOB, "JobSet": scheme.JOB_SET}.get(owner["kind"])
        if owner is None or kind is None:
            return obj
        job = client.get(Key(kind, obj["metadata"]["namespace"], owner["name"]))
        return None if job is None or "deletionTimestamp" in job["metadata"] else self._root_owner(job)

    def _has_quota(self, root: Obj) -> bool:
        metadata = root["metadata"]
        owned_objects = self.world_view.world.client.owned_by(metadata["uid"], metadata["namespace"])
        return any(workload_view(obj).quota_reserved for obj in owned_objects if obj["kind"] == "Workload")


# No more pods of an elastic Job may be scheduled than its Workload has.


class ElasticPodsAreGranted(Invariant):
    """Invariant: at most as many pods of an elastic Job are without the scheduling gate as its slice with quota has.

    Terminating pods do not count: a Job that shrinks releases quota before its pods have stopped, as in Kueue.
    """

    name = "elastic_pods_are_granted"

    def __init__(self, world_view: WorldView) -> None:
        super().__init__(world_view)
        #: The keys of the elastic Jobs that changed at this instant, by whether a pod lost its gate in this batch.
        self._changed_jobs: dict[Key, None] = {}
        self._ungated_jobs: dict[Key, None] = {}

    def check_event(self, event: WatchEvent) -> None:
        """Record the elastic Jobs of changed pods and Workloads."""
        owner = controller_of(event.obj) if event.key.kind in {scheme.POD, scheme.WORKLOAD} else None
        if owner is None or owner["kind"] != "Job" or not _is_elastic_dependent(event.obj):
            return
        job = Key(scheme.JOB, event.key.namespace, owner["name"])
        self._changed_jobs[job] = None
        if event.key.kind == scheme.POD and event.old is not None and has_gate(event.old) and not has_gate(event.obj):
            self._ungated_jobs[job] = None

    def after_batch(self, batch: Sequence[WatchEvent]) -> None:
        """Check the Jobs of which pods lost their gate."""
        self._check_jobs(self._ungated_jobs)

    def end_instant(self) -> None:
        """Check the elastic Jobs that changed."""
        self._check_jobs(self._changed_jobs)

    def _check_jobs(self, jobs: dict[Key, None]) -> None:
        for key in jobs:
            job = self.world_view.world.client.get(key)
            if job is None:
                continue
            dependents = self.world_view.world.client.owned_by(job["metadata"]["uid"], key.namespace)
            slices = [workload_view(obj) for obj in dependents if obj["kind"] == "Workload"]
            granted = max([_granted_count(each) for each in slices if _holds_quota(each)], default=0)
            ungated_count = sum(obj["kind"] == "Pod" and _may_be_scheduled(obj) for obj in dependents)
            if ungated_count > granted:
                self.violate(f"{ungated_count} pods of {key} may be scheduled, but {granted} have quota", key)
        jobs.clear()


def _is_elastic_dependent(obj: Obj) -> bool:
    annotations = obj["metadata"].get("annotations") or {}
    return well_known.SLICE_NAME in annotations or well_known.ELASTIC_JOB in annotations


def _holds_quota(view: WorkloadView) -> bool:
    return view.quota_reserved and not view.finished


def _granted_count(view: WorkloadView) -> int:
    """Return the number of pods that a slice with quota was admitted with, or has shrunk to since."""
    counts = {pod_set.name: pod_set.count for pod_set in view.pod_sets}
    assignments = ((view.obj.get("status") or {}).get("admission") or {}).get("podSetAssignments") or ()
    return sum([min(counts[each["name"]], each.get("count", counts[each["name"]])) for each in assignments])


def _may_be_scheduled(pod: Obj) -> bool:
    return not has_gate(pod) and not is_terminal(pod) and "deletionTimestamp" not in pod["metadata"]


# The scheduler removes finished Workloads from its quota and its queues.


class FinishedHoldsNothing(Invariant):
    """Invariant: a finished Workload holds no quota, waits in no queue, and stays finished."""

    name = "finished_holds_nothing"

    def check_event(self, event: WatchEvent) -> None:
        """Check that a finished Workload stays finished."""
        if event.key.kind != scheme.WORKLOAD or event.old is None or event.type is EventType.DELETED:
            return
        old_view, new_view = workload_view(event.old), workload_view(event.obj)
        if old_view.finished and not new_view.finished:
            self.violate(f"Workload {event.key} was finished and is unfinished again", event.key)

    def end_instant(self) -> None:
        """Check that the scheduler's quota and queues contain no finished Workload."""
        scheduler_cache = self.world_view.world.platform.index
        for view in self.states.workloads.values():
            if not view.finished:
                continue
            key = Key(scheme.WORKLOAD, view.namespace, view.name)
            if scheduler_cache.snapshot.holder(view.key) is not None:
                self.violate(f"Workload {view.key} has finished, but still holds quota", key)
            if any(queue.get(view.key) is not None for queue in scheduler_cache.queue_manager.pending.values()):
                self.violate(f"Workload {view.key} has finished, but is still in a queue", key)
