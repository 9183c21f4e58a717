"""A scheduler cache with its watch events, for tests of the objects that the scheduler knows."""

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
    """A scheduler cache, and the watch events that it receives."""

    def __init__(self, *objects: Obj) -> None:
        self.index = SchedulerCache()
        self.now = make.NOW
        self._known: dict[Key, Obj] = {}
        self.put(make.namespace(), make.flavor("spot"))
        self.put(*objects)

    def put(self, *objects: Obj) -> bool:
        """Create or update objects; return whether the last event requires a scheduling cycle."""
        result = False
        for obj in objects:
            key, old = key_of(obj), self._known.get(key_of(obj))
            kind = EventType.ADDED if old is None else EventType.MODIFIED
            self._known[key] = obj
            result = self.index.observe(WatchEvent(kind, key, obj, old, 0), self.now)
        return result

    def delete(self, kind: str, name: str, namespace: str = "") -> bool:
        """Delete an object; return whether its event requires a scheduling cycle."""
        key = Key(kind, namespace, name)
        obj = self._known.pop(key)
        return self.index.observe(WatchEvent(EventType.DELETED, key, obj, obj, 0), self.now)

    def change(self, kind: str, name: str, *path: str, value: object, namespace: str = "") -> bool:
        """Change one field of an object; return whether the event requires a scheduling cycle."""
        return self.put(with_path(self._known[Key(kind, namespace, name)], path, value))

    def heads(self) -> list[str]:
        """Remove and return the names of the heads."""
        heads = self.index.heads(self.now)
        for head in heads:
            self.index.queue_manager.pending[head.queue].remove(head.workload.key, forget_preemptor=False)
        return [head.workload.name for head in heads]

    def park(self) -> None:
        """Requeue each head as inadmissible until no Workload is queued."""
        while heads := self.index.heads(self.now):
            for head in heads:
                self.index.queue_manager.requeue(head, None, RequeueReason.GENERIC)

    def waiting(self, name: str = "cq") -> list[str]:
        """The names of the pending Workloads of a ClusterQueue."""
        return [view.name for view in self.index.queue_manager.pending[name].views()]

    def used(self, name: str = "cq") -> int:
        """The usage of a ClusterQueue in whole CPUs of flavor `spot`."""
        self.index.snapshot.rebuild_if_changed()
        node = self.index.snapshot.queues[name].node
        return node.usage[self.index.snapshot.flavor_resource_id("spot", "cpu")] // 1000


def open_queue(name: str = "cq", cpu: int = 4, **spec: Any) -> tuple[Obj, Obj]:
    """A ClusterQueue and its LocalQueue of the same name."""
    return queue(name, cpu, **spec), make.local_queue(name, cluster_queue=name)


def workload_with_quota(
    name: str = "x", cpu: int = 2, *, queue: str = "cq", admitted: bool = True, **fields: Any
) -> Obj:
    """A Workload that holds quota."""
    assignment = {"name": "main", "count": 1, "flavors": {"cpu": "spot"}, "resourceUsage": {"cpu": str(cpu)}}
    admission = {"clusterQueue": queue, "podSetAssignments": [assignment]}
    obj = workload(name, cpu, queue=fields.pop("local_queue", queue), **fields)
    return lifecycle.reserve_quota(obj, admission, make.NOW, admitted=admitted)


def parked_queue(*objects: Obj, name: str = "a", cpu: int = 1) -> AdmissionWatcher:
    """Create the objects, and then ClusterQueue `cq` with an inadmissible Workload."""
    watcher = AdmissionWatcher(*open_queue(), *objects, workload(name, cpu))
    watcher.park()
    return watcher


def assume_admission(watcher: AdmissionWatcher) -> Obj:
    """Admit the only head in the cache, before the admission is written."""
    index = watcher.index
    heads = index.heads(watcher.now)
    (decision,) = Cycle(index.snapshot, SchedulingPolicy(), index.namespaces, 1).run(heads)
    assert isinstance(decision, Admit)
    index.workload_cache.assume(decision, watcher.now, admitted=False)
    return workload(heads[0].workload.name, 3)
