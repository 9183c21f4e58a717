"""Quota: reservations cover every pod set, flavors suit them, and usage never exceeds the quota."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from batchyard.api import meta, scheme, well_known
from batchyard.api.meta import Key, Obj, controller_of, is_true, key_of, label
from batchyard.api.views.pods import FAILED, RUNNING, SUCCEEDED, phase, pod_view
from batchyard.api.views.workload import ClusterQueueView, Holding, PodSet, ResourceGroup, WorkloadView, workload_view
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cluster_queue import AdmittedWorkload, flavor_mismatch
from batchyard.scheduling.quota import QuotaNode
from batchyard.scheduling.scheduler_cache import QueueCounter, SchedulerCache
from batchyard.scheduling.snapshot import Snapshot
from batchyard.sim.invariants.invariant import Invariant, WorldView
from batchyard.sim.invariants.ledger import Pair, amounts_of, changes_quota, is_preempted_by, is_reserved_by
from batchyard.sim.world import World

# --- quota never oversubscribed ---
#
# No Workload is admitted beyond the quota of the tree, and no tree holds more than its quota.
#
# If quota is reduced below the usage, the excess may remain but must not grow. A cycle may count the Workloads that it
# preempts as gone in its own admissions.


class QuotaNeverOversubscribed(Invariant):
    """New reservations fit the free quota, and no node's deficit grows unless the quota changes."""

    name = "quota_never_oversubscribed"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        self._going: list[WorkloadView] = []
        self._excused: dict[tuple[str, Pair], int] = {}
        self._changed = False

    def begin(self, batch: Sequence[WatchEvent]) -> None:
        """Collect the Workloads that are preempted with these changes."""
        self._going = [workload_view(event.obj) for event in batch if is_preempted_by(event)]

    def look(self, event: WatchEvent) -> None:
        """Check that a new reservation fits the free quota; note changes of quota, which excuse a deficit."""
        if changes_quota(event):
            self._changed = True
        if event.key.kind != scheme.WORKLOAD or not is_reserved_by(event):
            return
        view = workload_view(event.obj)
        node = f"queue/{view.cluster_queue}"
        for pair, amount in amounts_of(view).items():
            free = self._free_without(self._going, node, pair)
            if amount > max(0, free):
                what = f"{view.key} was given {amount} of {'/'.join(pair)} in {node} where {free} was free"
                self.violate(what, event.key, Key(scheme.CLUSTER_QUEUE, "", view.cluster_queue))

    def settle(self) -> None:
        """Check that every deficit existed before, or that the quota changed."""
        short = dict(self._short())
        for (node, pair), amount in short.items():
            allowed = self._excused.get((node, pair), 0)
            if amount > allowed and not self._changed:
                holders = [Key(scheme.WORKLOAD, *key.split("/")) for key in self._held_in(node, pair)]
                what = f"{node} has {amount} of {'/'.join(pair)} too little, {allowed} before"
                self.violate(what, *holders)
        self._excused, self._changed = short, False

    def _free_without(self, going: Iterable[WorkloadView], node: str, pair: Pair) -> int:
        """Return the free quota of a node without some Workloads."""
        quota = self.ledger.quota
        taken = {}
        for view in going:
            held = quota.holders.get(f"queue/{view.cluster_queue}", {})
            if view.key in held:
                taken[view.key] = held, held.pop(view.key)
        free = quota.available(node, pair)
        for key, (held, amounts) in taken.items():
            held[key] = amounts
        return free

    def _short(self) -> Iterator[tuple[tuple[str, Pair], int]]:
        quota = self.ledger.quota
        for root in [node for node in quota.nodes.values() if not node.parent]:
            for pair in quota.pairs(root.name):
                for node in quota.below(root.name):
                    free = quota.available(node, pair)
                    if free < 0:
                        yield (node, pair), -free

    def _held_in(self, node: str, pair: Pair) -> list[str]:
        holders = (self.ledger.quota.holders.get(name, {}) for name in self.ledger.quota.below(node))
        return [key for held in holders for key, amounts in held.items() if amounts.get(pair)]


# --- usage is sum of admitted ---
#
# The usage of every node of the scheduler's quota trees is the sum of its Workloads' status.
#
# For a Cohort, it is what its children use beyond their guaranteed quota. Trees are checked only after a cycle that
# admitted a Workload, because between cycles a tree may be outdated by design. They are not checked while a rejected
# admission is still to be reverted, or while the platform is down.


