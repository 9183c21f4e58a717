"""An AdmissionIndex and the watch events that reach it, for tests of what the scheduler knows."""

from typing import Any

import make
from batchyard.api.meta import Key, Obj, key_of, with_path
from batchyard.interfaces.client import EventType, WatchEvent
from batchyard.scheduling.cycle import Cycle, SchedulingPolicy
from batchyard.scheduling.decisions import Admit
from batchyard.scheduling.messages import RequeueReason
from batchyard.scheduling.scheduler_cache import SchedulerCache
from batchyard.scheduling.workload import lifecycle
from yard import queue, workload


class AdmissionWatcher:
    """An index, and the watch events that reach it."""

    def __init__(self, *objects: Obj) -> None:
        self.index = SchedulerCache()
        self.now = make.NOW
        self._known: dict[Key, Obj] = {}
        self.put(make.namespace(), make.flavor("spot"))
        self.put(*objects)

    def put(self, *objects: Obj) -> bool:
        """Objects are there or change; whether the last leaves something to decide."""
        found = False
        for obj in objects:
            key, old = key_of(obj), self._known.get(key_of(obj))
            kind = EventType.ADDED if old is None else EventType.MODIFIED
            self._known[key] = obj
            found = self.index.observe(WatchEvent(kind, key, obj, old, 0), self.now)
        return found

    def delete(self, kind: str, name: str, namespace: str = "") -> bool:
        """An object goes; whether there is something to decide."""
        key = Key(kind, namespace, name)
        obj = self._known.pop(key)
        return self.index.observe(WatchEvent(EventType.DELETED, key, obj, obj, 0), self.now)

    def change(self, kind: str, name: str, *path: str, value: object, namespace: str = "") -> bool:
        """One field of an object changes."""
        return self.put(with_path(self._known[Key(kind, namespace, name)], path, value))

    def heads(self) -> list[str]:
        """The heads, which wait no more."""
        heads = self.index.heads(self.now)
        for head in heads:
            self.index.queue_manager.pending[head.queue].remove(head.workload.key, forget_preemptor=False)
        return [head.workload.name for head in heads]

    def park(self) -> None:
        """Find every head inadmissible, until nobody is in line."""
        while heads := self.index.heads(self.now):
            for head in heads:
                self.index.queue_manager.requeue(head, None, RequeueReason.GENERIC)

    def waiting(self, name: str = "cq") -> list[str]:
        """All that wait in a ClusterQueue."""
        return [view.name for view in self.index.queue_manager.pending[name].views()]

    def used(self, name: str = "cq") -> int:
        """What is used of a ClusterQueue, in whole cpus of flavor spot."""
        self.index.snapshot.settle()
        node = self.index.snapshot.queues[name].node
        return node.usage[self.index.snapshot.id_of("spot", "cpu")] // 1000


def open_queue(name: str = "cq", cpu: int = 4, **spec: Any) -> tuple[Obj, Obj]:
    """A ClusterQueue and its LocalQueue of the same name."""
    return queue(name, cpu, **spec), make.local_queue(name, cluster_queue=name)


def holding(name: str = "x", cpu: int = 2, *, queue: str = "cq", admitted: bool = True, **fields: Any) -> Obj:
    """A Workload that holds quota."""
    assignment = {"name": "main", "count": 1, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": str(cpu)}}
    admission = {"clusterQueue": queue, "podSetAssignments": [assignment]}
    obj = workload(name, cpu, queue=fields.pop("local_queue", queue), **fields)
    return lifecycle.reserve_quota(obj, admission, make.NOW, admitted=admitted)


def parked(*objects: Obj, name: str = "a", cpu: int = 1) -> AdmissionWatcher:
    """One cq with a parked Workload; the objects come before it."""
    watcher = AdmissionWatcher(*open_queue(), *objects, workload(name, cpu))
    watcher.park()
    return watcher


def assumed(watcher: AdmissionWatcher) -> Obj:
    """Decide on the one head and count its admission before it is written."""
    index = watcher.index
    heads = index.heads(watcher.now)
    (decision,) = Cycle(index.snapshot, SchedulingPolicy(), index.namespaces, 1).run(heads)
    assert isinstance(decision, Admit)
    index.workload_cache.assume(decision, watcher.now, admitted=False)
    return workload(heads[0].workload.name, 3)
