"""What the scheduler knows: who holds what, who waits where. Built from watch events alone, so a restart rebuilds it.

Every change that may help a waiting Workload marks its ClusterQueue to be woken, with its whole tree, before the next
cycle. A tree in which a cycle changed nothing rests until something in it does.
Sources: Kueue's event handlers in pkg/controller/core and pkg/cache/queue/manager.go. One thing is mended: upstream
wakes nobody when a Workload whose LocalQueue is gone or stopped gives quota back; those parked wait for the next
release, and for ever if there is none. Here they are woken at once if nobody is left whose end would wake them, and
after a grace period otherwise.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from batchyard.api import scheme
from batchyard.api.conditions import is_true
from batchyard.api.meta import Obj
from batchyard.api.views.flavor import flavor_view
from batchyard.api.views.queues import LocalQueueView, cluster_queue_view, cohort_view, local_queue_view
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import MINUTE, Instant
from batchyard.controllers.pending import PendingQueue
from batchyard.controllers.tally import Tally
from batchyard.core.decisions import Admit, Head
from batchyard.core.queue import Admitted, ClusterQueue
from batchyard.core.quota import Usage
from batchyard.core.readiness import Readiness, readiness_of
from batchyard.core.snapshot import Snapshot
from batchyard.ports.client import EventType, WatchEvent

#: How long quota may lie free without anybody being woken by its release.
GRACE: Final = 5 * MINUTE

KINDS: Final = (
    scheme.WORKLOAD,
    scheme.LOCAL_QUEUE,
    scheme.CLUSTER_QUEUE,
    scheme.COHORT,
    scheme.RESOURCE_FLAVOR,
    scheme.NAMESPACE,
    scheme.ADMISSION_CHECK,
)


class AdmissionIndex:
    """See the module."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.pending: dict[str, PendingQueue] = {}
        self.local_queues: dict[str, LocalQueueView] = {}
        #: Labels by namespace.
        self.namespaces: dict[str, Mapping[str, str]] = {}
        #: Who reserves and uses what, by ClusterQueue and by LocalQueue.
        self.queue_tally = Tally()
        self.local_tally = Tally()
        self._checks: dict[str, bool] = {}
        self._terminating: dict[str, None] = {}
        #: Unfinished Workloads by LocalQueue.
        self._workloads: dict[str, dict[str, WorkloadView]] = {}
        self._queue_of: dict[str, str] = {}
        self._to_wake: dict[str, None] = {}
        #: Trees with quota that was freed without waking anybody: by root, a ClusterQueue and until when that may be.
        self._unnoticed: dict[str, tuple[str, Instant]] = {}
        #: ClusterQueues that may have somebody in line, but for those of resting trees.
        self._in_line: dict[str, None] = {}
        #: Resting trees, each with its ClusterQueues that have somebody in line.
        self._resting: dict[str, list[str]] = {}
        #: Trees to be left alone for the rest of an instant, whatever happens in them.
        self._frozen: dict[str, Instant] = {}
        #: By tree: how often something in it changed.
        self.touches: dict[str, int] = {}
        self._handlers: dict[str, Callable[[WatchEvent, Instant], None]] = {
            scheme.WORKLOAD: self._on_workload,
            scheme.LOCAL_QUEUE: self._on_local_queue,
            scheme.CLUSTER_QUEUE: self._on_cluster_queue,
            scheme.COHORT: self._on_cohort,
            scheme.RESOURCE_FLAVOR: self._on_flavor,
            scheme.NAMESPACE: self._on_namespace,
            scheme.ADMISSION_CHECK: self._on_check,
        }

    # What the scheduler asks.

    def observe(self, event: WatchEvent, now: Instant) -> bool:
        """Take note of a change; whether there is something to decide now."""
        self._handlers[event.key.kind](event, now)
        return bool(self._to_wake) or bool(self._in_line)

    def take_heads(self, now: Instant) -> list[Head]:
        """Wake whom changes may help, then take the front of every ClusterQueue that has one and can admit."""
        if self.snapshot.settle():
            self._rouse_all()
        self._wake(now)
        self._frozen = {root: since for root, since in self._frozen.items() if since == now}
        heads = []
        for name in sorted(self._in_line):
            queue, waiting = self.snapshot.queues.get(name), self.pending.get(name)
            if queue is None or waiting is None or not queue.active or not waiting.has_heads():
                del self._in_line[name]
            elif self.root_of(queue) not in self._frozen:
                head = waiting.pop()
                if head is not None:
                    heads.append(head)
        return heads

    def root_of(self, queue: ClusterQueue) -> str:
        """The name of the root of a queue's tree."""
        return queue.node.path[0].name

    def rest(self, root: str) -> None:
        """Leave a tree alone until something in it changes."""
        resting = self._resting.setdefault(root, [])
        for name in list(self._in_line):
            if self.root_of(self.snapshot.queues[name]) == root:
                resting.append(name)
                del self._in_line[name]

    def freeze(self, root: str, now: Instant) -> None:
        """Leave a tree alone for the rest of this instant."""
        self._frozen[root] = now

    def show(self, name: str) -> None:
        """A ClusterQueue may have somebody in line."""
        self._in_line[name] = None

    def assume(self, decision: Admit, now: Instant, *, admitted: bool) -> None:
        """Count an admission before it is written."""
        view, queue = decision.head.workload, decision.queue
        chosen = frozenset([c.fr for p in decision.assignment.pod_sets for c in p.choices.values()])
        usage = decision.assignment.usage
        self._hold(_admitted(view, queue, usage, chosen, reserved_at=now, is_admitted=admitted))

    def forget(self, view: WorkloadView, now: Instant) -> None:
        """Count an admission no more that could not be written, and queue the Workload again."""
        self._release(view.key)
        self._enqueue(view, now)

    def readiness(self, name: str) -> Readiness:
        """Whether a ClusterQueue can admit, and why not."""
        return readiness_of(
            self.snapshot.queues[name].view,
            terminating=name in self._terminating,
            flavors=self.snapshot.flavors,
            checks=self._checks,
        )

    def next_release(self) -> Instant | None:
        """When the first Workload may be tried again that waits for a time to pass."""
        times = [t for queue in self.pending.values() if (t := queue.next_release()) is not None]
        times += [until for _, until in self._unnoticed.values()]
        return min(times, default=None)

    def wake_held(self, now: Instant) -> None:
        """Wake the queues whose Workloads have waited long enough."""
        for name, queue in self.pending.items():
            release = queue.next_release()
            if release is not None and release <= now:
                self._to_wake[name] = None
        for name, until in self._unnoticed.values():
            if until <= now:
                self._to_wake[name] = None

    # Workloads.

    def _on_workload(self, event: WatchEvent, now: Instant) -> None:
        view = workload_view(event.obj)
        if event.type is EventType.DELETED:
            self._drop(view.key, now)
            return
        self._sort_in(view)
        if view.finished or not view.active:
            self._leave(view, now)
            return
        if view.quota_reserved:
            self._reserve(view, event.old, now)
            return
        if self.snapshot.holder(view.key) is not None:
            self._wake_for(view.key, now)
            self._release(view.key)
        if view.admissible:
            self._enqueue(view, now)
        else:
            self._dequeue(view.key)

    def _sort_in(self, view: WorkloadView) -> None:
        """Keep the Workload with its LocalQueue."""
        before = self._queue_of.get(view.key)
        if before is not None and before != view.queue:
            self._dequeue(view.key)
            del self._workloads[before][view.key]
        self._queue_of[view.key] = view.queue
        self._workloads.setdefault(view.queue, {})[view.key] = view

    def _leave(self, view: WorkloadView, now: Instant) -> None:
        """A finished or inactive Workload neither waits nor holds."""
        self._dequeue(view.key)
        self._wake_for(view.key, now)
        self._release(view.key)
        if view.finished:
            self._workloads[view.queue].pop(view.key, None)

    def _reserve(self, view: WorkloadView, old: Obj | None, now: Instant) -> None:
        """Count what the Workload holds as its status has it."""
        self._dequeue(view.key)
        queue = self.snapshot.queues.get(view.cluster_queue)
        if queue is None:
            self._release(view.key)
            return
        usage: dict[int, int] = {}
        chosen: dict[int, None] = {}
        for holding in view.holdings:
            amounts = dict(holding.usage)
            for resource, flavor in holding.flavors.items():
                fr = self.snapshot.id_of(flavor, resource)
                chosen[fr] = None
                usage[fr] = usage.get(fr, 0) + amounts.get(resource, 0)
        reserved_at = view.reserved_at or 0
        self._hold(
            _admitted(
                view, queue, tuple(usage.items()), frozenset(chosen), reserved_at=reserved_at, is_admitted=view.admitted
            )
        )
        if old is not None:
            before = workload_view(old)
            if before.quota_reserved and (before.counts != view.counts or before.priority != view.priority):
                self._wake_for(view.key, now)

    def _drop(self, key: str, now: Instant) -> None:
        self._dequeue(key)
        self._wake_for(key, now)
        self._release(key)
        local = self._queue_of.pop(key, None)
        if local is not None:
            self._workloads[local].pop(key, None)

    def _hold(self, held: Admitted) -> None:
        self._untally(self.snapshot.holder(held.key))
        self.snapshot.hold(held)
        self.queue_tally.add(held.queue.name, held)
        self.local_tally.add(held.local_queue, held)
        self._touch(held.queue)

    def _release(self, key: str) -> None:
        held = self.snapshot.release(key)
        if held is not None:
            self._untally(held)
            self._touch(held.queue)

    def _untally(self, held: Admitted | None) -> None:
        if held is not None:
            self.queue_tally.remove(held.queue.name, held)
            self.local_tally.remove(held.local_queue, held)

    def _enqueue(self, view: WorkloadView, now: Instant) -> None:
        local = self.local_queues.get(view.queue)
        if local is None or local.stop_policy != "None":
            return
        waiting = self.pending.get(local.cluster_queue)
        if waiting is not None and waiting.put(view, now):
            self._show(local.cluster_queue)

    def _dequeue(self, key: str) -> None:
        local = self.local_queues.get(self._queue_of.get(key, ""))
        waiting = self.pending.get(local.cluster_queue) if local is not None else None
        if waiting is not None:
            waiting.remove(key)

    def _show(self, name: str) -> None:
        """A ClusterQueue has somebody new in line."""
        self._in_line[name] = None
        queue = self.snapshot.queues.get(name)
        if queue is not None:
            self._touch(queue)

    def _touch(self, queue: ClusterQueue) -> None:
        """Something in the queue's tree changed."""
        root = self.root_of(queue)
        self.touches[root] = self.touches.get(root, 0) + 1
        for name in self._resting.pop(root, ()):
            self._in_line[name] = None

    def _rouse_all(self) -> None:
        """The trees themselves changed."""
        self.touches = {root: count + 1 for root, count in self.touches.items()}
        for names in self._resting.values():
            self._in_line.update(dict.fromkeys(names))
        self._resting.clear()

    def _wake_for(self, key: str, now: Instant) -> None:
        """Wake the tree in which a Workload holds, or may have held, quota."""
        if self._is_open(self._queue_of.get(key, "")):
            self._to_wake[self.local_queues[self._queue_of[key]].cluster_queue] = None
            return
        held = self.snapshot.holder(key)
        if held is None:
            return
        root = held.queue.node.path[0]
        others = (w for queue in self.snapshot.queues_below(root) for w in queue.workloads.values() if w is not held)
        if any(self._is_open(other.local_queue) for other in others):
            self._unnoticed.setdefault(root.name, (held.queue.name, now + GRACE))
        else:
            self._to_wake[held.queue.name] = None

    def _is_open(self, local_queue: str) -> bool:
        """Whether a LocalQueue is there and not stopped."""
        local = self.local_queues.get(local_queue)
        return local is not None and local.stop_policy == "None"

    def _wake(self, now: Instant) -> None:
        roots: dict[str, ClusterQueue] = {}
        for name in self._to_wake:
            queue = self.snapshot.queues.get(name)
            if queue is not None:
                roots[self.root_of(queue)] = queue
        self._to_wake.clear()
        for root, any_queue in roots.items():
            self._unnoticed.pop(root, None)
            self._touch(any_queue)
            for queue in self.snapshot.queues_below(any_queue.node.path[0]):
                if self.pending[queue.name].wake(self._admits(queue), now):
                    self._in_line[queue.name] = None

    def _admits(self, queue: ClusterQueue) -> Callable[[str], bool]:
        selector = queue.view.namespaces

        def admits(namespace: str) -> bool:
            labels = self.namespaces.get(namespace)
            return selector is not None and labels is not None and selector.matches(labels)

        return admits

    # Queues, Cohorts, flavors, namespaces.

    def _on_local_queue(self, event: WatchEvent, _now: Instant) -> None:
        view = local_queue_view(event.obj)
        before = self.local_queues.get(view.key)
        if event.type is EventType.DELETED:
            self._empty(view.key)
            self.local_queues.pop(view.key, None)
            return
        if before is not None and (before.cluster_queue, before.stop_policy) == (view.cluster_queue, view.stop_policy):
            return
        if before is not None:
            self._empty(view.key)
        self.local_queues[view.key] = view
        self._fill_from(view)

    def _fill_from(self, local: LocalQueueView) -> None:
        """Put the Workloads of a LocalQueue in line."""
        waiting = self.pending.get(local.cluster_queue)
        if waiting is None or local.stop_policy != "None":
            return
        for view in self._workloads.get(local.key, {}).values():
            if view.admissible and self.snapshot.holder(view.key) is None:
                waiting.put_in_line(view)
        if waiting.has_heads():
            self._show(local.cluster_queue)

    def _empty(self, key: str) -> None:
        """Take the Workloads of a LocalQueue out of line."""
        for workload in self._workloads.get(key, {}):
            self._dequeue(workload)

    def _on_cluster_queue(self, event: WatchEvent, _now: Instant) -> None:
        view = cluster_queue_view(event.obj)
        name = view.name
        if event.type is EventType.DELETED:
            for held in self.snapshot.queues[name].workloads.values():
                self.local_tally.remove(held.local_queue, held)
            self.snapshot.remove_queue(name)
            self.queue_tally.forget(name)
            for table in (self.pending, self._terminating, self._in_line):
                table.pop(name, None)
            return
        if event.obj["metadata"].get("deletionTimestamp"):
            self._terminating[name] = None
        if event.old is not None and event.old.get("spec") == event.obj.get("spec") and name in self.pending:
            self._set_active(name)
            return
        queue = self.snapshot.put_queue(view)
        is_new = name not in self.pending
        waiting = self.pending.setdefault(name, PendingQueue(name))
        waiting.strict_fifo = queue.view.strict_fifo
        self._set_active(name)
        self._to_wake[name] = None
        if is_new:
            for local in self.local_queues.values():
                if local.cluster_queue == name:
                    self._fill_from(local)

    def _set_active(self, name: str) -> None:
        queue = self.snapshot.queues[name]
        was = queue.active
        queue.active = self.readiness(name).active
        if queue.active and not was:
            self._to_wake[name] = None
            self._in_line[name] = None

    def _on_cohort(self, event: WatchEvent, _now: Instant) -> None:
        view = cohort_view(event.obj)
        if event.type is EventType.DELETED:
            self.snapshot.remove_cohort(view.name)
            return
        if event.old is not None and event.old.get("spec") == event.obj.get("spec"):
            return
        self.snapshot.put_cohort(view)
        self.snapshot.settle()
        self._rouse_all()
        node = self.snapshot.cohorts[view.name]
        for queue in self.snapshot.queues_below(node.path[0])[:1]:
            self._to_wake[queue.name] = None

    def _on_flavor(self, event: WatchEvent, _now: Instant) -> None:
        flavor = flavor_view(event.obj)
        if event.type is EventType.DELETED:
            self.snapshot.remove_flavor(flavor.name)
        else:
            self.snapshot.put_flavor(flavor)
        for name, queue in self.snapshot.queues.items():
            if any(flavor.name in group.flavors for group in queue.view.groups):
                self._set_active(name)
                self._to_wake[name] = None

    def _on_namespace(self, event: WatchEvent, _now: Instant) -> None:
        name, labels = event.obj["metadata"]["name"], _labels(event.obj)
        before = self.namespaces.get(name)
        if event.type is EventType.DELETED:
            self.namespaces.pop(name, None)
            return
        self.namespaces[name] = labels
        if labels == before:
            return
        for queue in self.snapshot.queues.values():
            selector = queue.view.namespaces
            if selector is not None and selector.matches(labels):
                self._to_wake[queue.name] = None

    def _on_check(self, event: WatchEvent, _now: Instant) -> None:
        name = event.obj["metadata"]["name"]
        self._checks.pop(name, None)
        if event.type is not EventType.DELETED:
            self._checks[name] = is_true(event.obj.get("status") or {}, "Active")
        for queue in self.snapshot.queues.values():
            if name in queue.view.admission_checks:
                self._set_active(queue.name)


def _admitted(
    view: WorkloadView,
    queue: ClusterQueue,
    usage: Usage,
    chosen: frozenset[int],
    *,
    reserved_at: Instant,
    is_admitted: bool,
) -> Admitted:
    return Admitted(
        key=view.key,
        uid=view.uid,
        queue=queue,
        usage=usage,
        flavor_resources=chosen,
        priority=view.priority,
        queued=view.queued,
        reserved_at=reserved_at,
        evicted=view.evicted and view.quota_reserved,
        is_admitted=is_admitted,
        local_queue=view.queue,
        job_uid=view.job_uid,
    )


def _labels(namespace: Obj) -> Mapping[str, Any]:
    """A namespace's labels; Kubernetes adds its name as one."""
    metadata = namespace["metadata"]
    return {"kubernetes.io/metadata.name": metadata["name"], **(metadata.get("labels") or {})}
