"""Bare Workloads without an owner: they have no pods, and finish after a run time.

The annotation `batchyard.dev/runtime` gives the run time; without it they run until they are deleted. After an eviction
and readmission they start over.
"""

from collections.abc import Iterable

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, controller_of
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import ReconcileResult
from batchyard.kubelet.simulated.durations import annotated_runtime
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload import lifecycle as r


class BareWorkloads:
    """The controller that finishes bare Workloads, and releases the quota of evicted ones, as their jobs would."""

    name = "bare-workloads"
    rank = 0
    kinds = (scheme.WORKLOAD,)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return a Workload that has no owner and holds quota."""
        obj = event.obj
        holds = "admission" in (obj.get("status") or ()) and controller_of(obj) is None
        return (event.key,) if holds and not lifecycle.is_finished(obj) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Release the quota of an evicted Workload, or finish it after its run time."""
        workload = reader.get(key)
        if workload is None or lifecycle.is_finished(workload) or controller_of(workload) is not None:
            return ReconcileResult()
        released = lifecycle.release_after_eviction(workload, now)
        if released is not workload:
            return ReconcileResult([UpdateStatus(released)])
        admitted, runtime = find_condition(workload, r.ADMITTED), annotated_runtime(workload)
        if admitted is None or admitted["status"] != "True" or runtime is None:
            return ReconcileResult()
        due = parse_time(admitted["lastTransitionTime"]) + runtime
        if due > now:
            return ReconcileResult(requeue_at=due)
        finished = lifecycle.finish(workload, r.SUCCEEDED, "Job finished successfully", now)
        return ReconcileResult([UpdateStatus(finished)])
