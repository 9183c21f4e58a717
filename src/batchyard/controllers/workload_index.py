"""Which Workloads a change of a queue concerns: an index that the same watch events would build again."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from batchyard.api.meta import Key, Obj
from batchyard.core.lifecycle import workload as lifecycle
from batchyard.core.lifecycle.waiting import is_inactive, stop_policy
from batchyard.ports.client import EventType, WatchEvent


class QueueIndex:
    """Which Workloads are in which LocalQueue, which LocalQueues in which ClusterQueue, and which queues are closed."""

    def __init__(self) -> None:
        self._workloads: dict[tuple[str, str], dict[Key, None]] = {}
        self._local_queues: dict[str, dict[Key, None]] = {}
        #: Queues that are stopped, going away or inactive.
        self.closed: dict[Key, None] = {}

    def note_workload(self, event: WatchEvent) -> None:
        """Take note of a Workload's queue; one that is finished or gone is in none."""
        key, queue = event.key, _queue_of(event.key, event.obj)
        if event.old is not None and (old_queue := _queue_of(key, event.old)) != queue:
            self._workloads.get(old_queue, {}).pop(key, None)
        if event.type is EventType.DELETED or lifecycle.is_finished(event.obj):
            self._workloads.get(queue, {}).pop(key, None)
        else:
            self._workloads.setdefault(queue, {})[key] = None

    def note_local_queue(self, event: WatchEvent) -> Iterable[Key]:
        """Take note of a LocalQueue; its Workloads, if they must look at it again."""
        key, cluster_queue = event.key, event.obj["spec"].get("clusterQueue", "")
        if event.type is EventType.DELETED:
            self._local_queues.get(cluster_queue, {}).pop(key, None)
        else:
            self._local_queues.setdefault(cluster_queue, {})[key] = None
        return self._workloads_of(key) if self._note_closure(event) else ()

    def note_cluster_queue(self, event: WatchEvent) -> Iterable[Key]:
        """Take note of a ClusterQueue; the Workloads of its LocalQueues, if they must look at it again."""
        if not self._note_closure(event):
            return ()
        local_queues = self._local_queues.get(event.key.name, {})
        return [workload for local_queue in local_queues for workload in self._workloads_of(local_queue)]

    def _workloads_of(self, local_queue: Key) -> list[Key]:
        return list(self._workloads.get((local_queue.namespace, local_queue.name), ()))

    def _note_closure(self, event: WatchEvent) -> bool:
        """Whether Workloads must look again: the queue came, went, opened or closed."""
        closure = _closure(event.obj)
        if event.type is EventType.DELETED or closure == _OPEN:
            self.closed.pop(event.key, None)
        else:
            self.closed[event.key] = None
        return event.type is not EventType.MODIFIED or event.old is None or _closure(event.old) != closure


class _Closure(NamedTuple):
    """All of a queue that its Workloads depend on."""

    stop_policy: str
    terminating: bool
    inactive: bool


_OPEN: Final = _Closure("None", False, False)


def _closure(queue: Obj) -> _Closure:
    inactive = queue["kind"] == "ClusterQueue" and is_inactive(queue)
    return _Closure(stop_policy(queue), "deletionTimestamp" in queue["metadata"], inactive)


def _queue_of(key: Key, workload: Obj) -> tuple[str, str]:
    return key.namespace, workload["spec"].get("queueName", "")
