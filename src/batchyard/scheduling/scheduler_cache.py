"""Scheduler cache: quota holders and pending Workloads by queue, built only from watch events.

Every change that may make pending Workloads admissible marks its ClusterQueue. The parked Workloads of its whole tree
are reactivated before the next cycle. A restart rebuilds the cache. Sources: Kueue's event handlers in
pkg/controller/core and pkg/cache/queue/manager.go.
"""

from collections.abc import Callable, Mapping
from typing import Final

from batchyard.api import scheme
from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj, key_of
from batchyard.api.views.ownership import namespace_labels
from batchyard.api.views.queues import ClusterQueueView, cluster_queue_view, cohort_view, flavor_view, local_queue_view
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, Reader, WatchEvent
from batchyard.scheduling.cluster_queue import AdmissionCheckInfo, QueueActiveStatus, readiness_of
from batchyard.scheduling.decisions import Head
from batchyard.scheduling.limit_ranges import AdjustedViews
from batchyard.scheduling.pending_queue import PendingQueue
from batchyard.scheduling.queue_manager import QueueManager
from batchyard.scheduling.snapshot import Snapshot
from batchyard.scheduling.workload_cache import WorkloadCache

KINDS: Final = (
    scheme.WORKLOAD,
    scheme.LOCAL_QUEUE,
    scheme.CLUSTER_QUEUE,
    scheme.COHORT,
    scheme.RESOURCE_FLAVOR,
    scheme.NAMESPACE,
    scheme.ADMISSION_CHECK,
    scheme.LIMIT_RANGE,
    scheme.RUNTIME_CLASS,
)

_DELETED: Final = EventType.DELETED


