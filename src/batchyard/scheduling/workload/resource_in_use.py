"""Resource-in-use finalizer: set on creation, and removed when the object is being deleted and is no longer used.

A ClusterQueue is used by Workloads with quota in it. A ResourceFlavor or AdmissionCheck is used by ClusterQueues that
reference it, and a Topology by ResourceFlavors. Sources: Kueue's pkg/controller/core (clusterqueue_controller,
resourceflavor_controller, admissioncheck_controller), pkg/controller/tas/topology_controller.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, finalizers_of, with_finalizer, without_finalizer
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, Reader, Update, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.scheduling.scheduler_cache import SchedulerCache

_USERS_ONLY: Final = scheme.WORKLOAD


class ResourceInUseFinalizer:
    """Maintains the finalizer, and tracks the objects that are being deleted."""

    name = "in-use"
    rank = 1
    kinds = (_USERS_ONLY, scheme.CLUSTER_QUEUE, scheme.RESOURCE_FLAVOR, scheme.ADMISSION_CHECK, scheme.TOPOLOGY)

    def __init__(self, index: SchedulerCache) -> None:
        self._index = index
        #: Objects that are being deleted.
        self._leaving: dict[Key, None] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the objects that are being deleted when a possible user changes, and objects without the finalizer."""
        if event.key.kind == _USERS_ONLY:
            return list(self._leaving)
        if event.type is EventType.DELETED:
            self._leaving.pop(event.key, None)
        elif event.obj["metadata"].get("deletionTimestamp"):
            self._leaving[event.key] = None
        elif well_known.RESOURCE_IN_USE not in finalizers_of(event.obj):
            return [*self._leaving, event.key]
        return list(self._leaving)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Add the finalizer; remove it from an unused object that is being deleted."""
        obj = reader.get(key)
        if obj is None:
            return ReconcileResult()
        if not obj["metadata"].get("deletionTimestamp"):
            wanted = with_finalizer(obj, well_known.RESOURCE_IN_USE)
        elif self._is_used(key, reader):
            return ReconcileResult()
        else:
            wanted = without_finalizer(obj, well_known.RESOURCE_IN_USE)
        return ReconcileResult() if wanted is obj else ReconcileResult([Update(wanted)])

    def _is_used(self, key: Key, reader: Reader) -> bool:
        queues = self._index.snapshot.queues
        if key.kind == scheme.CLUSTER_QUEUE:
            return key.name in queues and bool(queues[key.name].workloads)
        if key.kind == scheme.ADMISSION_CHECK:
            return any(key.name in queue.view.admission_checks for queue in queues.values())
        if key.kind == scheme.TOPOLOGY:
            flavors = reader.list(scheme.RESOURCE_FLAVOR)
            return any((flavor.get("spec") or {}).get("topologyName") == key.name for flavor in flavors)
        return any(key.name in queue.view.flavors for queue in queues.values())
