"""Workload controller, and the index of the Workloads affected by a change of a queue."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, label, without_finalizer
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, Reader, Update, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.scheduling.workload import lifecycle, pending_reason
from batchyard.scheduling.workload import lifecycle as r
from batchyard.scheduling.workload.lifecycle import handed_over, has_former_owner
from batchyard.scheduling.workload.pending_reason import WorkloadQueues, is_inactive, stop_policy
from batchyard.scheduling.workload.pods_ready import PodsReadyPolicy
from batchyard.scheduling.workload.steps import WorkloadPass, first_step

_MODIFIED: Final = EventType.MODIFIED


class QueueIndex:
    """Workloads by LocalQueue, LocalQueues by ClusterQueue, and the open queues; built only from watch events."""

    def __init__(self) -> None:
        # LocalQueues by namespace and name: team-a/queue.
        self._workloads: dict[str, dict[Key, None]] = {}
        self._local_queues: dict[str, dict[str, None]] = {}
        #: The ClusterQueue of each open LocalQueue.
        self._open_local_queues: dict[str, str] = {}
        #: Open ClusterQueues, each with whether it accepts every namespace.
        self._open_cluster_queues: dict[str, bool] = {}
        #: ClusterQueues that require admission checks.
        self._checking_cluster_queues: dict[str, None] = {}

    def has_checks(self, workload: WorkloadView) -> bool:
        """Report whether the ClusterQueue of its LocalQueue requires admission checks."""
        return self._open_local_queues.get(workload.queue) in self._checking_cluster_queues

    def is_open(self, workload: WorkloadView, *, to_all: bool = False) -> bool:
        """Report whether its queues exist and are open; with `to_all`, also that they accept every namespace."""
        cluster_queue = self._open_local_queues.get(workload.queue)
        takes_all = None if cluster_queue is None else self._open_cluster_queues.get(cluster_queue)
        return takes_all is True or (takes_all is False and not to_all)

    def note_workload(self, event: WatchEvent) -> None:
        """Record a Workload's queue; a finished or deleted Workload is removed."""
        key, view = event.key, workload_view(event.obj)
        before = None if event.old is None else workload_view(event.old).queue
        if before == view.queue and event.type is _MODIFIED and not view.finished:
            return
        if before is not None and before != view.queue:
            self._workloads.get(before, {}).pop(key, None)
        if event.type is EventType.DELETED or view.finished:
            self._workloads.get(view.queue, {}).pop(key, None)
        else:
            self._workloads.setdefault(view.queue, {})[key] = None

    def note_local_queue(self, event: WatchEvent) -> Iterable[Key]:
        """Record a LocalQueue. Return its Workloads if they must be reconciled."""
        place, cluster_queue = f"{event.key.namespace}/{event.key.name}", event.obj["spec"].get("clusterQueue", "")
        gone = event.type is EventType.DELETED
        if gone:
            self._local_queues.get(cluster_queue, {}).pop(place, None)
        else:
            self._local_queues.setdefault(cluster_queue, {})[place] = None
        if gone or _closure(event.obj) != _OPEN:
            self._open_local_queues.pop(place, None)
        else:
            self._open_local_queues[place] = cluster_queue
        return list(self._workloads.get(place, ())) if _matters(event) else ()

    def note_cluster_queue(self, event: WatchEvent) -> Iterable[Key]:
        """Record a ClusterQueue. Return the Workloads of its LocalQueues if they must be reconciled."""
        name = event.key.name
        if event.type is EventType.DELETED or _closure(event.obj) != _OPEN:
            self._open_cluster_queues.pop(name, None)
        else:
            self._open_cluster_queues[name] = event.obj["spec"].get("namespaceSelector") == {}
        if event.type is EventType.DELETED or not event.obj["spec"].get("admissionChecksStrategy"):
            self._checking_cluster_queues.pop(name, None)
        else:
            self._checking_cluster_queues[name] = None
        if not _matters(event):
            return ()
        return [key for place in self._local_queues.get(name, ()) for key in self._workloads.get(place, ())]


class _Closure(NamedTuple):
    """The state of a queue that its Workloads depend on."""

    stop_policy: str
    terminating: bool
    inactive: bool


_OPEN: Final = _Closure("None", False, False)


def _closure(queue: Obj) -> _Closure:
    inactive = queue["kind"] == "ClusterQueue" and is_inactive(queue)
    return _Closure(stop_policy(queue), "deletionTimestamp" in queue["metadata"], inactive)


