"""The controller that looks at the cluster: at most once every so often, and only when something changed or is due."""

from collections.abc import Iterable
from typing import Final

from batchyard.api import scheme
from batchyard.api.meta import Key
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant
from batchyard.controllers.autoscaler.index import KINDS, ScalingIndex
from batchyard.controllers.autoscaler.leaving import empty_nodes
from batchyard.controllers.autoscaler.scan import Scan
from batchyard.core.scaling.scale_up import Situation
from batchyard.ports.client import Reader, WatchEvent
from batchyard.ports.controller import Outcome

_CLUSTER: Final = Key(scheme.CLUSTER, "", "autoscaler")


class Autoscaler:
    """See the module. It feeds the index, which whoever else reads it must come after.

    Looks are at fixed instants, counted from the creation of the Cluster, so that a restart does not move them.
    """

    name = "autoscaler"
    rank = 15
    kinds = KINDS

    def __init__(self, index: ScalingIndex) -> None:
        self._index = index
        self._last_scan: Instant | None = None
        self._told: dict[str, str] = {}

    def told_about(self, pod: str) -> str:
        """What a pod that waits, by its uid, was told last; '' if nothing."""
        return self._told.get(pod, "")

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """The cluster, if the change is one to look at."""
        return (_CLUSTER,) if self._index.observe(event) and self._index.is_needed else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Go on with nodes that go; look at the cluster if it is time."""
        self._index.catch_up(reader)
        cluster, settings = self._index.cluster, self._index.settings
        if cluster is None or settings is None or not self._index.is_needed:
            return Outcome()
        leaving = empty_nodes(self._index, reader, now)
        if leaving.writes:
            return leaving
        start = parse_time(cluster["metadata"]["creationTimestamp"])
        next_scan = settings.next_scan(start, now if self._last_scan != now else now + 1)
        if next_scan > now:
            return Outcome(requeue_at=next_scan)
        self._last_scan = now
        looked = Scan(self._index, reader, Situation(cluster, settings, now), self._told).run()
        dues = [due for due in (leaving.requeue_at, looked.requeue_at) if due is not None]
        looked.requeue_at = min(dues, default=None)
        return looked
