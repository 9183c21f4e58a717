"""Which Workloads a change of a queue concerns: an index that the same watch events would build again."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from batchyard.api.meta import Key, Obj
from batchyard.core.lifecycle import workload as lifecycle
from batchyard.core.lifecycle.waiting import is_inactive, stop_policy
from batchyard.ports.client import EventType, WatchEvent

_MODIFIED: Final = EventType.MODIFIED

#: The namespace and name of a LocalQueue.
_Place = tuple[str, str]


class QueueIndex:
    """Which Workloads are in which LocalQueue, which LocalQueues in which ClusterQueue, and which queues are open."""

    def __init__(self) -> None:
        self._workloads: dict[_Place, dict[Key, None]] = {}
        self._local_queues: dict[str, dict[_Place, None]] = {}
        #: The ClusterQueue of each open LocalQueue.
        self._open_local_queues: dict[_Place, str] = {}
        #: Open ClusterQueues, each with whether it takes every namespace.
        self._open_cluster_queues: dict[str, bool] = {}

    def is_open(self, workload: Obj, *, to_all: bool = False) -> bool:
        """Whether its queues exist and none is stopped, inactive or going; with `to_all`, and take every namespace."""
        cluster_queue = self._open_local_queues.get(_place_of(workload))
        takes_all = None if cluster_queue is None else self._open_cluster_queues.get(cluster_queue)
        return takes_all is True or (takes_all is False and not to_all)

    def note_workload(self, event: WatchEvent) -> None:
        """Take note of a Workload's queue; one that is finished or gone is in none."""
        key, finished = event.key, lifecycle.is_finished(event.obj)
        if (
            event.type is _MODIFIED
            and not finished
            and event.old is not None
            and event.old["spec"] is event.obj["spec"]
        ):
            return
        place = _place_of(event.obj)
        if event.old is not None and (old_place := _place_of(event.old)) != place:
            self._workloads.get(old_place, {}).pop(key, None)
        if event.type is EventType.DELETED or finished:
            self._workloads.get(place, {}).pop(key, None)
        else:
            self._workloads.setdefault(place, {})[key] = None

    def note_local_queue(self, event: WatchEvent) -> Iterable[Key]:
        """Take note of a LocalQueue; its Workloads, if they must look at it again."""
        place, cluster_queue = (event.key.namespace, event.key.name), event.obj["spec"].get("clusterQueue", "")
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
    """Whether Workloads must look again: the queue came, went, opened or closed."""
    if event.type is not EventType.MODIFIED or event.old is None:
        return True
    return _closure(event.old) != _closure(event.obj)


def _place_of(workload: Obj) -> _Place:
    return workload["metadata"].get("namespace", ""), workload["spec"].get("queueName", "")
