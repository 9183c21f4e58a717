"""Controller of the status of ClusterQueues, LocalQueues and Cohorts: Workload counts, usage, shares, Active.

Changes caused by Workloads are written in one batch per period, as in Kueue. Changes of a queue itself are written at
once. The controller runs after the scheduler has nothing left to decide. Source: Kueue's pkg/controller/core
(clusterqueue_controller, localqueue_controller, cohort_controller).
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.errors import ApiError
from batchyard.api.meta import Key, Obj, format_amount, is_true, key_of, with_condition, with_status
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult
from batchyard.scheduling.active_status import QueueActiveStatus
from batchyard.scheduling.cluster_queue import ClusterQueue
from batchyard.scheduling.fair_sharing.admission_fair_sharing import fair_sharing_status
from batchyard.scheduling.quota import QuotaNode, weighted_share
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.snapshot import QueueCounter
from batchyard.scheduling.workload.pending_reason import holding_budgets_suffix

BATCH_KEY: Final = Key("Batch", "", "queue-status")
BATCH_PERIOD: Final = SECOND
_INACTIVE_MESSAGE: Final = "Can't submit new workloads to clusterQueue"
_DELETED: Final = EventType.DELETED  # enum member access is slow
#: The metadata fields whose changes affect the status, in addition to the spec.
_RELEVANT_METADATA: Final = ("annotations", "deletionTimestamp")
_FLAVOR_FIELDS: Final = frozenset({"flavorsReservation", "flavorsUsage"})
_LOCAL_QUEUE_READY: Final = QueueActiveStatus(True, "Ready", "Can submit new workloads to localQueue")


class QueueStatusController:
    """Controller that writes the status of ClusterQueues, LocalQueues and Cohorts from the scheduler cache."""

    name = "queue-status"
    rank = 20
    kinds = (
        scheme.WORKLOAD,
        scheme.CLUSTER_QUEUE,
        scheme.LOCAL_QUEUE,
        scheme.COHORT,
        scheme.RESOURCE_FLAVOR,
        scheme.TOPOLOGY,
        scheme.ADMISSION_CHECK,
    )

    def __init__(self, scheduler_cache: SchedulerCache, *, fair_sharing: bool) -> None:
        self._cache = scheduler_cache
        self._fair_sharing = fair_sharing
        #: Queues whose Workloads changed since the last batch, by kind and namespaced name.
        self._stale_queues: dict[tuple[str, str], None] = {}
        self._batch_due: Instant | None = None
        #: The last status written for each object; the watch event of that write needs no reconcile.
        self._written_statuses: dict[Key, Mapping[str, Any]] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the keys of the ClusterQueues, LocalQueues and Cohorts whose status an event may change.

        A Workload's event, or a status that differs from the one last written, only records the object for the next
        batch. The result is then BATCH_KEY, or () if a batch is already scheduled.
        """
        match event.key.kind:
            case scheme.WORKLOAD:
                return self._record_workload_change(event)
            case scheme.RESOURCE_FLAVOR | scheme.TOPOLOGY | scheme.ADMISSION_CHECK:
                return [Key(scheme.CLUSTER_QUEUE, "", name) for name in sorted(self._cache.snapshot.queues)]
            case scheme.CLUSTER_QUEUE:
                return [*self._changed_queue_key(event), *self._local_queue_keys_of(event), *self._cohorts_of(event)]
            case scheme.COHORT if self._cache.reports_cohort_cycles:
                queues = [Key(scheme.CLUSTER_QUEUE, "", name) for name in sorted(self._cache.snapshot.queues)]
                return [*self._changed_queue_key(event), *queues]
            case _:
                return self._changed_queue_key(event)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Return the write of the object's status if it changed; for BATCH_KEY, those of all recorded queues.

        BATCH_KEY is first requeued, so that the writes follow one second (BATCH_PERIOD) later.
        """
        if key != BATCH_KEY:
            return ReconcileResult(self._status_writes(key, reader, now))
        if self._batch_due is None:
            self._batch_due = now + BATCH_PERIOD
        if now < self._batch_due:
            return ReconcileResult(requeue_at=self._batch_due)
        stale_queues, self._stale_queues, self._batch_due = self._stale_queues, {}, None
        keys = [Key(kind, *queue.rpartition("/")[::2]) for kind, queue in stale_queues]
        writes = [write for key in keys for write in self._status_writes(key, reader, now)]
        return ReconcileResult(writes, independent=True, on_result=self._process_batch_result)

    def _process_batch_result(self, write: Write, error: ApiError | None) -> bool:
        if error is None:
            return False
        assert isinstance(write, UpdateStatus)
        self._record_stale_object(key_of(write.obj))
        return True

    def _record_stale_object(self, key: Key) -> None:
        name = f"{key.namespace}/{key.name}" if key.namespace else key.name
        self._stale_queues[key.kind, name] = None

    def _record_workload_change(self, event: WatchEvent) -> Iterable[Key]:
        view = workload_view(event.obj)
        self._record_stale_queues(view)
        if event.old is not None:
            old_view = workload_view(event.old)
            if (old_view.queue, old_view.cluster_queue) != (view.queue, view.cluster_queue):
                self._record_stale_queues(old_view)
        return () if self._batch_due is not None else (BATCH_KEY,)

    def _record_stale_queues(self, view: WorkloadView) -> None:
        self._stale_queues[scheme.LOCAL_QUEUE, view.queue] = None
        if view.cluster_queue:
            self._stale_queues[scheme.CLUSTER_QUEUE, view.cluster_queue] = None
        local_queue = self._cache.workload_cache.local_queues.get(view.queue)
        if local_queue is not None:
            self._stale_queues[scheme.CLUSTER_QUEUE, local_queue.cluster_queue] = None

    def _changed_queue_key(self, event: WatchEvent) -> Iterable[Key]:
        """Return the key of the event's object; () if the event only shows this controller's last status write.

        If only the status changed, but not to the last one written, record the object for the next batch. Then return
        the key of that batch, or () if the batch is already scheduled.
        """
        key, old, new = event.key, event.old, event.obj
        if event.type is _DELETED:
            self._written_statuses.pop(key, None)
        elif old is not None and not _has_relevant_change(old, new):
            new_status = new.get("status")
            if new_status == self._written_statuses.get(key) and new_status != old.get("status"):
                return ()
            if new_status != old.get("status"):
                # It may be an earlier write of this controller. A write at once would compete with the one in flight.
                self._record_stale_object(key)
                return () if self._batch_due is not None else (BATCH_KEY,)
        return (key,)

    def _local_queue_keys_of(self, event: WatchEvent) -> Iterable[Key]:
        old, new = ((obj or {}).get("status", {}).get("conditions") for obj in (event.old, event.obj))
        if old == new and event.old is not None and event.type is not _DELETED:
            return
        for local_queue in self._cache.workload_cache.local_queues.values():
            if local_queue.cluster_queue == event.key.name:
                namespace, _, name = local_queue.key.partition("/")
                yield Key(scheme.LOCAL_QUEUE, namespace, name)

    def _cohorts_of(self, event: WatchEvent) -> Iterable[Key]:
        queue = self._cache.snapshot.queues.get(event.key.name) if self._fair_sharing else None
        return () if queue is None else [Key(scheme.COHORT, "", node.name) for node in queue.node.path[:-1]]

    def _status_writes(self, key: Key, reader: Reader, now: Instant) -> list[Write]:
        obj = reader.get(key)
        if obj is None:
            return []
        match key.kind:
            case scheme.CLUSTER_QUEUE:
                status = self._cluster_queue_status(key.name, obj, now)
            case scheme.LOCAL_QUEUE:
                status = self._local_queue_status(obj, reader, now)
            case _:
                status = self._cohort_status(key.name, obj)
        if status == (obj.get("status") or {}):
            return []
        self._written_statuses[key] = status
        return [UpdateStatus(with_status(obj, status))]

    def _cluster_queue_status(self, name: str, obj: Obj, now: Instant) -> Mapping[str, Any]:
        queue = self._cache.snapshot.queues.get(name)
        if queue is None:
            return obj.get("status") or {}
        self._cache.snapshot.rebuild_if_changed()
        status = dict(obj.get("status") or {})
        queue_counter = self._cache.workload_cache.cluster_queue_counters.get(name)
        status["conditions"] = _with_active_condition(obj, self._cache.active_status(name), now)
        status["flavorsReservation"] = self._usage_by_flavor(queue, queue_counter.reserved_usage, is_local=False)
        status["flavorsUsage"] = self._usage_by_flavor(queue, queue_counter.admitted_usage, is_local=False)
        status["pendingWorkloads"] = len(self._cache.queue_manager.pending[name])
        _set_workload_counts(status, queue_counter)
        self._set_fair_share(status, queue.node)
        return status

    def _local_queue_status(self, obj: Obj, reader: Reader, now: Instant) -> Mapping[str, Any]:
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        key = f"{metadata['namespace']}/{metadata['name']}"
        name = spec.get("clusterQueue", "")
        queue, pending_queue = self._cache.snapshot.queues.get(name), self._cache.queue_manager.pending.get(name)
        is_stopped = (spec.get("stopPolicy") or "None") != "None"
        cluster_queue = reader.get(Key(scheme.CLUSTER_QUEUE, "", name))
        status = dict(obj.get("status") or {})
        queue_counter = self._cache.workload_cache.local_queue_counters.get(key) if queue else QueueCounter()
        active_status = _local_queue_active_status(cluster_queue, obj if is_stopped else None)
        status["conditions"] = _with_active_condition(obj, active_status, now)
        if queue is None:  # without a ClusterQueue there are no flavors to report
            status = {field: value for field, value in status.items() if field not in _FLAVOR_FIELDS}
        else:
            status["flavorsReservation"] = self._usage_by_flavor(queue, queue_counter.reserved_usage, is_local=True)
            status["flavorsUsage"] = self._usage_by_flavor(queue, queue_counter.admitted_usage, is_local=True)
        status["pendingWorkloads"] = 0
        if not is_stopped:  # Workloads of a missing ClusterQueue count as pending too
            workload_cache = self._cache.workload_cache
            status["pendingWorkloads"] = (
                workload_cache.count_admissible(key)
                if pending_queue is None
                else pending_queue.counts_by_local_queue.get(key, 0)
            )
        _set_workload_counts(status, queue_counter)
        ledger = self._cache.workload_cache.usage_ledger
        entry = None if ledger is None else ledger.entry(key)
        if entry is not None and entry.is_status_merged:
            status["fairSharing"] = fair_sharing_status(entry)
        return status

    def _cohort_status(self, name: str, obj: Obj) -> Mapping[str, Any]:
        status = dict(obj.get("status") or {})
        self._cache.snapshot.rebuild_if_changed()
        node = self._cache.snapshot.cohorts.get(name)
        if node is not None:
            self._set_fair_share(status, node)
        return status

    def _set_fair_share(self, status: dict[str, Any], node: QuotaNode) -> None:
        status.pop("fairSharing", None)
        if self._fair_sharing:
            status["fairSharing"] = {
                "weightedShare": weighted_share(node, self._cache.snapshot.flavor_resource_names).rounded_value
            }

    def _usage_by_flavor(self, queue: ClusterQueue, used: Mapping[int, int], *, is_local: bool) -> list[dict[str, Any]]:
        return [
            {
                "name": flavor,
                "resources": [
                    _resource_usage(queue, resource, group.ids[resource][number], used, is_local=is_local)
                    for resource in sorted(group.ids)
                ],
            }
            for group in queue.coverage.groups
            for number, flavor in enumerate(group.flavors)
        ]


def _has_relevant_change(old: Obj, new: Obj) -> bool:
    old_metadata, new_metadata = old["metadata"], new["metadata"]
    return old.get("spec") != new.get("spec") or any(
        old_metadata.get(each) != new_metadata.get(each) for each in _RELEVANT_METADATA
    )


def _resource_usage(
    queue: ClusterQueue, resource: str, fr: int, used_amounts: Mapping[int, int], *, is_local: bool
) -> dict[str, Any]:
    amount = used_amounts.get(fr, 0)
    resource_usage = {"name": resource, "total": format_amount(resource, amount)}
    if not is_local:
        borrowed_amount = max(0, amount - queue.node.nominal.get(fr, 0)) if queue.view.cohort else 0
        resource_usage["borrowed"] = format_amount(resource, borrowed_amount)
    return resource_usage


def _set_workload_counts(status: dict[str, Any], queue_counter: QueueCounter) -> None:
    status["reservingWorkloads"] = queue_counter.reserving
    status["admittedWorkloads"] = queue_counter.admitted


def _with_active_condition(obj: Obj, active_status: QueueActiveStatus, now: Instant) -> list[Any]:
    return with_condition(
        (obj.get("status") or {}).get("conditions") or [],
        type="Active",
        status=active_status.active,
        reason=active_status.reason,
        message=active_status.message,
        now=now,
        generation=obj["metadata"].get("generation"),
    )


def _local_queue_active_status(cluster_queue: Obj | None, stopped_queue: Obj | None) -> QueueActiveStatus:
    if stopped_queue is not None:
        return QueueActiveStatus(False, "Stopped", f"LocalQueue is stopped{holding_budgets_suffix(stopped_queue)}")
    if cluster_queue is None:
        return QueueActiveStatus(False, "ClusterQueueDoesNotExist", _INACTIVE_MESSAGE)
    if not is_true(cluster_queue.get("status") or {}, "Active"):
        return QueueActiveStatus(False, "ClusterQueueIsInactive", _INACTIVE_MESSAGE)
    return _LOCAL_QUEUE_READY
