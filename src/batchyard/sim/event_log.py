"""The event log: what happened to Workloads, nodes and pods, as JSON lines, told from watch events alone.

Times are seconds from the start. Events of one instant are in the order in which they happened.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Obj, key_of
from batchyard.api.views.workload import WorkloadView, workload_view
from batchyard.base.instant import Instant, seconds
from batchyard.controllers.admission.preemption_loops import PreemptionLoop
from batchyard.core.lifecycle.workload import has_quota_reservation, is_finished
from batchyard.core.reasons import preemptor_uid_of
from batchyard.ports.client import EventType, Reader, WatchEvent
from batchyard.sim.cluster_log import cluster_records

Record: TypeAlias = Mapping[str, Any]


class EventLog:
    """Turns changes into records and hands them on."""

    def __init__(self, start: Instant, now: Callable[[], Instant], sink: Callable[[Record], None]) -> None:
        self._start = start
        self._now = now
        self._sink = sink
        self._keys: dict[str, str] = {}
        #: When something was told last.
        self.last = start

    def recall(self, workloads: Iterable[Obj]) -> None:
        """Take note of Workloads that were there before, without a word."""
        for obj in workloads:
            view = workload_view(obj)
            self._keys[view.uid] = view.key

    def observe(self, events: Sequence[WatchEvent]) -> None:
        """Take note of changes."""
        for event in events:
            if event.key.kind == scheme.WORKLOAD:
                self._observe(event)
            else:
                for name, fields in cluster_records(event):
                    self._emit(name, fields)

    def loop(self, loop: PreemptionLoop) -> None:
        """Workloads preempt each other for ever."""
        steps = [s._asdict() for s in loop.steps]
        self._emit("PreemptionLoop", {"cohort": loop.root, "message": loop.message, "steps": steps})

    def fault(self, fields: Mapping[str, Any]) -> None:
        """Something goes wrong that a scenario has go wrong."""
        self._emit("Fault", fields)

    def final(self, reader: Reader, at: Instant | None = None) -> None:
        """Who waits and who runs at the end, which is now if it is not said."""
        left = [obj for obj in reader.list(scheme.WORKLOAD) if not is_finished(obj)]
        pending = [str(key_of(obj)) for obj in left if not has_quota_reservation(obj)]
        admitted = [str(key_of(obj)) for obj in left if has_quota_reservation(obj)]
        self._emit("Final", {"pending": pending, "admitted": admitted}, at)

    def _observe(self, event: WatchEvent) -> None:
        view = workload_view(event.obj)
        if event.type is EventType.DELETED:
            self._keys.pop(view.uid, None)
            self._emit("Deleted", {"workload": view.key})
            return
        if event.old is None:
            self._keys[view.uid] = view.key
            self._emit("Created", {"workload": view.key})
        before = workload_view(event.old) if event.old is not None else None
        if view.quota_reserved and not (before and before.quota_reserved):
            self._emit("QuotaReserved", _reservation(view))
        if view.admitted and not (before and before.admitted):
            self._emit("Admitted", {"workload": view.key, "clusterQueue": view.cluster_queue})
        if view.evicted and view.quota_reserved and not (before and before.evicted):
            self._evicted(event.obj, view)
        if view.finished and not (before and before.finished):
            self._emit("Finished", {"workload": view.key})

    def _evicted(self, obj: Obj, view: WorkloadView) -> None:
        status = obj["status"]
        evicted = find_condition(status, "Evicted")
        assert evicted is not None
        preempted = find_condition(status, "Preempted")
        if evicted["reason"] != "Preempted" or preempted is None:
            self._emit("Evicted", {"workload": view.key, "reason": evicted["reason"]})
            return
        uid = preemptor_uid_of(preempted["message"])
        by = self._keys.get(uid, uid)
        self._emit("Preempted", {"workload": view.key, "reason": preempted["reason"], "by": by})

    def _emit(self, event: str, fields: Mapping[str, Any], at: Instant | None = None) -> None:
        self.last = self._now() if at is None else at
        self._sink({"time": seconds(self.last - self._start), "event": event, **fields})


def _reservation(view: WorkloadView) -> dict[str, Any]:
    return {
        "workload": view.key,
        "clusterQueue": view.cluster_queue,
        "podSets": [{"name": h.name, "count": h.pods, "flavors": dict(h.flavors)} for h in view.holdings],
    }
