"""Bare Workloads, which nobody owns: they have no pods, simply take their time, and are done.

How long is told by the annotation `batchyard.dev/runtime`; without it, for ever. One that is evicted and admitted again
starts over.
"""

from collections.abc import Iterable

from batchyard.api import scheme
from batchyard.api.conditions import find_condition
from batchyard.api.meta import Key, controller_of
from batchyard.api.times import parse_time
from batchyard.base.instant import Instant
from batchyard.interfaces.client import Reader, UpdateStatus, WatchEvent
from batchyard.interfaces.controller import Outcome
from batchyard.kubelet.simulated.durations import annotated_runtime
from batchyard.scheduling.workload import lifecycle
from batchyard.scheduling.workload import lifecycle as r


class BareWorkloads:
    """Runs bare Workloads, and gives back the quota of evicted ones, as their jobs would if they had any."""

    name = "bare-workloads"
    rank = 0
    kinds = (scheme.WORKLOAD,)

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """A Workload nobody owns that holds quota."""
        obj = event.obj
        holds = "admission" in (obj.get("status") or ()) and controller_of(obj) is None
        return (event.key,) if holds and not lifecycle.is_finished(obj) else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> Outcome:
        """Release an evicted one; finish one whose time is over."""
        workload = reader.get(key)
        if workload is None or lifecycle.is_finished(workload) or controller_of(workload) is not None:
            return Outcome()
        released = lifecycle.release_after_eviction(workload, now)
        if released is not workload:
            return Outcome([UpdateStatus(released)])
        admitted, runtime = find_condition(workload, r.ADMITTED), annotated_runtime(workload)
        if admitted is None or admitted["status"] != "True" or runtime is None:
            return Outcome()
        due = parse_time(admitted["lastTransitionTime"]) + runtime
        if due > now:
            return Outcome(requeue_at=due)
        finished = lifecycle.finish(workload, r.SUCCEEDED, "Job finished successfully", now)
        return Outcome([UpdateStatus(finished)])
