"""Which Workloads a change of a queue concerns: an index that the same watch events would build again."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from batchyard.api.meta import Key, Obj
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.core.lifecycle.waiting import is_inactive, stop_policy
from batchyard.ports.client import EventType, WatchEvent

_MODIFIED: Final = EventType.MODIFIED


class QueueIndex:
    """Which Workloads are in which LocalQueue, which LocalQueues in which ClusterQueue, and which queues are open."""

    def __init__(self) -> None:
        # LocalQueues by namespace and name: team-a/queue.
        self._workloads: dict[str, dict[Key, None]] = {}
        self._local_queues: dict[str, dict[str, None]] = {}
        #: The ClusterQueue of each open LocalQueue.
        self._open_local_queues: dict[str, str] = {}
        #: Open ClusterQueues, each with whether it takes every namespace.
        self._open_cluster_queues: dict[str, bool] = {}
        #: Those that ask for admission checks.
        self._checking_cluster_queues: dict[str, None] = {}

    def has_checks(self, workload: WorkloadView) -> bool:
        """Whether the ClusterQueue of its LocalQueue asks for admission checks."""
        return self._open_local_queues.get(workload.queue) in self._checking_cluster_queues

    def is_open(self, workload: WorkloadView, *, to_all: bool = False) -> bool:
        """Whether its queues exist and none is stopped, inactive or going; with `to_all`, and take every namespace."""
        cluster_queue = self._open_local_queues.get(workload.queue)
        takes_all = None if cluster_queue is None else self._open_cluster_queues.get(cluster_queue)
        return takes_all is True or (takes_all is False and not to_all)

    def note_workload(self, event: WatchEvent) -> None:
        """Take note of a Workload's queue; one that is finished or gone is in none."""
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
        """Take note of a LocalQueue; its Workloads, if they must look at it again."""
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
        """Take note of a ClusterQueue; the Workloads of its LocalQueues, if they must look at it again."""
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
    """All of a queue that its Workloads depend on."""

    stop_policy: str
    terminating: bool
    inactive: bool


_OPEN: Final = _Closure("None", False, False)


def _closure(queue: Obj) -> _Closure:
    inactive = queue["kind"] == "ClusterQueue" and is_inactive(queue)
    return _Closure(stop_policy(queue), "deletionTimestamp" in queue["metadata"], inactive)


def _matters(event: WatchEvent) -> bool:
    """Whether Workloads must look again: the queue came, went, opened, closed, or asks for other checks."""
    if event.type is not EventType.MODIFIED or event.old is None:
        return True
    asked, asks = (obj["spec"].get("admissionChecksStrategy") for obj in (event.old, event.obj))
    return asked != asks or _closure(event.old) != _closure(event.obj)
