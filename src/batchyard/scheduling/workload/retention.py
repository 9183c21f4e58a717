"""Retention of Workloads: deletes finished Workloads after a time, and says when deactivated jobs are deleted.

Source: `objectRetentionPolicies` of Kueue's Configuration, and its use in pkg/controller/core/workload_controller.go
and pkg/controller/jobframework/reconciler.go of Kueue.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, find_condition, without_finalizer
from batchyard.api.times import parse_time
from batchyard.api.views.workload import workload_view
from batchyard.base.instant import Duration, Instant, parse_duration
from batchyard.interfaces.client import Delete, EventType, Reader, Update, WatchEvent, Write
from batchyard.interfaces.controller import EventRecord, ReconcileResult
from batchyard.scheduling.workload import lifecycle

#: The reasons of an eviction after a deactivation by Kueue; a deactivation by a user has no cause after `Deactivated`.
_DEACTIVATED_BY_KUEUE: Final = f"{lifecycle.DEACTIVATED}DueTo"


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How long Workloads and jobs are kept; None keeps them until a user deletes them."""

    #: The time from the end of a Workload to its deletion.
    after_finished: Duration | None = None
    #: The time from the eviction of a Workload that Kueue deactivated to the deletion of its job.
    after_deactivated: Duration | None = None


def parse_retention_policy(object_retention_policies: Mapping[str, Any]) -> RetentionPolicy:
    """Parse the section `objectRetentionPolicies` of a valid Configuration."""
    durations = object_retention_policies.get("workloads") or {}
    after_finished, after_deactivated = durations.get("afterFinished"), durations.get("afterDeactivatedByKueue")
    return RetentionPolicy(
        None if after_finished is None else parse_duration(after_finished),
        None if after_deactivated is None else parse_duration(after_deactivated),
    )


class FinishedWorkloadRetention:
    """Controller that deletes each Workload a fixed time after it finished."""

    name = "workload-retention"
    rank = 0
    kinds = (scheme.WORKLOAD,)

    def __init__(self, after_finished: Duration) -> None:
        self._after_finished = after_finished

    def keys_for(self, event: WatchEvent, now: Instant) -> Iterable[Key]:
        """Return the key of a finished Workload; a restart passes each existing Workload as an event."""
        return (event.key,) if event.type is not EventType.DELETED and workload_view(event.obj).finished else ()

    def reconcile(self, key: Key, reader: Reader, now: Instant) -> ReconcileResult:
        """Delete a finished Workload whose retention time has passed; otherwise requeue it for that time."""
        workload = reader.get(key)
        finished_condition = None if workload is None else find_condition(workload, lifecycle.FINISHED)
        if workload is None or finished_condition is None or finished_condition["status"] != "True":
            return ReconcileResult()
        expires_at = parse_time(finished_condition["lastTransitionTime"]) + self._after_finished
        if expires_at > now:
            return ReconcileResult(requeue_at=expires_at)
        released_workload = without_finalizer(workload, well_known.RESOURCE_IN_USE)
        writes: list[Write] = [] if released_workload is workload else [Update(released_workload)]
        if "deletionTimestamp" in workload["metadata"]:
            return ReconcileResult(writes)
        event = EventRecord(key, "Normal", "Deleted", "Deleted finished workload due to elapsed retention")
        return ReconcileResult([*writes, Delete(key, uid=workload["metadata"]["uid"])], [event])


def job_deletion_time(workload: Obj, after_deactivated: Duration) -> Instant | None:
    """Return when the job of a Workload is deleted; None if Kueue did not deactivate the Workload.

    `after_deactivated` is the time from the eviction to the deletion.
    """
    evicted_condition = find_condition(workload, lifecycle.EVICTED)
    if evicted_condition is None or evicted_condition["status"] != "True" or lifecycle.is_active(workload):
        return None
    if not evicted_condition["reason"].startswith(_DEACTIVATED_BY_KUEUE):
        return None
    return parse_time(evicted_condition["lastTransitionTime"]) + after_deactivated
