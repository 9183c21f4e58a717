"""The lifecycle of Workloads: what happens to them because of their spec, their queues and time alone.

One step per reconcile (`workload_steps`): its write brings the Workload back for the next. Here is said when to look,
and orphans end. Source: pkg/controller/core/workload_controller.go of Kueue, less queueing.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, label, without_finalizer
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Instant
from batchyard.controllers.admission.workload_index import QueueIndex
from batchyard.controllers.admission.workload_steps import Look, first_step
from batchyard.core.lifecycle import reasons as r
from batchyard.core.lifecycle import waiting
from batchyard.core.lifecycle import workload as lifecycle
from batchyard.core.lifecycle.field_ownership import handed_over, has_former_owner
from batchyard.core.lifecycle.pods_ready import PodsReadyPolicy
from batchyard.core.lifecycle.waiting import Queues
from batchyard.ports.client import EventType, Reader, Update, UpdateStatus, WatchEvent
from batchyard.ports.controller import Outcome

_NO_STATUS: Final[Obj] = {}


class WorkloadLifecycle:
    """Keeps the conditions of every Workload true to its spec, its queues and the time."""

    name = "workload"
    rank = 0
    kinds = (scheme.WORKLOAD, scheme.LOCAL_QUEUE, scheme.CLUSTER_QUEUE)

    def __init__(self, pods_ready_policy: PodsReadyPolicy | None = None) -> None:
        self._index = QueueIndex()
        #: None: pods may take as long as they like.
        self._policy = pods_ready_policy

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """A Workload that may need a step; all Workloads of a queue that opened, closed, came or went."""
        kind = event.key.kind
        if kind == scheme.WORKLOAD:
            self._index.note_workload(event)
            return (event.key,) if event.type is not EventType.DELETED and self._needs_look(event.obj) else ()
        if kind == scheme.LOCAL_QUEUE:
            return self._index.note_local_queue(event)
        if kind == scheme.CLUSTER_QUEUE:
            return self._index.note_cluster_queue(event)
        return ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Take the first step that is due."""
        workload = reader.get(key)
        if workload is None:
            return Outcome()
        if lifecycle.is_finished(workload) or _is_orphan(workload):
            return _end(workload, now)
        if has_former_owner(workload):
            return Outcome([Update(workload, handed_over(workload))])
        return first_step(Look(key, workload, _queues_of(workload, reader), now, self._policy))

    def _needs_look(self, workload: Obj) -> bool:
        """Whether a step may be due. Most changes are the scheduler's, and need none."""
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
        verdict = view.waits_for is None or view.waits_for in waiting.VERDICTS
        return not verdict or not index.is_open(view, to_all=True)


def _is_orphan(workload: Obj) -> bool:
    """Its job is gone: it has no owner any more, though it had one, or it is being deleted."""
    metadata = workload["metadata"]
    if metadata.get("ownerReferences"):
        return False
    return "deletionTimestamp" in metadata or bool(label(workload, well_known.JOB_UID))


def _queues_of(workload: Obj, reader: Reader) -> Queues:
    namespace = workload["metadata"].get("namespace", "")
    local_queue = reader.get(Key(scheme.LOCAL_QUEUE, namespace, workload["spec"].get("queueName", "")))
    if local_queue is None:
        return Queues(None, None)
    cluster_queue = reader.get(Key(scheme.CLUSTER_QUEUE, "", local_queue["spec"].get("clusterQueue", "")))
    return Queues(local_queue, cluster_queue, reader.get(Key(scheme.NAMESPACE, "", namespace)))


def _end(workload: Obj, now: Instant) -> Outcome:
    """Finish an orphan, so that its quota is free; then let it go."""
    metadata = workload["metadata"]
    if not _is_orphan(workload):
        return Outcome()
    if "deletionTimestamp" not in metadata and not lifecycle.is_finished(workload):
        message = "The workload's owner no longer exists"
        return Outcome([UpdateStatus(lifecycle.finish(workload, r.OWNER_NOT_FOUND, message, now))])
    released = without_finalizer(workload, well_known.RESOURCE_IN_USE)
    return Outcome() if released is workload else Outcome([Update(released)])