class UsageIsSumOfAdmitted(Invariant):
    """The usage of every quota node equals the sum over its Workloads."""

    name = "usage_is_sum_of_admitted"

    def end(self, batch: Sequence[WatchEvent]) -> None:
        """Compare all nodes after a cycle that admitted a Workload."""
        platform = self.scene.world.platform
        if platform.runner.is_stopped or platform.index.book.assumes:
            return
        if any(event.key.kind == scheme.WORKLOAD and is_reserved_by(event) for event in batch):
            self._compare_trees()

    def settle(self) -> None:
        """Compare the usage of ClusterQueues, which is always up to date."""
        for name, queue in self.scene.world.platform.index.snapshot.queues.items():
            self._compare(f"queue/{name}", queue.node)

    def _compare_trees(self) -> None:
        snapshot = self.scene.world.platform.index.snapshot
        for name, queue in snapshot.queues.items():
            quota = self.ledger.quota
            path = ["/".join(("queue" if n is queue.node else "cohort", n.name)) for n in queue.node.path]
            if path != quota.path(f"queue/{name}"):
                self.violate(f"{name} stands at {path}, and by its spec at {quota.path(f'queue/{name}')}")
            for place, node in zip(path, queue.node.path, strict=True):
                self._compare(place, node)

    def _compare(self, place: str, node: QuotaNode) -> None:
        quota, names = self.ledger.quota, self.scene.world.platform.index.snapshot.names
        for pair, used in zip(names, node.usage, strict=False):
            expected = quota.used(place, pair)
            if used != expected:
                holders = [Key(scheme.WORKLOAD, *key.split("/")) for key in quota.holders.get(place, {})]
                what = f"{place} uses {used} of {'/'.join(pair)}; its Workloads hold {expected}"
                self.violate(what, *holders)


class AdmittedHasAssignment(Invariant):
    """Every reservation assigns each pod set an allowed count, its usage, and flavors of the queue that suit it."""

    name = "admitted_has_assignment"

    def look(self, event: WatchEvent) -> None:
        """Check new reservations."""
        if event.key.kind == scheme.WORKLOAD and is_reserved_by(event):
            view = workload_view(event.obj)
            for fault in self._faults(view, _assignments(event.obj)):
                self.violate(f"{view.key}: {fault}", event.key)

    def _faults(self, view: WorkloadView, assigned: Sequence[Holding]) -> Iterator[str]:
        queue = self.ledger.queue_of(view)
        if queue is None or queue.name != view.cluster_queue:
            yield f"admitted by {view.cluster_queue}, but its LocalQueue {view.queue} belongs to another"
            return
        if queue.stop_policy != "None" or queue.name in self.ledger.terminating:
            yield f"{queue.name} is stopped"
        if [h.name for h in assigned] != [p.name for p in view.pod_sets]:
            yield f"assigned pod sets are {[h.name for h in assigned]}, requested are {[p.name for p in view.pod_sets]}"
            return
        for pod_set, wanted, holding in zip(view.pod_sets, view.counts, assigned, strict=True):
            yield from self._pod_set_faults(queue, pod_set, wanted, holding)

    def _pod_set_faults(self, queue: ClusterQueueView, pod_set: PodSet, wanted: int, held: Holding) -> Iterator[str]:
        least = wanted if pod_set.min_count is None else min(wanted, pod_set.min_count)
        if not least <= held.pods <= wanted:
            yield f"{held.pods} pods of {pod_set.name}, allowed are {least} to {wanted}"
        requests = {resource: amount * held.pods for resource, amount in pod_set.template.requests}
        usage = dict(held.usage)
        if any("pods" in group.resources for group in queue.groups):
            requests["pods"] = held.pods
        for resource, amount in requests.items():
            if amount and usage.get(resource) != amount:
                yield f"{pod_set.name} uses {usage.get(resource)} of {resource}, not {amount}"
        for group in queue.groups:
            yield from self._group_faults(group, pod_set, held)
        covered = [resource for group in queue.groups for resource in group.resources]
        if any(resource not in covered for resource in held.flavors):
            yield f"{pod_set.name} has {sorted(held.flavors)}, the queue {sorted(covered)}"

    def _group_faults(self, group: ResourceGroup, pod_set: PodSet, held: Holding) -> Iterator[str]:
        flavors = sorted({held.flavors[resource] for resource in group.resources if resource in held.flavors})
        if len(flavors) > 1:
            yield f"{pod_set.name} has {flavors} in one group"
        for flavor in flavors:
            if flavor not in group.flavors:
                yield f"{pod_set.name} has flavor {flavor}, the group {group.flavors}"
            obstacle = flavor_mismatch(pod_set.template, flavor, self.ledger.flavors.get(flavor))
            if obstacle:
                yield f"{pod_set.name}: {obstacle}"