def _matters(event: WatchEvent) -> bool:
    """Report whether Workloads must be reconciled: the queue appeared, opened, closed, or changed its checks."""
    if event.type is not EventType.MODIFIED or event.old is None:
        return True
    asked, asks = (obj["spec"].get("admissionChecksStrategy") for obj in (event.old, event.obj))
    return asked != asks or _closure(event.old) != _closure(event.obj)


# --- workload ---
#
# The Workload lifecycle: transitions caused by its spec, its queues and time alone.
#
# Each reconcile makes one step (`steps.py`); its write triggers the next one. This module decides when to reconcile,
# and finishes orphans. Source: pkg/controller/core/workload_controller.go of Kueue, less queueing.


_NO_STATUS: Final[Obj] = {}


class WorkloadLifecycle:
    """Keeps the conditions of every Workload consistent with its spec, its queues and the time."""

    name = "workload"
    rank = 0
    kinds = (scheme.WORKLOAD, scheme.LOCAL_QUEUE, scheme.CLUSTER_QUEUE)

    def __init__(self, pods_ready_policy: PodsReadyPolicy | None = None) -> None:
        self._index = QueueIndex()
        #: None disables the PodsReady timeout.
        self._policy = pods_ready_policy

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return a Workload that may need a step, or all Workloads of a queue that opened, closed, or changed."""
        kind = event.key.kind
        if kind == scheme.WORKLOAD:
            self._index.note_workload(event)
            return (event.key,) if event.type is not EventType.DELETED and self._needs_look(event.obj) else ()
        if kind == scheme.LOCAL_QUEUE:
            return self._index.note_local_queue(event)
        if kind == scheme.CLUSTER_QUEUE:
            return self._index.note_cluster_queue(event)
        return ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Make the first step that is due."""
        workload = reader.get(key)
        if workload is None:
            return ReconcileResult()
        if lifecycle.is_finished(workload) or _is_orphan(workload):
            return _end(workload, now)
        if has_former_owner(workload):
            return ReconcileResult([Update(workload, handed_over(workload))])
        return first_step(WorkloadPass(key, workload, _queues_of(workload, reader), now, self._policy))

    def _needs_look(self, workload: Obj) -> bool:
        """Report whether a step may be due. Most changes come from the scheduler and need none."""
        view, status, index = workload_view(workload), workload.get("status") or _NO_STATUS, self._index
        if view.finished:
            return "finalizers" in workload["metadata"] and _is_orphan(workload)
        if (
            not view.active
            or "requeueState" in status
            or "admissionChecks" in status
            or view.deactivation_target
            or view.requeue_blocked
            or lifecycle.has_admission_gate(workload)
            or _is_orphan(workload)
            or index.has_checks(view)
            or has_former_owner(workload)
        ):
            return True
        if view.quota_reserved:
            limited = "maximumExecutionTimeSeconds" in workload["spec"]
            awaited = self._policy is not None and not view.pods_ready
            return not view.admitted or limited or awaited or not index.is_open(view)
        if "admission" in status:
            return True
        verdict = view.waits_for is None or view.waits_for in pending_reason.VERDICTS
        return not verdict or not index.is_open(view, to_all=True)


def _is_orphan(workload: Obj) -> bool:
    """Report whether its job is gone: it has lost its owner, or it is being deleted without one."""
    metadata = workload["metadata"]
    if metadata.get("ownerReferences"):
        return False
    return "deletionTimestamp" in metadata or bool(label(workload, well_known.JOB_UID))


def _queues_of(workload: Obj, reader: Reader) -> WorkloadQueues:
    namespace = workload["metadata"].get("namespace", "")
    local_queue = reader.get(Key(scheme.LOCAL_QUEUE, namespace, workload["spec"].get("queueName", "")))
    if local_queue is None:
        return WorkloadQueues(None, None)
    cluster_queue = reader.get(Key(scheme.CLUSTER_QUEUE, "", local_queue["spec"].get("clusterQueue", "")))
    return WorkloadQueues(local_queue, cluster_queue, reader.get(Key(scheme.NAMESPACE, "", namespace)))


def _end(workload: Obj, now: Instant) -> ReconcileResult:
    """Finish an orphan so that its quota is released, then remove its finalizer."""
    metadata = workload["metadata"]
    if not _is_orphan(workload):
        return ReconcileResult()
    if "deletionTimestamp" not in metadata and not lifecycle.is_finished(workload):
        message = "The workload's owner no longer exists"
        return ReconcileResult([UpdateStatus(lifecycle.finish(workload, r.OWNER_NOT_FOUND, message, now))])
    released = without_finalizer(workload, well_known.RESOURCE_IN_USE)
    return ReconcileResult() if released is workload else ReconcileResult([Update(released)])
