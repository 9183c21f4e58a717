"""Controller of admission fair sharing: samples the usage of each LocalQueue, and writes it to the queue's status.

A LocalQueue is sampled one sampling interval after the last update of its usage, so each admission postpones its next
sample. LocalQueues of ClusterQueues without admission fair sharing are sampled too. Stopped LocalQueues, and those of
inactive ClusterQueues, are not. Source: pkg/controller/core/localqueue_controller.go of Kueue.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key, Obj, is_true, with_status
from batchyard.base.instant import SECOND, Instant
from batchyard.interfaces.client import EventType, Reader, UpdateStatus, WatchEvent, Write
from batchyard.interfaces.controller import ReconcileResult
from batchyard.scheduling.fair_sharing.admission_fair_sharing import (
    AdmissionFairSharing,
    LedgerEntry,
    UsageLedger,
    fair_sharing_status,
)
from batchyard.scheduling.scheduler_cache import WATCHED_KINDS, SchedulerCache

#: The least time between samples of a LocalQueue with an entry penalty that is not settled. Kueue has no such limit,
#: and may sample in a loop, because each status write causes another sample.
_EARLY_SAMPLE_DELAY: Final = SECOND


def keep_usage_ledger(scheduler_cache: SchedulerCache, settings: AdmissionFairSharing) -> UsageLedger:
    """Let a scheduler cache that has observed nothing yet keep a usage ledger, and return the ledger."""
    cache = scheduler_cache.workload_cache
    ledger = UsageLedger(settings, scheduler_cache.snapshot, cache.local_queues, cache.local_queue_counters)
    cache.usage_ledger, scheduler_cache.snapshot.usage_of = ledger, ledger.usage_of
    return ledger


class UsageSampling:
    """Controller that samples the usage of LocalQueues for admission fair sharing."""

    name = "usage-sampling"
    #: After the controllers that finish Workloads, and before the scheduler.
    rank = 9
    kinds = WATCHED_KINDS

    def __init__(self, scheduler_cache: SchedulerCache, ledger: UsageLedger, *, is_endless: bool) -> None:
        """Create the controller; unless `is_endless`, it takes the samples that are due only after the next change.

        A timer would keep a simulation without a horizon from ending.
        """
        self._cache = scheduler_cache
        self._ledger = ledger
        self._is_endless = is_endless
        self._is_idle = False

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the keys of the LocalQueues that an event concerns: itself, or those of a changed ClusterQueue."""
        kind, old = event.key.kind, event.old
        if self._is_idle:
            return self._resume()
        if kind == scheme.LOCAL_QUEUE:
            is_changed = old is None or old.get("spec") != event.obj.get("spec")
            return (event.key,) if is_changed and event.type is not EventType.DELETED else ()
        if kind != scheme.CLUSTER_QUEUE:
            return ()
        old_conditions, conditions = (((obj or {}).get("status") or {}).get("conditions") for obj in (old, event.obj))
        return self._local_queue_keys(event.key.name) if old is None or old_conditions != conditions else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Sample a LocalQueue if a sample is due, and return the write of its status."""
        obj = reader.get(key)
        if obj is None or not _is_active(obj, reader):
            return ReconcileResult()
        local_queue, period = f"{key.namespace}/{key.name}", self._ledger.settings.sampling_period
        entry, is_new = self._ledger.merge_status(local_queue, obj, now)
        writes: list[Write] = []
        if is_new or now >= entry.last_update + period or _is_sampled_early(entry, now):
            self._take_samples(local_queue, entry, now)
            self._cache.record_usage_change((obj.get("spec") or {}).get("clusterQueue", ""))
            status = {**(obj.get("status") or {}), "fairSharing": fair_sharing_status(entry)}
            writes = [UpdateStatus(with_status(obj, status))] if status != obj.get("status") else []
        if self._is_endless:
            return ReconcileResult(writes, requeue_at=entry.last_update + period)
        self._is_idle = True
        return ReconcileResult(writes)

    def _take_samples(self, local_queue: str, entry: LedgerEntry, now: Instant) -> None:
        """Sample a LocalQueue now; if samples were omitted, take all that were due, at their own times."""
        if self._is_endless or now < entry.last_update + self._ledger.settings.sampling_period:
            self._ledger.sample(local_queue, now)
        self._ledger.take_due_samples(local_queue, now)

    def _resume(self) -> list[Key]:
        self._is_idle = False
        return [_key_of(name) for name in self._cache.workload_cache.local_queues]

    def _local_queue_keys(self, cluster_queue: str) -> list[Key]:
        views = self._cache.workload_cache.local_queues.values()
        return [_key_of(view.key) for view in views if view.cluster_queue == cluster_queue]


def _key_of(local_queue: str) -> Key:
    namespace, _, name = local_queue.partition("/")
    return Key(scheme.LOCAL_QUEUE, namespace, name)


def _is_sampled_early(entry: LedgerEntry, now: Instant) -> bool:
    """Return whether a LocalQueue is sampled before it is due, because an entry penalty is not settled yet."""
    return now >= entry.last_update + _EARLY_SAMPLE_DELAY and entry.has_pending_penalty()


def _is_active(local_queue: Obj, reader: Reader) -> bool:
    spec = local_queue.get("spec") or {}
    if (spec.get("stopPolicy") or "None") != "None":
        return False
    cluster_queue = reader.get(Key(scheme.CLUSTER_QUEUE, "", spec.get("clusterQueue", "")))
    return cluster_queue is not None and is_true(cluster_queue.get("status") or {}, "Active")
