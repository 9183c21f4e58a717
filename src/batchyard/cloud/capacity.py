"""The controller of capacity: whoever wants a machine is looked at together, so that none is given twice."""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.base.instant import Instant
from batchyard.cloud.allocation import Allocation
from batchyard.cloud.capacity_index import CapacityIndex
from batchyard.cloud.clusters import only_cluster
from batchyard.ports.client import Reader, WatchEvent
from batchyard.ports.controller import Outcome

#: One key for all: the runner looks at a key again only when all it wrote before is known.
_EVERYBODY: Final = Key(scheme.CLUSTER, "", "")


class Capacity:
    """Gives machines to Instances and ResizeRequests."""

    name = "cloud-capacity"
    rank = 0
    kinds = (scheme.INSTANCE, scheme.RESIZE_REQUEST, scheme.NODE_POOL, scheme.CLUSTER)

    def __init__(self) -> None:
        self._index = CapacityIndex()

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Everybody, if there is somebody whom the change may help."""
        return (_EVERYBODY,) if self._index.note(event) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Serve all who want machines."""
        cluster = only_cluster(reader)
        if cluster is None:
            return Outcome()
        allocation = Allocation(self._index, reader, cluster, now)
        allocation.run()
        return Outcome(allocation.writes, requeue_at=allocation.retry_at)
