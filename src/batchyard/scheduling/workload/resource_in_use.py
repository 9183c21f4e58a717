"""Keeps what is in use: a finalizer holds it from the beginning, and is taken off when it is to go and nobody uses it.

A ClusterQueue is used by who holds its quota, a ResourceFlavor or AdmissionCheck by the ClusterQueues that name it, a
Topology by the ResourceFlavors that do. Sources: Kueue's pkg/controller/core (clusterqueue_controller,
resourceflavor_controller, admissioncheck_controller), pkg/controller/tas/topology_controller.
"""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, finalizers_of, with_finalizer, without_finalizer
from batchyard.base.instant import Instant
from batchyard.interfaces.client import EventType, Reader, Update, WatchEvent
from batchyard.interfaces.controller import Outcome
from batchyard.scheduling.scheduler_cache import AdmissionIndex

_USERS_ONLY: Final = scheme.WORKLOAD


class InUse:
    """See the module."""

    name = "in-use"
    rank = 1
    kinds = (_USERS_ONLY, scheme.CLUSTER_QUEUE, scheme.RESOURCE_FLAVOR, scheme.ADMISSION_CHECK, scheme.TOPOLOGY)

    def __init__(self, index: AdmissionIndex) -> None:
        self._index = index
        #: What is to go.
        self._leaving: dict[Key, None] = {}

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Whatever is to go, when something that may use it changes; and what nothing holds yet."""
        if event.key.kind == _USERS_ONLY:
            return list(self._leaving)
        if event.type is EventType.DELETED:
            self._leaving.pop(event.key, None)
        elif event.obj["metadata"].get("deletionTimestamp"):
            self._leaving[event.key] = None
        elif well_known.RESOURCE_IN_USE not in finalizers_of(event.obj):
            return [*self._leaving, event.key]
        return list(self._leaving)

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Hold it; if it is to go, let it go when nobody uses it."""
        obj = reader.get(key)
        if obj is None:
            return Outcome()
        if not obj["metadata"].get("deletionTimestamp"):
            wanted = with_finalizer(obj, well_known.RESOURCE_IN_USE)
        elif self._is_used(key, reader):
            return Outcome()
        else:
            wanted = without_finalizer(obj, well_known.RESOURCE_IN_USE)
        return Outcome() if wanted is obj else Outcome([Update(wanted)])

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
