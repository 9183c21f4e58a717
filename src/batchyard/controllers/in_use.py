"""Lets ClusterQueues and ResourceFlavors that are deleted go once they are not in use: takes their finalizer off.

Source: Kueue's pkg/controller/core (clusterqueue_controller, resourceflavor_controller).
"""

from collections.abc import Iterable

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, without_finalizer
from batchyard.base.instant import Instant
from batchyard.controllers.admission_index import AdmissionIndex
from batchyard.ports.client import Reader, Update, WatchEvent
from batchyard.ports.controller import Outcome


class InUse:
    """See the module."""

    name = "in-use"
    rank = 1
    kinds = (scheme.WORKLOAD, scheme.CLUSTER_QUEUE, scheme.RESOURCE_FLAVOR)

    def __init__(self, index: AdmissionIndex) -> None:
        self._index = index
        #: What is to go.
        self._leaving: dict[Key, None] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Whatever is to go, when something that may use it changes."""
        if event.key.kind != scheme.WORKLOAD and event.obj["metadata"].get("deletionTimestamp"):
            self._leaving[event.key] = None
        return list(self._leaving)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Let it go if nobody uses it."""
        obj = reader.get(key)
        if obj is None:
            self._leaving.pop(key, None)
            return Outcome()
        released = without_finalizer(obj, well_known.RESOURCE_IN_USE)
        return Outcome() if released is obj or self._is_used(key) else Outcome([Update(released)])

    def _is_used(self, key: Key) -> bool:
        queues = self._index.snapshot.queues
        if key.kind == scheme.CLUSTER_QUEUE:
            return key.name in queues and bool(queues[key.name].workloads)
        return any(key.name in group.flavors for queue in queues.values() for group in queue.view.groups)