def _assignments(obj: Obj) -> list[Holding]:
    """Return the assignments in a Workload's status, unchanged."""
    return [
        Holding(
            assigned["name"],
            assigned.get("count", 0),
            assigned.get("flavors") or {},
            tuple((r, meta.amount(r, amount)) for r, amount in (assigned.get("resourceUsage") or {}).items()),
        )
        for assigned in obj["status"]["admission"].get("podSetAssignments") or ()
    ]


# --- assumed equals confirmed ---
#
# The scheduler's state at the end of an instant equals the state rebuilt from the objects, so a restart loses nothing.


#: In the order in which a restart processes them.
KINDS: Final = (
    scheme.NAMESPACE,
    scheme.RESOURCE_FLAVOR,
    scheme.ADMISSION_CHECK,
    scheme.COHORT,
    scheme.CLUSTER_QUEUE,
    scheme.LOCAL_QUEUE,
    scheme.WORKLOAD,
)


class AssumedEqualsConfirmed(Invariant):
    """The scheduler's index equals an index rebuilt from the objects."""

    name = "assumed_equals_confirmed"

    def settle(self) -> None:
        """Compare with an index built from the current objects only."""
        world = self.scene.world
        kept, derived = _known(world.platform.index), _known(rebuilt(world, world.kernel.now()))
        for what in sorted({**kept, **derived}):
            if kept.get(what) != derived.get(what):
                self.violate(f"{what} is {kept.get(what)}, and by the objects {derived.get(what)}")


def rebuilt(world: World, now: Instant) -> SchedulerCache:
    """Return an index built from the current objects."""
    index = SchedulerCache()
    for kind in KINDS:
        for obj in world.objects(kind):
            index.observe(WatchEvent(EventType.ADDED, key_of(obj), obj, None, 0), now)
    index.snapshot.settle()
    return index


def _known(index: SchedulerCache) -> dict[str, Any]:
    """Return all inputs of scheduling decisions, by name."""
    snapshot = index.snapshot
    known: dict[str, Any] = {
        f"local queue {key}": (view.cluster_queue, view.stop_policy) for key, view in index.book.local_queues.items()
    }
    for name, queue in snapshot.queues.items():
        known[f"queue {name}"] = queue.active
        known[f"tally of {name}"] = _figures(index.book.queue_tally.get(name), snapshot)
        known[f"waiting in {name}"] = sorted(view.key for view in index.queue_manager.pending[name].views())
        for held in queue.workloads.values():
            known[f"quota of {held.key}"] = _holding(held, snapshot)
    for key in index.book.local_queues:
        known[f"tally of {key}"] = _figures(index.book.local_tally.get(key), snapshot)
    return known


def _holding(held: AdmittedWorkload, snapshot: Snapshot) -> tuple[Any, ...]:
    usage = sorted((snapshot.names[fr], amount) for fr, amount in held.usage if amount)
    flavors = sorted(snapshot.names[fr] for fr in held.flavor_resources)
    times = held.priority, held.queued, held.reserved_at
    return held.uid, held.queue.name, held.local_queue, usage, flavors, times, held.evicted, held.is_admitted


def _figures(count: QueueCounter, snapshot: Snapshot) -> tuple[Any, ...]:
    usages = count.reserved_usage, count.admitted_usage
    named = [sorted((snapshot.names[fr], amount) for fr, amount in usage.items() if amount) for usage in usages]
    return count.reserving, count.admitted, named


# --- jobs ---
#
# Jobs: status counts match the pods, suspension matches admission, and a finished Workload holds nothing.