class SchedulerCache:
    """The cached snapshot, pending queues, Workloads, Namespaces and AdmissionChecks."""

    def __init__(self, view_of: Callable[[Obj], WorkloadView] = workload_view) -> None:
        """`view_of` returns the view of a Workload; its `queued` time decides the queue order."""
        self.snapshot = Snapshot()
        #: Labels by namespace.
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.queue_manager = QueueManager(self.snapshot, self.namespaces)
        self._views = AdjustedViews(view_of)
        self.book = WorkloadCache(self.snapshot, self.queue_manager, self._views.view)
        self._checks: dict[str, AdmissionCheckInfo] = {}
        self._terminating: dict[str, None] = {}
        self._rebuilds = 0
        self._handlers: dict[str, Callable[[WatchEvent], None]] = {
            scheme.WORKLOAD: self.book.observe,
            scheme.LOCAL_QUEUE: self._on_local_queue,
            scheme.CLUSTER_QUEUE: self._on_cluster_queue,
            scheme.COHORT: self._on_cohort,
            scheme.RESOURCE_FLAVOR: self._on_flavor,
            scheme.NAMESPACE: self._on_namespace,
            scheme.ADMISSION_CHECK: self._on_check,
            scheme.LIMIT_RANGE: self._views.observe,
            scheme.RUNTIME_CLASS: self._views.observe_class,
        }

    def no_fit_reason(self, view: WorkloadView) -> str:
        """Return why a parked Workload is bypassed (one of its shape did not fit); '' if it is not."""
        local = self.book.local_queues.get(view.queue)
        waiting = None if local is None else self.queue_manager.pending.get(local.cluster_queue)
        return "" if waiting is None else waiting.no_fit_reason(view)

    def observe(self, event: WatchEvent, now: Instant) -> bool:
        """Process a change. Return whether there is something to decide now."""
        self.queue_manager.now = now
        self._handlers[event.key.kind](event)
        return self.queue_manager.has_work() or self._views.has_changed

    def resync(self, reader: Reader, now: Instant) -> None:
        """Update unchanged Workloads whose view changed with a LimitRange or RuntimeClass."""
        if not self._views.has_changed:
            return
        self.queue_manager.now = now
        for obj in self._views.outdated(scheme.WORKLOAD, reader):
            if workload_view(obj).admissible:
                revision = int(obj["metadata"].get("resourceVersion", 0))
                self.book.observe(WatchEvent(EventType.MODIFIED, key_of(obj), obj, obj, revision))

    def heads(self, now: Instant) -> list[Head]:
        """Reactivate marked or due Workloads, then return the heads of all ClusterQueues that can admit."""
        self.queue_manager.now = now
        self.snapshot.settle()
        if self.snapshot.rebuilds != self._rebuilds:  # another caller may have rebuilt the trees
            self._rebuilds = self.snapshot.rebuilds
            self.queue_manager.activate_all()
        self.queue_manager.mark_due()
        return self.queue_manager.heads()

    def is_terminating(self, name: str) -> bool:
        """Report whether a ClusterQueue is being deleted."""
        return name in self._terminating

    def readiness(self, name: str) -> QueueActiveStatus:
        """Return whether a ClusterQueue can admit, with the reason."""
        return self.readiness_with(self.snapshot.queues[name].view)

    def readiness_with(self, view: ClusterQueueView) -> QueueActiveStatus:
        """Return whether a hypothetical ClusterQueue could admit, with the reason."""
        return readiness_of(
            view,
            terminating=view.name in self._terminating,
            flavors=self.snapshot.flavors,
            checks=self._checks,
        )

    def imagined(self, obj: Obj, real: WorkloadView) -> WorkloadView:
        """Return the view of a hypothetical Workload; `real` is the view of the existing one."""
        return self._views.imagined(obj, real)

    def pending_in(self, cluster_queue: str) -> list[WorkloadView] | None:
        """Return all pending Workloads of a ClusterQueue in queue order; None if it does not exist."""
        waiting = self.queue_manager.pending.get(cluster_queue)
        return None if waiting is None else waiting.views()

    def first_pending(self, cluster_queue: str, count: int) -> list[WorkloadView]:
        """Return the first pending Workloads of a ClusterQueue in queue order."""
        waiting = self.queue_manager.pending.get(cluster_queue)
        return [] if waiting is None else waiting.first(count)

    def count_pending(self, cluster_queue: str) -> int:
        """Return the number of pending Workloads of a ClusterQueue."""
        waiting = self.queue_manager.pending.get(cluster_queue)
        return 0 if waiting is None else len(waiting)

    def place_of(self, cluster_queue: str, workload: str) -> int | None:
        """Return the number of Workloads ahead of a Workload; None if it is not pending there."""
        waiting = self.queue_manager.pending.get(cluster_queue)
        return None if waiting is None or waiting.get(workload) is None else waiting.place_of(workload)

    def cluster_queue_of(self, namespace: str, local_queue: str) -> str | None:
        """Return the ClusterQueue of a LocalQueue; None if the LocalQueue does not exist."""
        found = self.book.local_queues.get(f"{namespace}/{local_queue}")
        return None if found is None else found.cluster_queue

    def _on_local_queue(self, event: WatchEvent) -> None:
        view = local_queue_view(event.obj)
        before = self.book.local_queues.get(view.key)
        if event.type is _DELETED:
            self.book.empty(view.key)
            self.book.local_queues.pop(view.key, None)
            return
        if before is not None and (before.cluster_queue, before.stop_policy) == (view.cluster_queue, view.stop_policy):
            return
        if before is not None:
            self.book.empty(view.key)
        self.book.local_queues[view.key] = view
        self.book.fill_from(view)

    def _on_cluster_queue(self, event: WatchEvent) -> None:
        name = event.key.name
        if event.type is _DELETED:
            self.book.forget_queue(name)
            self.queue_manager.forget(name)
            self.queue_manager.activate_all()
            self._terminating.pop(name, None)
            return
        if event.obj["metadata"].get("deletionTimestamp"):
            self._terminating[name] = None
        if (
            event.old is not None
            and event.old.get("spec") == event.obj.get("spec")
            and name in self.queue_manager.pending
        ):
            self._set_active(name)
            return
        queue = self.snapshot.put_queue(cluster_queue_view(event.obj))
        is_new = name not in self.queue_manager.pending
        waiting = self.queue_manager.pending.setdefault(name, PendingQueue(name))
        waiting.strict_fifo = queue.view.strict_fifo
        self._set_active(name)
        self.queue_manager.wake(name)
        if is_new:
            self.book.count_holders(name)
            for local in self.book.local_queues.values():
                if local.cluster_queue == name:
                    self.book.fill_from(local)

    def _set_active(self, name: str) -> None:
        queue = self.snapshot.queues[name]
        was = queue.active
        queue.active = self.readiness(name).active
        if queue.active and not was:
            self.queue_manager.wake(name)
            self.queue_manager.show_new(name)

    def _on_cohort(self, event: WatchEvent) -> None:
        view = cohort_view(event.obj)
        if event.type is _DELETED:
            self.snapshot.remove_cohort(view.name)
        elif event.old is not None and event.old.get("spec") == event.obj.get("spec"):
            return
        else:
            self.snapshot.put_cohort(view)
        self.snapshot.settle()
        self.queue_manager.activate_all()
        if event.type is _DELETED:
            return
        node = self.snapshot.cohorts[view.name]
        for queue in self.snapshot.queues_below(node.path[0])[:1]:
            self.queue_manager.wake(queue.name)

    def _on_flavor(self, event: WatchEvent) -> None:
        flavor = flavor_view(event.obj)
        if event.type is _DELETED:
            self.snapshot.remove_flavor(flavor.name)
        else:
            self.snapshot.put_flavor(flavor)
        for name, queue in self.snapshot.queues.items():
            if any(flavor.name in group.flavors for group in queue.view.groups):
                self._set_active(name)
                self.queue_manager.wake(name)

    def _on_namespace(self, event: WatchEvent) -> None:
        name, labels = event.obj["metadata"]["name"], namespace_labels(event.obj)
        before = self.namespaces.get(name)
        if event.type is _DELETED:
            self.namespaces.pop(name, None)
            return
        self.namespaces[name] = labels
        if labels == before:
            return
        for queue in self.snapshot.queues.values():
            selector = queue.view.namespaces
            if selector is not None and selector.matches(labels):
                self.queue_manager.wake(queue.name)

    def _on_check(self, event: WatchEvent) -> None:
        name = event.obj["metadata"]["name"]
        self._checks.pop(name, None)
        if event.type is not _DELETED:
            active = is_true(event.obj.get("status") or {}, "Active")
            self._checks[name] = AdmissionCheckInfo(active, event.obj["spec"].get("controllerName", ""))
        for queue in self.snapshot.queues.values():
            if name in queue.view.admission_checks:
                self._set_active(queue.name)