class JobsCountRight(Invariant):
    """A Job counts each pod once, no more than ended that way, and no more successes than its completions."""

    name = "jobs_count_right"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        #: By the uid of a Job, the uids of its pods that succeeded, and of those that failed or were deleted.
        self._well: dict[str, dict[str, None]] = {}
        self._badly: dict[str, dict[str, None]] = {}
        self._changed: dict[Key, None] = {}

    def look(self, event: WatchEvent) -> None:
        """Record pods that end, and Jobs that change."""
        if event.key.kind == scheme.JOB:
            self._changed[event.key] = None
            self._look_back(event)
        owner = controller_of(event.obj) if event.key.kind == scheme.POD else None
        if owner is None:
            return
        uid = event.obj["metadata"]["uid"]
        if phase(event.obj) == SUCCEEDED:
            self._well.setdefault(owner["uid"], {})[uid] = None
        elif phase(event.obj) == FAILED or "deletionTimestamp" in event.obj["metadata"] or _is_gone(event):
            self._badly.setdefault(owner["uid"], {})[uid] = None

    def settle(self) -> None:
        """Check the counts of changed Jobs."""
        for key in self._changed:
            job = self.scene.world.client.get(key)
            for what in () if job is None else self._faults(job):
                self.violate(f"{key}: {what}", key)
        self._changed.clear()

    def finish(self) -> None:
        """Check that an ended Job has no active pods."""
        for job in self.scene.world.objects(scheme.JOB) if self.is_at_rest else ():
            status, name = job.get("status") or {}, job["metadata"]["name"]
            ended = is_true(status, "Complete") or is_true(status, "Failed")
            if ended and (status.get("active") or status.get("terminating")):
                what = f"{name} has ended and counts {status.get('active')} pods that run"
                self.violate(what, Key(scheme.JOB, job["metadata"]["namespace"], name))

    def _faults(self, job: Obj) -> Iterator[str]:
        spec, status, uid = job["spec"], job.get("status") or {}, job["metadata"]["uid"]
        succeeded, failed, active = (status.get(field) or 0 for field in ("succeeded", "failed", "active"))
        well, badly = len(self._well.get(uid, ())), len(self._badly.get(uid, ()))
        if succeeded > well:
            yield f"{succeeded} are counted as succeeded, {well} succeeded"
        if failed > badly:
            yield f"{failed} are counted as failed, {badly} failed"
        if succeeded > spec.get("completions", succeeded):
            yield f"{succeeded} succeeded, {spec['completions']} are its completions"
        if active > spec.get("parallelism", 1):
            yield f"{active} are active, {spec.get('parallelism', 1)} may be"
        if spec.get("completionMode") == "Indexed" and succeeded != _count(status.get("completedIndexes") or ""):
            yield f"{succeeded} succeeded, and the indexes {status.get('completedIndexes')}"
        if is_true(status, "Complete") and "successPolicy" not in spec and succeeded < spec.get("completions", 0):
            yield f"it is complete with {succeeded} of {spec['completions']}"

    def _look_back(self, event: WatchEvent) -> None:
        """Check that counts never decrease."""
        if event.old is None:
            return
        for field in ("succeeded", "failed"):
            before, after = ((obj.get("status") or {}).get(field) or 0 for obj in (event.old, event.obj))
            if after < before:
                self.violate(f"{event.key}: {field} was {before} and is {after}", event.key)


def _is_gone(event: WatchEvent) -> bool:
    return event.type is EventType.DELETED


def _count(indexes: str) -> int:
    """Return the number of indexes in a text such as `0,2-4`."""
    ends = [part.split("-") for part in indexes.split(",") if part]
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


# --- no job runs without admission ---
#
# A Job or JobSet with a queue runs only while its Workload is admitted.


_KINDS = (scheme.JOB, scheme.JOB_SET)
_ENDED = ("Complete", "Completed", "Failed")


class NoJobRunsWithoutAdmission(Invariant):
    """A Job or JobSet with a queue runs only while its Workload is admitted."""

    name = "no_job_runs_without_admission"

    def look(self, event: WatchEvent) -> None:
        """Check that a job that starts is admitted."""
        if event.key.kind in _KINDS and event.type is not EventType.DELETED and _runs(event.obj):
            was_running = event.old is not None and _runs(event.old)
            if not was_running and not self._is_admitted(event.obj):
                self.violate(f"{event.key} starts and is not admitted", event.key)

    def settle(self) -> None:
        """Check that running jobs are admitted."""
        for kind in _KINDS:
            for job in self.scene.world.objects(kind):
                if _runs(job) and not self._is_admitted(job):
                    self.violate(f"{key_of(job)} runs and is not admitted", key_of(job))

    def _is_admitted(self, job: Obj) -> bool:
        """Whether the Workload of a job is admitted, by the delivered events."""
        return any(view.admitted and not view.finished for view in self._workloads(job["metadata"]))

    def _workloads(self, of: Obj) -> list[WorkloadView]:
        owned = self.scene.world.client.owned_by(of["uid"], of["namespace"])
        return [workload_view(obj) for obj in owned if key_of(obj).kind == scheme.WORKLOAD]


def _runs(job: Obj) -> bool:
    if controller_of(job) is not None or not label(job, well_known.QUEUE_NAME) or job["spec"].get("suspend"):
        return False
    conditions = (job.get("status") or {}).get("conditions") or ()
    return not any(c["type"] in _ENDED and c["status"] == "True" for c in conditions)


# --- no pod without admission ---
#
# No pod of a job with a queue is bound, or starts to run, while its Workload holds no quota.


class NoPodWithoutAdmission(Invariant):
    """No pod of a job with a queue is bound or starts without quota."""

    name = "no_pod_without_admission"

    def __init__(self, scene: WorldView) -> None:
        super().__init__(scene)
        self._begun: dict[Key, None] = {}

    def look(self, event: WatchEvent) -> None:
        """Record pods that were bound or started to run."""
        if event.key.kind != scheme.POD or event.type is EventType.DELETED:
            return
        new, old = pod_view(event.obj), None if event.old is None else pod_view(event.old)
        is_bound = new.node_name and not (old and old.node_name)
        runs = new.phase == RUNNING and not (old and old.phase == RUNNING)
        if is_bound or runs:
            self._begun[event.key] = None

    def settle(self) -> None:
        """Check that they have quota, unless they are being deleted."""
        for key in self._begun:
            pod = self.scene.world.client.get(key)
            root = None if pod is None or "deletionTimestamp" in pod["metadata"] else self._root(pod)
            if root is not None and label(root, well_known.QUEUE_NAME) and not self._has_quota(root):
                self.violate(f"{key} has begun, and its job has no quota", key)
        self._begun.clear()

    def _root(self, obj: Obj) -> Obj | None:
        """Return the topmost owner of a pod, or the pod itself without one; None if an owner is deleted."""
        client = self.scene.world.client
        owner = controller_of(obj)
        kind = None if owner is None else {"Job": scheme.JOB, "JobSet": scheme.JOB_SET}.get(owner["kind"])
        if owner is None or kind is None:
            return obj
        above = client.get(Key(kind, obj["metadata"]["namespace"], owner["name"]))
        return None if above is None or "deletionTimestamp" in above["metadata"] else self._root(above)

    def _has_quota(self, root: Obj) -> bool:
        metadata = root["metadata"]
        owned = self.scene.world.client.owned_by(metadata["uid"], metadata["namespace"])
        return any(workload_view(obj).quota_reserved for obj in owned if obj["kind"] == "Workload")


# --- finished holds nothing ---
#
# A finished Workload holds no quota, waits in no queue, and stays finished.


class FinishedHoldsNothing(Invariant):
    """A finished Workload holds no quota, waits in no queue, and stays finished."""

    name = "finished_holds_nothing"

    def look(self, event: WatchEvent) -> None:
        """Check that a finished Workload stays finished."""
        if event.key.kind != scheme.WORKLOAD or event.old is None or event.type is EventType.DELETED:
            return
        before, after = workload_view(event.old), workload_view(event.obj)
        if before.finished and not after.finished:
            self.violate(f"{event.key} had finished and is not finished any more", event.key)

    def settle(self) -> None:
        """Check that the scheduler's quota and queues do not contain finished Workloads."""
        index = self.scene.world.platform.index
        for view in self.ledger.workloads.values():
            if not view.finished:
                continue
            key = Key(scheme.WORKLOAD, view.namespace, view.name)
            if index.snapshot.holder(view.key) is not None:
                self.violate(f"{view.key} has finished and holds quota", key)
            if any(queue.get(view.key) is not None for queue in index.queue_manager.pending.values()):
                self.violate(f"{view.key} has finished and waits", key)
